"""Evaluation in memory: models on the clients of a task, and each client's choice of a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import Problem
from tff_agnostic.computations.class_sums import class_counting
from tff_agnostic.computations.domain_losses import Holdout
from tff_agnostic.computations.evaluation import (
    ChoiceOutput,
    choice_measurement,
    model_measurement,
    num_replicates,
)
from tff_agnostic.data.clients import ClientDataset, in_parts
from tff_agnostic.domain_weights.sets import LambdaSet
from tff_agnostic.metrics.evaluation_report import (
    DEFAULT_PERCENTILES,
    EvaluationReport,
    evaluation_report,
)
from tff_agnostic.models.model import Examples, ModelWeights
from tff_agnostic.runtimes.runtime import Evaluation, RawEvaluation, Runtime
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.divergence import diverged
from tff_agnostic.training.private_evaluation import PrivateEvaluation
from tff_agnostic.training.problems import Arrays, clients_from_arrays

# Distinguishes the draw of clients from other draws with the run's seed.
_STREAM = 11
# Maximum bytes of models evaluated in one pass; the weights of an ensemble include all its
# predictors.
_MAX_BYTES_AT_ONCE = 2**28


def evaluate(
    problem: Problem,
    weights: ModelWeights,
    clients: Union[ClientDataset, Mapping[str, Arrays]],
    *,
    runtime: Optional[Runtime] = None,
    aggregation: Aggregation = PlainSum(),
) -> EvaluationReport:
    """Returns losses and metrics of a model by domain, overall, and over clients.

    Args:
        problem: The learning problem.
        weights: Weights of its model, such as `Trained.models["model"]`.
        clients: The clients to evaluate on: a dataset, or the arrays of each client by its id, as
            in `classification`.
        runtime: Executes the evaluation, and is entered by the caller; by default a runtime in this
            process that ends with the call.
        aggregation: The aggregation of client outputs.

    Example:
        >>> report = evaluate(problem, problem.model.initial_weights, arrays, runtime=runtime)
        >>> 0 <= report.domains["rare"].measures["accuracy"].value <= 1
        True
    """
    if isinstance(clients, Mapping):
        clients = clients_from_arrays(problem.model, clients, problem.num_domains)
    task = Task(problem.domain_names, clients, clients, problem.model)
    with contextlib.ExitStack() as stack:
        if runtime is None:
            from tff_agnostic.runtimes.cohort import CohortRuntime

            runtime = stack.enter_context(CohortRuntime())
        evaluator = Evaluator(task, prepared_evaluation(runtime, task, aggregation))
        report = evaluator(weights, on_all=True)
    return report


class Evaluator:
    """Evaluates on the test clients of a task.

    Args:
        evaluate: Evaluation of the task's model, as `prepared_evaluation` returns it.
        sample: Number of clients of evaluations between rounds, the same clients each time; None
            for all.
        seed: Seed of the draw of these clients.
        worst_min_examples: See `EvaluationReport`.
        lambda_set: Set of domain mixtures whose worst case is reported; None for none.
        percentiles: Percentiles over clients in the report.
        noise: Noise of private evaluations; None without noise.
    """

    def __init__(
        self,
        task: Task,
        evaluate: Evaluation,
        sample: Optional[int] = None,
        seed: int = 0,
        worst_min_examples: int = 1,
        lambda_set: Optional[LambdaSet] = None,
        percentiles: Sequence[float] = DEFAULT_PERCENTILES,
        noise: Optional[PrivateEvaluation] = None,
    ) -> None:
        self._task = task
        self.noise = noise
        self._evaluate = evaluate
        self._worst_min_examples = worst_min_examples
        self._lambda_set = lambda_set
        self._percentiles = percentiles
        self._sample = _sample(task.test.client_ids, sample, seed)

    def __call__(self, weights: ModelWeights, on_all: bool) -> EvaluationReport:
        """Returns the evaluation report of `weights`.

        Args:
            on_all: Whether to use all test clients instead of the sample.
        """
        return self.evaluate_models({"": weights}, on_all, None)[""]

    def evaluate_models(
        self, models: Mapping[str, ModelWeights], on_all: bool, states: Optional[Sequence[Any]]
    ) -> dict[str, EvaluationReport]:
        """Returns the report of each model; clients are read once for all models.

        Args:
            models: Weights of each model, by name.
            on_all: Whether to use all test clients instead of the sample.
            states: State of the private evaluation of each model; None without noise.
        """
        measured = self.measure(list(models.values()), on_all, states)
        return dict(zip(models, map(self.report, measured)))

    def measure(
        self, models: Sequence[ModelWeights], on_all: bool, states: Optional[Sequence[Any]] = None
    ) -> list[RawEvaluation]:
        """Returns the sums for `report`; see `evaluate_models`.

        Args:
            models: Weights of at least one model, all of the same shapes.
            on_all: Whether to use all test clients instead of the sample.
            states: State of the private evaluation of each model; None without noise.
        """
        num_bytes = sum(np.asarray(array).nbytes for array in tf.nest.flatten(models[0]))
        at_once = max(1, _MAX_BYTES_AT_ONCE // max(1, num_bytes))
        evaluated: list[RawEvaluation] = []
        for first in range(0, len(models), at_once):
            some = slice(first, first + at_once)
            parts = in_parts(self._clients(on_all))
            evaluated += self._evaluate.for_each(models[some], parts, states and states[some])
        return evaluated

    def report(self, evaluated: RawEvaluation) -> EvaluationReport:
        """Returns the report of summed outputs."""
        output = evaluated.output if self.noise is None else self.noise.consistent(evaluated.output)
        report = evaluation_report(
            self._task.model,
            self._task.domain_names,
            output,
            evaluated.clipped,
            self._task.test_split,
            self._worst_min_examples,
            self._lambda_set,
            self._percentiles,
        )
        if self.noise is None:
            return report
        # The maximum of noisy counts is biased upwards, so it is not a valid constant prediction to
        # compare with.
        return dataclasses.replace(report, classes=dataclasses.replace(report.classes, counts={}))

    def diverged(self, round_num: int, report: EvaluationReport, on_all: bool) -> UserError:
        """Returns the error of an evaluation without any finite client values."""
        counts = report.clients
        return diverged(
            round_num,
            counts["non_finite"],
            sum(counts.values()),
            self._task.model,
            self._clients(on_all),
        )

    def client_ids(self, on_all: bool) -> Sequence[str]:
        """Returns the ids of the evaluated clients."""
        return self._task.test.client_ids if on_all else self._sample

    def _clients(self, on_all: bool) -> Iterator[Examples]:
        return (self._task.test.read(client_id) for client_id in self.client_ids(on_all))


def prepared_evaluation(
    runtime: Runtime,
    task: Task,
    aggregation: Aggregation,
    noise: Optional[PrivateEvaluation] = None,
) -> Evaluation:
    """Returns the evaluation of an `Evaluator`, which counts predictions by class.

    With plain sums it also computes bootstrap replicates over clients.

    Args:
        runtime: Executes the evaluation.
        aggregation: The aggregation without noise.
        noise: Noise of private evaluations; None without noise.
    """
    if noise is not None:
        return runtime.measurement(noise.measurement, noise.aggregation)
    # Replicates with known weights would reveal values that secure sums hide.
    replicates = num_replicates(task.num_domains) if isinstance(aggregation, PlainSum) else 0
    counting = class_counting(task.model, task.num_domains)
    measurement = model_measurement(task.model, task.num_domains, replicates, counting)
    return runtime.measurement(measurement, aggregation)


def _sample(client_ids: Sequence[str], size: Optional[int], seed: int) -> Sequence[str]:
    if size is None or size >= len(client_ids):
        return client_ids
    rng = np.random.default_rng([seed, _STREAM])
    return [client_ids[i] for i in np.sort(rng.choice(len(client_ids), size, replace=False))]


@dataclasses.dataclass(frozen=True)
class ChoiceReport:
    """An evaluation of a family of models, on examples not used for the clients' choices.

    Attributes:
        models: Evaluation of each model by its name.
        chosen: Evaluation of each client with the model that it chooses.
        in_hindsight: Evaluation of each client, for each measure, with the model that is best for
            it.
        num_choices: Number of clients that choose each model, by name.
        clients: Numbers of clients that chose, that had too few examples to choose, and that had
            non-finite values.
        adaptation_share: Fraction of a client's examples that it uses for the choice.
    """

    models: Mapping[str, EvaluationReport]
    chosen: EvaluationReport
    in_hindsight: EvaluationReport
    num_choices: Mapping[str, int]
    clients: Mapping[str, int]
    adaptation_share: float

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value."""
        return {
            "adaptation_share": self.adaptation_share,
            "num_choices": dict(self.num_choices),
            "clients": dict(self.clients),
            "models": {name: report.to_json() for name, report in self.models.items()},
            "chosen": self.chosen.to_json(),
            "in_hindsight": self.in_hindsight.to_json(),
        }


def evaluate_choice(
    task: Task,
    models: Mapping[str, ModelWeights],
    runtime: Runtime,
    aggregation: Aggregation,
    share: float,
    *,
    seed: int = 0,
    worst_min_examples: int = 1,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> ChoiceReport:
    """Evaluates each test client's choice of a model.

    Args:
        models: Weights of each model of the family by its name, the main model first.
        runtime: Executes the evaluation.
        aggregation: The aggregation of client outputs.
        share: Fraction of a client's examples for its choice, in (0, 1).
        seed: Seed of the draw of these examples.
        worst_min_examples: See `EvaluationReport`.
        percentiles: Percentiles over clients in the reports.
    """
    holdout = Holdout(share, seed)
    measurement = choice_measurement(task.model, task.num_domains, len(models), holdout)
    evaluate = runtime.measurement(measurement, aggregation)
    clients = (task.test.read(client_id) for client_id in task.test.client_ids)
    evaluated = evaluate(tuple(models.values()), in_parts(clients))
    output: ChoiceOutput = evaluated.output

    def report(summed: Any) -> EvaluationReport:
        return evaluation_report(
            task.model,
            task.domain_names,
            summed,
            evaluated.clipped,
            task.test_split,
            worst_min_examples,
            percentiles=percentiles,
        )

    return ChoiceReport(
        models={name: report(summed) for name, summed in zip(models, output.models)},
        chosen=report(output.chosen),
        in_hindsight=report(output.in_hindsight),
        num_choices=dict(zip(models, map(int, output.num_choices))),
        clients={name: int(count) for name, count in output.clients.items()},
        adaptation_share=share,
    )
