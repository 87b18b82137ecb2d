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

# Function from a noise multiplier to the release of a round.
MechanismBuilder = Callable[[float], Mechanism]


class PlannedEvaluations(Protocol):
    """The evaluations of a run: completed and due ones."""

    def num_due(self, after: int, up_to: int) -> int:
        """Returns the number of due evaluations after one round, up to another."""

    def evaluated(self, round_num: int) -> Optional[str]:
        """Returns `Release.evaluated` of a round; None if no evaluation is due after it."""

    def releases(self) -> Sequence[Release]:
        """Returns the releases so far, in order."""


def noise_tail(mechanism: Mechanism, releases: int) -> float:
    """Returns a bound on the probability that any noise lies beyond its generator's tail.

    Beyond the tail, a server's noise is not the accounted noise, and a sum of clients' noise is
    larger than every sum that tables can yield.

    Args:
        mechanism: The mechanism of each release.
        releases: Number of releases.
    """
    if mechanism.noise_multiplier == 0:
        return 0.0
    if isinstance(mechanism, DistributedNoise):
        beyond = (
            group.dimension * beyond_sums(mechanism.variance(group), mechanism.min_clients)
            for group in mechanism.groups
        )
        return releases * math.fsum(beyond)
    # A tree over n releases has fewer than 2 n nodes.
    return beyond_tail(2 * releases if isinstance(mechanism, TreeNoise) else releases)


class PrivateAccount:
    """The account of private training.

    Args:
        last: Number of the last round.
        mechanism: Returns the release of a round with a noise multiplier.
        noise_multiplier: Noise multiplier of the rounds.
        delta: The delta of (epsilon, delta).
        evaluation: Noise of evaluations; None if no evaluation has noise.
        num_models: Number of models of an evaluation.

    Attributes:
        accountant: Accounts for training, and for evaluations of the same clients.
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
        # Releases of an earlier process: their number, the number of model evaluations that are not
        # repeated, and the releases that this process repeats.
        self._num_earlier, self._over = 0, 0
        self._again: list[Release] = []
        self.accountant = self._accountant(noise_multiplier)
        self._pool = ThreadPoolExecutor(1, "privacy-accountant")
        self._ahead: dict[tuple[int, int], Future[Report]] = {}

    @property
    def is_composed(self) -> bool:
        """Whether evaluations are composed with training, as they have clients in common."""
        return self._evaluation is not None and self._evaluation.num_shared > 0

    def quantities(self, quantities: ReportFields) -> ReportFields:
        """Returns the description of `report`'s result."""
        evaluation_fields = {} if self._evaluation is None else _EVALUATION_FIELDS
        return OrderedDict(quantities, privacy=OrderedDict(epsilon=_EPSILON, **evaluation_fields))

    def report(self, report: Report, rounds: int) -> Report:
        """Returns the report of a round with the epsilon spent so far.

        Args:
            report: Report of the round.
            rounds: Number of the round, including its evaluation if one is due.
        """
        now, later = (rounds, self.evaluations(rounds)), (rounds + 1, self.evaluations(rounds + 1))
        spent = self._ahead.get(now) or self._pool.submit(self._spent, *now)
        if rounds < self._last:
            # Compute the next epsilon while the next round runs, as it takes longer than a small
            # model's round.
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
        """Returns the number of releases of each mechanism of the accountant up to a round."""
        return self._counts(rounds, self.evaluations(rounds))

    def _counts(self, rounds: int, evaluations: int) -> list[int]:
        return [rounds, evaluations] if self.is_composed else [rounds]

    def evaluations(self, rounds: int) -> int:
        """Returns the number of model evaluations released up to a round.

        The number includes the releases so far, and the due evaluations. A release of an
        interrupted process counts with its round if the run repeats it, and immediately otherwise.
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
        """Resumes after some rounds.

        Args:
            rounds: Number of completed rounds.
            noise_multiplier: Noise multiplier of the rounds, which may have been computed for fewer
                rounds.
            evaluations: Private evaluations of the run; None to account for its rounds alone.
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
