"""What a private run has spent, round by round: of training, and of evaluations with noise."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Optional

from tff_agnostic.computations.exchange import Report
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.program.evaluation.evaluator import num_evaluations
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
        # Evaluations of a model before the rounds of this process, and its first round.
        self._evaluated, self._completed = 0, 0
        self.accountant = self._accountant(noise_multiplier)
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[int, Future[Report]] = {}

    @property
    def is_composed(self) -> bool:
        """Whether evaluations are accounted for with training: they have clients in common."""
        return self._evaluation is not None and self._evaluation.num_shared > 0

    def quantities(self, quantities: Quantities) -> Quantities:
        """Returns a description of what `report` returns."""
        of_evaluations = {} if self._evaluation is None else _OF_EVALUATIONS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **of_evaluations))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns the report of a round with what was spent up to it, its evaluation included."""
        spent = self._ahead.pop(rounds, None) or self._submitted(rounds)
        if rounds < self._config.rounds:
            # While the next round runs: privacy losses take longer than a small model's rounds.
            self._ahead = {rounds + 1: self._submitted(rounds + 1)}
        return OrderedDict(report, privacy=spent.result())

    def spent(self, rounds: int) -> Report:
        """Returns what was spent up to a round and its evaluation, in the form of `quantities`."""
        spent: OrderedDict[str, Any] = OrderedDict(epsilon=self.epsilon(rounds))
        if self._evaluation is not None:
            evaluations = self.evaluations(rounds)
            spent.update(
                evaluation_epsilon=self._evaluation.epsilon(evaluations), evaluations=evaluations
            )
        return spent

    def epsilon(self, rounds: int) -> float:
        """Returns what training has spent up to a round."""
        return self.accountant.epsilon(*self.counts(rounds))

    def counts(self, rounds: int) -> list[int]:
        """Returns how often each mechanism of the accountant was released up to a round."""
        return [rounds, self.evaluations(rounds)] if self.is_composed else [rounds]

    def evaluations(self, rounds: int) -> int:
        """Returns how many evaluations of a model there were up to a round, its own included."""
        every, last = self._config.evaluate_every, self._config.rounds
        due = rounds // every - self._completed // every
        if self._completed < rounds == last and last % every:
            due += 1
        return self._evaluated + due * self._num_models

    def evaluated_again(self) -> None:
        """Accounts for an evaluation of all models after a round that had one before."""
        self._evaluated += self._num_models

    def go_on_from(self, rounds: int, noise_multiplier: float, evaluations: int) -> None:
        """Goes on after some rounds.

        Args:
            rounds: How many.
            noise_multiplier: Of their noise, which may be worked out for fewer rounds.
            evaluations: How many evaluations of a model there were up to them.
        """
        self._evaluated, self._completed = evaluations, rounds
        self._ahead = {}
        self.accountant = self._accountant(noise_multiplier)

    def check_plan(self, earlier: Optional[tuple[int, int]]) -> None:
        """Refuses other evaluations than those that `--evaluation_target_epsilon` was for.

        Args:
            earlier: Rounds of the run that goes on, and rounds between its evaluations; None if
                none goes on.

        Raises:
            UserError: If noise would be another one than before.
        """
        here = num_evaluations(self._config.rounds, self._config.evaluate_every)
        if earlier is not None and num_evaluations(*earlier) != here:
            raise UserError(
                f"--evaluation_target_epsilon: expected {num_evaluations(*earlier)} evaluations, "
                f"for which the run's noise was worked out, found {here}: a run that may go on has "
                "--evaluation_noise_multiplier"
            )

    def _submitted(self, rounds: int) -> "Future[Report]":
        return self._pool.submit(self.spent, rounds)

    def _accountant(self, noise_multiplier: float) -> PrivacyAccountant:
        mechanisms = [self._mechanism(noise_multiplier)]
        if self.is_composed:
            assert self._evaluation is not None
            mechanisms.append(self._evaluation.mechanism)
        return PrivacyAccountant(mechanisms, self._delta)
