"""Evaluates weights on a task's test clients, a bounded part of their data at a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.exchange import Algorithm, RunState
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.parts import in_parts
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest_of
from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.models.functional import Examples, ModelWeights
from tff_agnostic.program.evaluation.divergence import diverged
from tff_agnostic.program.evaluation.ledger import Release, ReleaseLedger
from tff_agnostic.program.evaluation.private_evaluation import PrivateEvaluation, evaluation_key
from tff_agnostic.program.reporting.evaluation_report import EvaluationReport, evaluation_report
from tff_agnostic.program.reporting.measured import DEFAULT_PERCENTILES
from tff_agnostic.runtimes.runtime import Evaluated, Evaluation, Runtime
from tff_agnostic.tasks.task import Task

# The evaluation of each model of a run by its name, the main one first.
Reports = Mapping[str, EvaluationReport]

# Keeps the draw of clients apart from others that use the run's seed.
_STREAM = 11


class Evaluator:
    """Evaluates on the test clients of a task.

    Args:
        task: The task.
        evaluate: A runtime's evaluation of the task's model.
        sample: How many clients evaluations between rounds use, the same in all; all if None.
        seed: Seeds the draw of these clients.
        worst_min_examples: See `EvaluationReport`.
        lambda_set: The mixtures of which the worst is reported too; none if None.
        percentiles: Which percentiles over clients are reported.
        noise: Of private evaluations, which `evaluate` then is; None if they are none.

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
    ) -> None:
        self._task = task
        self.noise = noise
        self._evaluate = evaluate
        self._worst_min_examples = worst_min_examples
        self._lambda_set = lambda_set
        self._percentiles = percentiles
        self._sample = _sample(task.test.client_ids, sample, seed)

    def __call__(self, weights: ModelWeights, on_all: bool, state: Any = None) -> EvaluationReport:
        """Returns the report of `weights`.

        Args:
            weights: The model's weights.
            on_all: Whether to use all test clients, or the sample.
            state: Of a private evaluation; see `PrivateEvaluation.state`.

        Raises:
            UserError: If a client is malformed.
        """
        return self.report(self.measure(weights, on_all, state))

    def measure(self, weights: ModelWeights, on_all: bool, state: Any = None) -> Evaluated:
        """Returns the sums of which a report is made; see `__call__`."""
        return self._evaluate(weights, in_parts(self._clients(on_all)), state)

    def report(self, evaluated: Evaluated) -> EvaluationReport:
        """Returns the report of what was measured."""
        output = evaluated.output if self.noise is None else self.noise.consistent(evaluated.output)
        return evaluation_report(
            self._task.model,
            self._task.domain_names,
            output,
            evaluated.clipped,
            self._task.test_split,
            self._worst_min_examples,
            self._lambda_set,
            self._percentiles,
        )

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
        """Evaluates the models of a state.

        Raises:
            UserError: If a client is malformed, or a model has diverged.
        """
        round_num = int(state.round_num)
        models = self._algorithm.models(state.algorithm)
        on_all = round_num == self._rounds
        if self._evaluator.noise is not None:
            # How many clients were not finite is known with noise only: nothing is made of it.
            return self._private(state, models, on_all, self._evaluator.noise)
        reports = {name: self._evaluator(weights, on_all) for name, weights in models.items()}
        for report in reports.values():
            if report.clients["non_finite"] > 0 and report.clients["evaluated"] == 0:
                raise self._evaluator.diverged(round_num, report, on_all)
        return reports

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
            found = [
                self._evaluator.measure(of_model, on_all, noise.state(key, k))
                for k, of_model in enumerate(models.values())
            ]
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
    """Returns what an `Evaluator` evaluates with.

    Args:
        runtime: Executes it.
        task: Whose model.
        aggregation: How sums without noise are made.
        noise: Of private evaluations; None if they are none.

    Raises:
        UserError: As `Runtime.evaluation` does.
    """
    if noise is None:
        return runtime.evaluation(task.model, task.num_domains, aggregation)
    return runtime.measurement(noise.measurement, noise.aggregation)


def num_evaluations(rounds: int, every: int) -> int:
    """Returns how often `RunEvaluations` are due in so many rounds, the run's last one included."""
    return -(-rounds // every)


def check_readable(clients: ClientDataset, max_clients: int) -> None:
    """Reads up to `max_clients` clients, evenly spaced, for the errors that reading them raises.

    A client that cannot be read is better found before hours of training than after them.

    Raises:
        UserError: If a client is malformed.
    """
    ids = clients.client_ids
    for i in np.unique(np.linspace(0, len(ids) - 1, min(len(ids), max_clients)).astype(int)):
        clients.read(ids[i])


def _sample(client_ids: Sequence[str], size: Optional[int], seed: int) -> Sequence[str]:
    if size is None or size >= len(client_ids):
        return client_ids
    rng = np.random.default_rng([seed, _STREAM])
    return [client_ids[i] for i in np.sort(rng.choice(len(client_ids), size, replace=False))]
