"""The evaluations of a run: due rounds, noise, and the ledger of releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from absl import logging

from tff_agnostic.base.files import content_digest
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.runs.release_ledger import ReleaseLedger
from tff_agnostic.training.evaluate import Evaluator
from tff_agnostic.training.loop import FinishedRound, Observer
from tff_agnostic.training.private_evaluation import PrivateEvaluation, Release, evaluation_key

# The evaluation of each model by name, the main model first.
Reports = Mapping[str, EvaluationReport]


class Evaluations(Observer):
    """Evaluates the models of a run after the rounds in which an evaluation is due.

    Args:
        rounds: Number of rounds. The evaluation after the last round uses all test clients.
        ledger: Ledger of private evaluations; None without noise.
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
        # Digests of the clients in private evaluations on some clients, and on all clients.
        self._evaluated = {
            on_all: "" if noise is None else noise.digest(evaluator.client_ids(on_all))
            for on_all in (False, True)
        }

    def releases(self) -> Sequence[Release]:
        """Returns the private evaluations so far, in order."""
        return [] if self.ledger is None else self.ledger.releases

    def after_round(self, finished: FinishedRound) -> None:
        """Evaluates the models after a round if an evaluation is due."""
        if self.is_due(finished.num):
            finished.evaluation = self(finished.state)

    def is_due(self, round_num: int) -> bool:
        """Returns whether the models are evaluated after a round."""
        return round_num % self._every == 0 or round_num == self._rounds

    def evaluated(self, round_num: int) -> Optional[str]:
        """Returns `Release.evaluated` of the evaluation after a round; None without evaluation."""
        return self._evaluated[round_num == self._rounds] if self.is_due(round_num) else None

    def num_due(self, after: int, up_to: int) -> int:
        """Returns the number of evaluations due in the rounds from `after` + 1 to `up_to`."""
        due = up_to // self._every - after // self._every
        return due + (after < up_to == self._rounds and self._rounds % self._every > 0)

    def __call__(self, state: RunState) -> Reports:
        """Evaluates the models of a state."""
        round_num = int(state.round_num)
        models = self._algorithm.models(state.algorithm)
        on_all = round_num == self._rounds
        if self._evaluator.noise is not None:
            # Private evaluations report only a noisy number of non-finite clients, which cannot
            # show that a model diverged.
            return self._private(state, models, on_all, self._evaluator.noise)
        reports = self._evaluator.evaluate_models(models, on_all, None)
        for report in reports.values():
            if report.clients["non_finite"] > 0 and report.clients["evaluated"] == 0:
                raise self._evaluator.diverged(round_num, report, on_all)
        return reports

    def evaluate_start(self, initial: RunState) -> Optional[EvaluationReport]:
        """Returns the main model's evaluation before the first round, on all test clients.

        None if evaluations are private, as this evaluation would be one more release.
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
        """Evaluates with the noise of this evaluation, and enters the release in the ledger.

        An evaluation repeated after a crash has equal sums and equal noise, so it is the same
        release. If its sums differ, as on processors that add in no fixed order, another attempt
        uses other noise, and is one more release.
        """
        assert self.ledger is not None
        round_num, evaluated = int(state.round_num), self._evaluated[on_all]
        weights = content_digest(list(models), tf.nest.flatten(list(models.values())))
        attempt = 0
        while True:
            place = content_digest([round_num, evaluated, weights, attempt])
            key = evaluation_key(state.aggregations[0].noise_key, place)
            states = [noise.state(key, k) for k in range(len(models))]
            measured = self._evaluator.measure(list(models.values()), on_all, states)
            sums = content_digest([], tf.nest.flatten([evaluated.output for evaluated in measured]))
            if self.ledger.enter(Release(round_num, evaluated, place, sums, len(models))):
                return dict(zip(models, map(self._evaluator.report, measured)))
            logging.warning(
                "the evaluation after round %d differs from the one that an interruption lost: it "
                "is one more release, and epsilon grows by it",
                round_num,
            )
            attempt += 1


def num_evaluations(rounds: int, every: int) -> int:
    """Returns the number of evaluations of a run, including the one after its last round."""
    return -(-rounds // every)
