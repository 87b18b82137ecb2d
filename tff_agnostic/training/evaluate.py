"""Evaluates models on a task's clients, and evaluates the model that each client chooses."""

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

# Random stream for drawing evaluated clients, distinct from other draws with the run's seed.
_STREAM = 11
# Maximum total size, in bytes, of the models to evaluate in one pass. An ensemble's weights include
# all its predictors.
_MAX_BYTES_AT_ONCE = 2**28


def evaluate(
    problem: Problem,
    weights: ModelWeights,
    clients: Union[ClientDataset, Mapping[str, Arrays]],
    *,
    runtime: Optional[Runtime] = None,
    aggregation: Aggregation = PlainSum(),
) -> EvaluationReport:
    """Returns a model's losses and metrics: by domain, overall, and over clients.

    Args:
        problem: The learning problem.
        weights: Weights of the problem's model, such as `Trained.models["model"]`.
        clients: The clients to evaluate on: a dataset, or the arrays of each client, by id, as in
            `classification`.
        runtime: Runtime that executes the evaluation; the caller must have entered it. By default a
            `CohortRuntime` that exists during this call.
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
    """Evaluates models on a task's test clients.

    Args:
        evaluate: The task's evaluation, from `prepared_evaluation`.
        sample: Number of test clients to sample for evaluations between rounds, the same clients
            each time; None for all.
        seed: Seed with which the clients are sampled.
        worst_min_examples: See `EvaluationReport`.
        lambda_set: Set of domain mixtures; reports include its worst mixture. None to omit it.
        percentiles: Percentiles over clients in the report.
        noise: Private evaluation that adds noise; None without noise.
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
        """Returns the report of each model, by name; reads the clients once for all models.

        Args:
            models: Weights of each model, by name.
            on_all: Whether to use all test clients instead of the sample.
            states: Aggregation state of each model's private evaluation; None without noise.
        """
        measured = self.measure(list(models.values()), on_all, states)
        return dict(zip(models, map(self.report, measured)))

    def measure(
        self, models: Sequence[ModelWeights], on_all: bool, states: Optional[Sequence[Any]] = None
    ) -> list[RawEvaluation]:
        """Returns each model's sums over clients, from which `report` computes its report.

        Args:
            models: Weights of one or more models with the same shapes.
            on_all: Whether to use all test clients instead of the sample.
            states: Aggregation state of each model's private evaluation; None without noise.
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
        """Returns the report computed from sums over clients."""
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
        # Omit class counts: the maximum of noisy counts is biased upwards, so the best constant
        # prediction would score too high.
        return dataclasses.replace(report, classes=dataclasses.replace(report.classes, counts={}))

    def diverged(self, round_num: int, report: EvaluationReport, on_all: bool) -> UserError:
        """Returns the error for an evaluation in which no client has finite values."""
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
    """Returns the evaluation for an `Evaluator`, which includes counts of predictions by class.

    With plain sums, the evaluation includes bootstrap replicates over clients.

    Args:
        runtime: Runtime that executes the evaluation.
        aggregation: The aggregation to use if `noise` is None.
        noise: Private evaluation that adds noise; None without noise.
    """
    if noise is not None:
        return runtime.measurement(noise.measurement, noise.aggregation)
    # As the weights of replicates are known, replicates would reveal what secure sums hide.
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
    """Evaluations of several models, and of the model that each client chooses.

    Attributes:
        models: Evaluation of each model, by name, on examples that clients do not use for the
            choice.
        chosen: Evaluation of each client with the model that it chooses.
        in_hindsight: Evaluation in which each client uses, for each measure, the model that turns
            out best on the client's evaluated examples.
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
    """Evaluates test clients with each model, and with the model that each client chooses.

    Args:
        models: Weights of each model to choose from, by name; the main model is first.
        runtime: Runtime that executes the evaluation.
        aggregation: The aggregation of client outputs.
        share: Fraction of a client's examples for its choice, in (0, 1).
        seed: Seed with which these examples are drawn.
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
