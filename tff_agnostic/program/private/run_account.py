"""What a private run has spent, round by round: of training, and of evaluations with noise."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional

from tff_agnostic.computations.exchange import Report
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.program.evaluation.evaluator import RunEvaluations, num_evaluations
from tff_agnostic.program.evaluation.ledger import Release
from tff_agnostic.program.evaluation.private_evaluation import PrivateEvaluation
from tff_agnostic.program.private.run_mechanisms import MechanismOf
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.quantities import Quantities, Quantity, Role

_EPSILON = Quantity("epsilon", "epsilon spent in training so far", role=Role.PRIVACY)
_OF_EVALUATIONS: Quantities = OrderedDict(
    evaluation_epsilon=Quantity("evaluation_epsilon", "epsilon spent in evaluations so far"),
    evaluations=Quantity("evaluations", "private evaluations of a model so far"),
)


class RunAccount:
    """The account of a run.

    Args:
        config: Of the run.
        mechanism: What a round releases with a noise multiplier.
        noise_multiplier: The one that it has.
        delta: The delta of (epsilon, delta).
        evaluation: The noise of its evaluations; None if they have none.
        num_models: How many models an evaluation is of.

    Attributes:
        accountant: Accounts for training, and for evaluations of the same clients.
    """

    def __init__(
        self,
        config: RunConfig,
        mechanism: MechanismOf,
        noise_multiplier: float,
        delta: float,
        evaluation: Optional[PrivateEvaluation],
        num_models: int,
    ) -> None:
        self._config = config
        self._mechanism = mechanism
        self._delta = delta
        self._evaluation = evaluation
        self._num_models = num_models
        # Those of the run, and rounds that were completed before this process.
        self._evaluations: Optional[RunEvaluations] = None
        self._completed = 0
        # Of the ledger that this process found: how many lines it had, those that are made again,
        # and how many evaluations of a model the others are.
        self._num_taken_over, self._over = 0, 0
        self._again: list[Release] = []
        self.accountant = self._accountant(noise_multiplier)
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[tuple[int, int], Future[Report]] = {}

    @property
    def is_composed(self) -> bool:
        """Whether evaluations are accounted for with training: they have clients in common."""
        return self._evaluation is not None and self._evaluation.num_shared > 0

    def quantities(self, quantities: Quantities) -> Quantities:
        """Returns a description of what `report` returns."""
        of_evaluations = {} if self._evaluation is None else _OF_EVALUATIONS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **of_evaluations))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns the report of a round with what was spent up to it.

        Args:
            report: The report.
            rounds: The round; if it has an evaluation, that was made.
        """
        now, later = (rounds, self.evaluations(rounds)), (rounds + 1, self.evaluations(rounds + 1))
        spent = self._ahead.get(now) or self._pool.submit(self._spent, *now)
        if rounds < self._config.rounds:
            # While the next round runs: privacy losses take longer than a small model's rounds.
            self._ahead = {later: self._pool.submit(self._spent, *later)}
        return OrderedDict(report, privacy=spent.result())

    def spent(self, rounds: int) -> Report:
        """Returns what was spent up to a round and its evaluation, in the form of `quantities`."""
        return self._spent(rounds, self.evaluations(rounds))

    def _spent(self, rounds: int, evaluations: int) -> Report:
        counts = self._counts(rounds, evaluations)
        spent: OrderedDict[str, Any] = OrderedDict(epsilon=self.accountant.epsilon(*counts))
        if self._evaluation is not None:
            spent.update(
                evaluation_epsilon=self._evaluation.epsilon(evaluations), evaluations=evaluations
            )
        return spent

    def epsilon(self, rounds: int) -> float:
        """Returns what training has spent up to a round."""
        return self.accountant.epsilon(*self.counts(rounds))

    def counts(self, rounds: int) -> list[int]:
        """Returns how often each mechanism of the accountant was released up to a round."""
        return self._counts(rounds, self.evaluations(rounds))

    def _counts(self, rounds: int, evaluations: int) -> list[int]:
        return [rounds, evaluations] if self.is_composed else [rounds]

    def evaluations(self, rounds: int) -> int:
        """Returns how many evaluations of a model were released up to a round.

        These are the ones in the run's ledger, and those that are still due. One that a crash lost
        counts with its round if the run will make it again, and at once if not.
        """
        runs = self._evaluations
        if runs is None or runs.ledger is None:
            return 0
        again = [release for release in self._again if release.round_num <= rounds]
        counted = again + runs.ledger.releases[self._num_taken_over :]
        made = {r.round_num for r in counted if r.round_num > self._completed}
        due = runs.num_due(self._completed, rounds) - len(made)
        return self._over + sum(r.num_models for r in counted) + due * self._num_models

    def go_on_from(
        self, rounds: int, noise_multiplier: float, evaluations: Optional[RunEvaluations]
    ) -> None:
        """Goes on after some rounds.

        Args:
            rounds: How many.
            noise_multiplier: Of their noise, which may be worked out for fewer rounds.
            evaluations: Those of the run; None if its rounds alone are accounted for.
        """
        self._evaluations, self._completed = evaluations, rounds
        self._ahead = {}
        self.accountant = self._accountant(noise_multiplier)
        if evaluations is None or evaluations.ledger is None:
            return

        def is_made_again(release: Release) -> bool:
            planned = evaluations.evaluated(release.round_num)
            return release.round_num > rounds and release.evaluated == planned

        taken_over = evaluations.ledger.releases
        self._num_taken_over = len(taken_over)
        self._again = [release for release in taken_over if is_made_again(release)]
        of_again = sum(release.num_models for release in self._again)
        self._over = sum(release.num_models for release in taken_over) - of_again

    def check_plan(self, earlier: Optional[tuple[int, int]]) -> None:
        """Refuses other evaluations than those that `--evaluation_target_epsilon` was for.

        Args:
            earlier: Rounds of the run that goes on, and rounds between its evaluations; None if
                none goes on.

        Raises:
            UserError: If noise would be another one than before.
        """
        last, every = self._config.rounds, self._config.evaluate_every
        if earlier is None:
            return
        wanted = num_evaluations(*earlier)
        expected = (
            f"--evaluation_target_epsilon: expected {wanted} evaluations, for which the run's "
            "noise was worked out, found "
        )
        if num_evaluations(last, every) != wanted:
            raise UserError(
                f"{expected}{num_evaluations(last, every)}: a run that may go on has "
                "--evaluation_noise_multiplier"
            )
        runs = self._evaluations
        assert runs is not None and runs.ledger is not None
        planned = ((t, runs.evaluated(t)) for t in range(self._completed + 1, last + 1))
        found = runs.ledger.known() | {(t, evaluated) for t, evaluated in planned if evaluated}
        if len(found) > wanted:
            raise UserError(
                f"{expected}{len(found)} with those that were made already: go on with the "
                "--evaluate_every and --evaluation_clients that the run had"
            )

    def _accountant(self, noise_multiplier: float) -> PrivacyAccountant:
        mechanisms = [self._mechanism(noise_multiplier)]
        if self.is_composed:
            assert self._evaluation is not None
            mechanisms.append(self._evaluation.mechanism)
        return PrivacyAccountant(mechanisms, self._delta)
