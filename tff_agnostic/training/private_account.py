"""The privacy account of private training, for its rounds and evaluations."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Protocol

from tff_agnostic.aggregations.noise import beyond_sums
from tff_agnostic.aggregations.noise_generators import beyond_tail
from tff_agnostic.base.report_fields import ReportField, ReportFields, Role
from tff_agnostic.computations.algorithm import Report
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise
from tff_agnostic.privacy.mechanisms import Mechanism, TreeNoise
from tff_agnostic.training.private_evaluation import PrivateEvaluation, Release

_EPSILON = ReportField("epsilon", "epsilon spent in training so far", role=Role.PRIVACY)
_EVALUATION_FIELDS: ReportFields = OrderedDict(
    evaluation_epsilon=ReportField("evaluation_epsilon", "epsilon spent in evaluations so far"),
    evaluations=ReportField("evaluations", "private evaluations of a model so far"),
)

# Function that maps a noise multiplier to the mechanism of a round's release.
MechanismBuilder = Callable[[float], Mechanism]


class PlannedEvaluations(Protocol):
    """The private evaluations of a run, completed and due."""

    def num_due(self, after: int, up_to: int) -> int:
        """Returns the number of evaluations due after round `after`, up to round `up_to`."""

    def evaluated(self, round_num: int) -> Optional[str]:
        """Returns `Release.evaluated` of the evaluation due after a round; None if none is due."""

    def releases(self) -> Sequence[Release]:
        """Returns the releases so far, in order."""


def noise_tail(mechanism: Mechanism, releases: int) -> float:
    """Returns a bound on the probability that any noise is outside its generator's range.

    Generators never draw values outside a range, though the account assumes the complete
    distribution. For noise from clients, the bound is for the sum of their noise.
    """
    if mechanism.noise_multiplier == 0:
        return 0.0
    if isinstance(mechanism, DistributedNoise):
        beyond = (
            group.dimension * beyond_sums(mechanism.variance(group), mechanism.min_clients)
            for group in mechanism.groups
        )
        return releases * math.fsum(beyond)
    # Each node of a tree has noise, and a tree over n releases has fewer than 2 n nodes.
    return beyond_tail(2 * releases if isinstance(mechanism, TreeNoise) else releases)


class PrivateAccount:
    """Computes the epsilon that private training has spent after each round.

    Args:
        last: Number of the last round.
        mechanism: Maps a noise multiplier to the mechanism of a round's release.
        evaluation: Noise and account of private evaluations; None if evaluations have no noise.
        num_models: Number of models that each evaluation evaluates.

    Attributes:
        accountant: Accountant of training, and of evaluations on the same clients.
    """

    def __init__(
        self,
        last: int,
        mechanism: MechanismBuilder,
        noise_multiplier: float,
        delta: float,
        evaluation: Optional[PrivateEvaluation],
        num_models: int,
    ) -> None:
        self._last = last
        self._mechanism = mechanism
        self._delta = delta
        self._evaluation = evaluation
        self._num_models = num_models
        self._evaluations: Optional[PlannedEvaluations] = None
        # Number of rounds that earlier processes completed.
        self._completed = 0
        # About the releases of earlier processes: their number, the number of model evaluations in
        # those that this process does not repeat, and a list of those that it repeats.
        self._num_earlier, self._over = 0, 0
        self._again: list[Release] = []
        self.accountant = self._accountant(noise_multiplier)
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[tuple[int, int], Future[Report]] = {}

    @property
    def is_composed(self) -> bool:
        """Whether one epsilon covers training and evaluations, because they share clients."""
        return self._evaluation is not None and self._evaluation.num_shared > 0

    def quantities(self, quantities: ReportFields) -> ReportFields:
        """Returns `quantities` with descriptions of the values that `report` adds."""
        evaluation_fields = {} if self._evaluation is None else _EVALUATION_FIELDS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **evaluation_fields))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns a round's report with the epsilon spent so far.

        Args:
            rounds: Number of the round; epsilon includes the evaluation due after it.
        """
        now, later = (rounds, self.evaluations(rounds)), (rounds + 1, self.evaluations(rounds + 1))
        spent = self._ahead.get(now) or self._pool.submit(self._spent, *now)
        if rounds < self._last:
            # Compute the next epsilon while the next round runs, as computing it takes longer than
            # a small model's round.
            self._ahead = {later: self._pool.submit(self._spent, *later)}
        return OrderedDict(report, privacy=spent.result())

    def spent(self, rounds: int) -> Report:
        """Returns the epsilon spent up to a round and its evaluation; see `quantities`."""
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
        """Returns the epsilon of training up to a round."""
        return self.accountant.epsilon(*self.counts(rounds))

    def counts(self, rounds: int) -> list[int]:
        """Returns the number of releases up to a round, for each of the accountant's mechanisms."""
        return self._counts(rounds, self.evaluations(rounds))

    def _counts(self, rounds: int, evaluations: int) -> list[int]:
        return [rounds, evaluations] if self.is_composed else [rounds]

    def evaluations(self, rounds: int) -> int:
        """Returns the number of model evaluations released up to a round.

        The number includes past releases and due evaluations. The releases of an interrupted
        process count from the start, except those that this run repeats: each of them counts from
        its round on.
        """
        runs = self._evaluations
        if runs is None:
            return 0
        again = [release for release in self._again if release.round_num <= rounds]
        counted = [*again, *runs.releases()[self._num_earlier :]]
        made = {r.round_num for r in counted if r.round_num > self._completed}
        due = runs.num_due(self._completed, rounds) - len(made)
        return self._over + sum(r.num_models for r in counted) + due * self._num_models

    def resume_from(
        self, rounds: int, noise_multiplier: float, evaluations: Optional[PlannedEvaluations]
    ) -> None:
        """Resumes the account after some rounds.

        Args:
            noise_multiplier: Noise multiplier of the rounds, which may have been calibrated for
                fewer rounds.
            evaluations: Private evaluations of the run; None to account only for its rounds.
        """
        self._evaluations, self._completed = evaluations, rounds
        self._ahead = {}
        self.accountant = self._accountant(noise_multiplier)
        if evaluations is None:
            return

        def is_made_again(release: Release) -> bool:
            planned = evaluations.evaluated(release.round_num)
            return release.round_num > rounds and release.evaluated == planned

        earlier = evaluations.releases()
        self._num_earlier = len(earlier)
        self._again = [release for release in earlier if is_made_again(release)]
        num_again = sum(release.num_models for release in self._again)
        self._over = sum(release.num_models for release in earlier) - num_again

    def _accountant(self, noise_multiplier: float) -> PrivacyAccountant:
        mechanisms = [self._mechanism(noise_multiplier)]
        if self.is_composed:
            assert self._evaluation is not None
            mechanisms.append(self._evaluation.mechanism)
        return PrivacyAccountant(mechanisms, self._delta)
