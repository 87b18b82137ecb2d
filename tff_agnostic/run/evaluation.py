"""Evaluations of a run and of a checkpoint; choice of a model by each client; divergence."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.class_sums import class_counting
from tff_agnostic.computations.domain_losses import Holdout
from tff_agnostic.computations.evaluation import (
    ChoiceOutput,
    measurement_of_choice,
    measurement_of_model,
    num_replicates,
)
from tff_agnostic.data.clients import ClientDataset, in_parts
from tff_agnostic.domain_weights.sets import LambdaSet
from tff_agnostic.errors import UserError, counted
from tff_agnostic.files import digest_of
from tff_agnostic.later import tf
from tff_agnostic.metrics.constant_answers import constant_answers, measurement_of_labels
from tff_agnostic.metrics.evaluation_report import (
    DEFAULT_PERCENTILES,
    EvaluationReport,
    evaluation_report,
    statistic_names,
)
from tff_agnostic.metrics.formatting import cell, with_percent
from tff_agnostic.models.model import Examples, Measure, ModelWeights
from tff_agnostic.reports.evaluation_table import clipped_lines
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.private_evaluation import (
    PrivateEvaluation,
    Release,
    ReleaseLedger,
    evaluation_key,
)
from tff_agnostic.runtimes.runtime import Evaluated, Evaluation, Runtime
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.divergence import diverged

# Keeps the draw of clients apart from others that use the run's seed.
_STREAM = 11
# Of models that are evaluated in one pass: an ensemble has all its predictors in its weights.
_MAX_BYTES_AT_ONCE = 2**28
CHOSEN = "each client's choice"
IN_HINDSIGHT = "best in hindsight"

# The evaluation of each model of a run by its name, the main one first.
Reports = Mapping[str, EvaluationReport]


class Evaluator:
    """Evaluates on the test clients of a task.

    Args:
        evaluate: A runtime's evaluation of the task's model.
        sample: How many clients evaluations between rounds use, the same in all; all if None.
        seed: Seeds the draw of these clients.
        worst_min_examples: See `EvaluationReport`.
        lambda_set: The mixtures of which the worst is reported too; none if None.
        percentiles: Which percentiles over clients are reported.
        noise: Of private evaluations, which `evaluate` then is; None if they are none.
        labels: Sums the labels of clients; None if nothing does, or evaluations are private.

    Attributes:
        noise: The same.
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
        labels: Optional[Evaluation] = None,
    ) -> None:
        self._task = task
        self._labels, self._label_sums = labels, None
        self.noise = noise
        self._evaluate = evaluate
        self._worst_min_examples = worst_min_examples
        self._lambda_set = lambda_set
        self._percentiles = percentiles
        self._sample = _sample(task.test.client_ids, sample, seed)

    def __call__(self, weights: ModelWeights, on_all: bool) -> EvaluationReport:
        """Returns the report of `weights`.

        Args:
            on_all: Whether to use all test clients, or the sample.
        """
        return self.of_models({"": weights}, on_all, None)[""]

    def of_models(
        self, models: Mapping[str, ModelWeights], on_all: bool, states: Optional[Sequence[Any]]
    ) -> dict[str, EvaluationReport]:
        """Returns the report of each model; clients are read once for all of them.

        Args:
            models: Their weights, by name.
            on_all: Whether to use all test clients, or the sample.
            states: Of private evaluations, of each model; None of others.
        """
        measured = self.measure(list(models.values()), on_all, states)
        reports = dict(zip(models, map(self.report, measured)))
        if self.noise is not None or not on_all:
            return reports
        if self._labels is not None and self._label_sums is None:
            self._label_sums = self._labels(0, in_parts(self._clients(on_all))).output
        return {name: self._with_constants(report) for name, report in reports.items()}

    def _with_constants(self, report: EvaluationReport) -> EvaluationReport:
        found = functools.partial(constant_answers, self._task.model, report, self._label_sums)
        return dataclasses.replace(report, constants=found)

    def measure(
        self, models: Sequence[ModelWeights], on_all: bool, states: Optional[Sequence[Any]] = None
    ) -> list[Evaluated]:
        """Returns the sums of which reports are made; see `of_models`.

        Args:
            models: Weights of at least one model, all of the same shapes.
            on_all: Whether to use all test clients, or the sample.
            states: Of private evaluations.
        """
        num_bytes = sum(np.asarray(array).nbytes for array in tf.nest.flatten(models[0]))
        at_once = max(1, _MAX_BYTES_AT_ONCE // max(1, num_bytes))
        found = []
        for first in range(0, len(models), at_once):
            some = slice(first, first + at_once)
            parts = in_parts(self._clients(on_all))
            found += self._evaluate.of_each(models[some], parts, states and states[some])
        return found

    def report(self, evaluated: Evaluated) -> EvaluationReport:
        """Returns the report of what was measured."""
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
        # The largest of several noisy counts is too large: it is no answer to compare a model with.
        return dataclasses.replace(report, classes=dataclasses.replace(report.classes, counts={}))

    def diverged(self, round_num: int, report: EvaluationReport, on_all: bool) -> UserError:
        """Returns the error of an evaluation in which no client's numbers were finite."""
        counts = report.clients
        return diverged(
            round_num,
            counts["non_finite"],
            sum(counts.values()),
            self._task.model,
            self._clients(on_all),
        )

    def client_ids(self, on_all: bool) -> Sequence[str]:
        """Returns the names of the clients that are evaluated."""
        return self._task.test.client_ids if on_all else self._sample

    def _clients(self, on_all: bool) -> Iterator[Examples]:
        return (self._task.test.read(client_id) for client_id in self.client_ids(on_all))


class RunEvaluations:
    """The evaluations of a run: after which rounds, and of what.

    Args:
        algorithm: Whose models are evaluated.
        evaluator: Evaluates one of them.
        every: Rounds between evaluations.
        rounds: Rounds of the run; the last evaluation is after the last one, on all test clients.
        ledger: Of private evaluations.

    Attributes:
        ledger: The same.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        evaluator: Evaluator,
        every: int,
        rounds: int,
        ledger: Optional[ReleaseLedger] = None,
    ) -> None:
        self._algorithm = algorithm
        self._evaluator = evaluator
        self._every = every
        self._rounds = rounds
        self.ledger = ledger
        noise = evaluator.noise
        # Of private evaluations, by whether they are on all clients.
        self._evaluated = {
            on_all: "" if noise is None else noise.digest(evaluator.client_ids(on_all))
            for on_all in (False, True)
        }

    def are_due(self, round_num: int) -> bool:
        """Returns whether the models are evaluated after a round."""
        return round_num % self._every == 0 or round_num == self._rounds

    def evaluated(self, round_num: int) -> Optional[str]:
        """Returns what `Release.evaluated` is after a round; None if no evaluation is due."""
        return self._evaluated[round_num == self._rounds] if self.are_due(round_num) else None

    def num_due(self, after: int, up_to: int) -> int:
        """Returns how many evaluations are due after one round, up to another."""
        due = up_to // self._every - after // self._every
        return due + (after < up_to == self._rounds and self._rounds % self._every > 0)

    def __call__(self, state: RunState) -> Reports:
        """Evaluates the models of a state."""
        round_num = int(state.round_num)
        models = self._algorithm.models(state.algorithm)
        on_all = round_num == self._rounds
        if self._evaluator.noise is not None:
            # How many clients were not finite is known with noise only: nothing is made of it.
            return self._private(state, models, on_all, self._evaluator.noise)
        reports = self._evaluator.of_models(models, on_all, None)
        for report in reports.values():
            if report.clients["non_finite"] > 0 and report.clients["evaluated"] == 0:
                raise self._evaluator.diverged(round_num, report, on_all)
        return reports

    def at_start(self, initial: RunState) -> Optional[EvaluationReport]:
        """Returns the main model's evaluation before the first round, on all test clients.

        None where evaluations are private: it would be one more release.
        """
        if self._evaluator.noise is not None:
            return None
        return self._evaluator(self._algorithm.main_model(initial.algorithm), on_all=True)

    def _private(
        self,
        state: RunState,
        models: Mapping[str, ModelWeights],
        on_all: bool,
        noise: PrivateEvaluation,
    ) -> Reports:
        """Evaluates with noise that no other sums have, and enters that in the ledger.

        An evaluation that is made again has equal sums and equal noise: it is the same release. If
        its sums differ, as on processors that add in no fixed order, it has the noise of its next
        attempt, and is one more release.
        """
        assert self.ledger is not None
        round_num, evaluated = int(state.round_num), self._evaluated[on_all]
        weights = digest_of(list(models), tf.nest.flatten(list(models.values())))
        attempt = 0
        while True:
            place = digest_of([round_num, evaluated, weights, attempt])
            key = evaluation_key(state.aggregations[0].noise_key, place)
            states = [noise.state(key, k) for k in range(len(models))]
            found = self._evaluator.measure(list(models.values()), on_all, states)
            sums = digest_of([], tf.nest.flatten([of_model.output for of_model in found]))
            if self.ledger.enter(Release(round_num, evaluated, place, sums, len(models))):
                return dict(zip(models, map(self._evaluator.report, found)))
            logging.warning(
                "the evaluation after round %d differs from the one that an interruption lost: it "
                "is one more release, and epsilon grows by it",
                round_num,
            )
            attempt += 1


def prepared_evaluation(
    runtime: Runtime, task: Task, aggregation: Aggregation, noise: Optional[PrivateEvaluation]
) -> Evaluation:
    """Returns what an `Evaluator` evaluates with: it counts answers by class, too.

    Plain sums resample the clients as well.

    Args:
        aggregation: How sums without noise are made.
        noise: Of private evaluations; None if they are none.
    """
    if noise is not None:
        return runtime.measurement(noise.measurement, noise.aggregation)
    # Secure sums are to hide what known weights would uncover.
    replicates = num_replicates(task.num_domains) if isinstance(aggregation, PlainSum) else 0
    counting = class_counting(task.model, task.num_domains)
    measurement = measurement_of_model(task.model, task.num_domains, replicates, counting)
    return runtime.measurement(measurement, aggregation)


def prepared_labels(
    runtime: Runtime, task: Task, aggregation: Aggregation, noise: Optional[PrivateEvaluation]
) -> Optional[Evaluation]:
    """Returns what an `Evaluator` sums labels with, where constant answers are made of them.

    Args:
        aggregation: How sums without noise are made.
        noise: Of private evaluations, which have no such sums; None if they are none.
    """
    if noise is not None:
        return None
    measurement = measurement_of_labels(task.model, task.num_domains, aggregation)
    return None if measurement is None else runtime.measurement(measurement, aggregation)


def num_evaluations(rounds: int, every: int) -> int:
    """Returns how often `RunEvaluations` are due in so many rounds, the run's last one included."""
    return -(-rounds // every)


def check_readable(clients: ClientDataset, max_clients: int) -> None:
    """Reads up to `max_clients` clients, evenly spaced, for the errors that reading them raises.

    A client that cannot be read is better found before hours of training than after them.
    """
    ids = clients.client_ids
    for i in np.unique(np.linspace(0, len(ids) - 1, min(len(ids), max_clients)).astype(int)):
        clients.read(ids[i])


def _sample(client_ids: Sequence[str], size: Optional[int], seed: int) -> Sequence[str]:
    if size is None or size >= len(client_ids):
        return client_ids
    rng = np.random.default_rng([seed, _STREAM])
    return [client_ids[i] for i in np.sort(rng.choice(len(client_ids), size, replace=False))]


@dataclasses.dataclass(frozen=True)
class ChoiceReport:
    """An evaluation of a family on examples that clients did not choose by.

    Attributes:
        models: The evaluation of each model, by name.
        chosen: Where each client has the model that it chooses.
        in_hindsight: Where it has, for each measure, the model that turned out best for it.
        num_choices: How many clients choose each model, by name.
        clients: Clients that chose, had too few examples to choose, or values that are not finite.
        adaptation_share: The share of its examples that a client chooses by.
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
    config: RunConfig,
    share: float,
) -> ChoiceReport:
    """Evaluates the choice of the test clients of a task.

    Args:
        models: The family, by name, the main model first.
        aggregation: How they are summed.
        config: The settings of the evaluation.
        share: The share of its examples that a client chooses by, in (0, 1).
    """
    holdout = Holdout(share, config.seed)
    measurement = measurement_of_choice(task.model, task.num_domains, len(models), holdout)
    evaluate = runtime.measurement(measurement, aggregation)
    clients = (task.test.read(client_id) for client_id in task.test.client_ids)
    found = evaluate(tuple(models.values()), in_parts(clients))
    output: ChoiceOutput = found.output

    def report(summed: Any) -> EvaluationReport:
        return evaluation_report(
            task.model,
            task.domain_names,
            summed,
            found.clipped,
            task.test_split,
            config.worst_min_examples,
            percentiles=config.client_percentiles,
        )

    return ChoiceReport(
        models={name: report(summed) for name, summed in zip(models, output.models)},
        chosen=report(output.chosen),
        in_hindsight=report(output.in_hindsight),
        num_choices=dict(zip(models, map(int, output.num_choices))),
        clients={name: int(count) for name, count in output.clients.items()},
        adaptation_share=share,
    )


def choice_table(report: ChoiceReport) -> str:
    """Returns a table for each measure: a row per model, one of the choices, one in hindsight."""
    tables = [_table(report, name, measure) for name, measure in report.chosen.measures.items()]
    lines = [
        f"{CHOSEN}: by its loss on {report.adaptation_share:g} of its examples; every row is "
        "measured on the others",
        f"{IN_HINDSIGHT}: for each measure by itself, the model that is best on those others",
    ]
    if report.clients["too_few"]:
        lines.append(
            "left out, as they have fewer than two examples: "
            f"{counted(report.clients['too_few'], 'client')}"
        )
    if report.clients["non_finite"]:
        lines.append(
            "left out, as their losses are not finite with one of the models: "
            + counted(report.clients["non_finite"], "client")
        )
    # One measurement: what was clipped is the same in every report of it.
    return "\n".join(["\n\n".join(tables), *lines, *clipped_lines(report.chosen)])


def _table(report: ChoiceReport, name: str, measure: Measure) -> str:
    rows = {**report.models, CHOSEN: report.chosen, IN_HINDSIGHT: report.in_hindsight}
    percentiles = tuple(report.chosen.overall.measures[name].percentiles)
    lines = []
    for row, evaluation in rows.items():
        measured = evaluation.overall.measures[name]
        values = [measured.value, *measured.over_clients().values()]
        chosen_by = str(report.num_choices[row]) if row in report.num_choices else ""
        lines.append([row, chosen_by, *(cell(value, measure.unit, 4) for value in values)])
    headers = [with_percent(name, measure.unit), "clients", "all", *statistic_names(percentiles)]
    table: str = tabulate(lines, headers=headers, disable_numparse=True, stralign="right")
    return table


def check_choice(clients: ClientDataset, models: Mapping[str, ModelWeights], share: float) -> None:
    """Checks that clients can choose."""
    if len(models) < 2:
        raise UserError(
            "--adaptation_share: expected a family of models to choose from, found one: "
            f"{next(iter(models))}"
        )
    ids = clients.client_ids
    sizes = {client_id: len(clients.read(client_id)["domain_id"]) for client_id in ids}
    # Of a single example no share is anything; who has one is left out, and told of.
    small = {client_id: size for client_id, size in sizes.items() if size > 1 and share * size < 1}
    if small:
        first = min(small, key=lambda client_id: small[client_id])
        raise UserError(
            f"--adaptation_share={share:g}: expected a share that leaves each client an example to "
            f"choose by, found {len(small)} of {len(ids)} clients with less than one, such as "
            f"{first} of {small[first]} examples: {1 / small[first]:.3g} or more does"
        )
