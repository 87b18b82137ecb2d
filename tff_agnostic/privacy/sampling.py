"""Cohort sampling schemes, and the privacy amplification of each scheme."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import dp_accounting, scipy
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.privacy.amplification import (
    Divergence,
    log_sum,
    poisson_sampled,
    sampled_without_replacement,
)

PLD, RDP = "pld", "rdp"
ADD_OR_REMOVE = "add or remove one client"
REPLACE_ONE = "replace one client by another"
ZERO_OUT = "exchange one client's values for zeros"


class CohortSampling(Protocol):
    """A cohort sampling scheme, as accountants see it."""

    @property
    def relation(self) -> dp_accounting.NeighboringRelation:
        """The neighbouring relation of client populations."""

    @property
    def adjacency(self) -> str:
        """How neighbouring client populations differ, as text."""

    @property
    def assumption(self) -> str:
        """The sampling that epsilon assumes, as a sentence without full stop."""

    @property
    def rate(self) -> float:
        """Probability that a client is in a round's cohort; the maximum over clients."""

    @property
    def sensitivity(self) -> float:
        """Maximum change of a sum between neighbouring populations, in clip norms."""

    @property
    def accountants(self) -> tuple[str, ...]:
        """Names of the accountants that apply, the default first."""

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Returns one round's release, as an event of dp-accounting.

        Args:
            noise_multiplier: Standard deviation of the noise per clip norm.
        """


class IntegerSampling(Protocol):
    """A sampling scheme for clients that add noise; the number of reporting clients is public."""

    @property
    def adjacency(self) -> str:
        """How neighbouring client populations differ."""

    @property
    def assumption(self) -> str:
        """The sampling that epsilon assumes, as a sentence without full stop."""

    @property
    def sensitivity(self) -> float:
        """Maximum change of a sum between neighbouring populations, in clip norms."""

    def participations(self, rounds: int) -> int:
        """Returns in how many of `rounds` rounds a client reports at most."""

    def amplified(self, divergence: Divergence, orders: np.ndarray) -> np.ndarray:
        """Returns a round's Renyi divergences at each order, amplified by the sampling.

        Args:
            divergence: Maps orders to the release's divergences between cohorts that differ in one
                client, by `sensitivity` clip norms.
            orders: Orders above 1, ascending.
        """


@dataclasses.dataclass(frozen=True)
class PoissonCohorts:
    """Each client participates in each round independently, with probability q.

    Attributes:
        clients: Number N of clients in the population.
        expected_clients: Expected cohort size q N, above 0 and at most N.
    """

    clients: int
    expected_clients: float

    @property
    def relation(self) -> dp_accounting.NeighboringRelation:
        """See `CohortSampling.relation`."""
        return dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

    adjacency = ADD_OR_REMOVE
    accountants = (PLD, RDP)
    sensitivity = 1.0

    def __post_init__(self) -> None:
        _check_cohort(self.expected_clients, self.clients)

    @property
    def rate(self) -> float:
        """Returns the sampling rate q."""
        return float(self.expected_clients) / float(self.clients)

    @property
    def assumption(self) -> str:
        """See `CohortSampling.assumption`."""
        return (
            f"each round each of {self.clients} clients takes part by itself with probability "
            f"{self.rate:.6g}, and who took part stays secret"
        )

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """See `CohortSampling.event`."""
        gaussian = dp_accounting.GaussianDpEvent(float(noise_multiplier))
        if self.rate == 1:
            return gaussian
        return dp_accounting.PoissonSampledDpEvent(self.rate, gaussian)


class _WithoutReplacement:
    """Base class of schemes that draw a fixed number of clients without replacement.

    Neighbours differ by one replaced client, so a sum may change by two clip norms. The event's
    multiplier is half the noise multiplier, because dp-accounting computes Theorem 27 of Wang,
    Balle, Kasiviswanathan 2019, in which noise is relative to the release's sensitivity.
    """

    clients_per_round: int

    @property
    def relation(self) -> dp_accounting.NeighboringRelation:
        """See `CohortSampling.relation`."""
        return dp_accounting.NeighboringRelation.REPLACE_ONE

    accountants = (RDP,)
    sensitivity = 2.0

    @property
    def _densest(self) -> tuple[int, int]:
        """Numbers of drawn clients and of all clients in the stratum with the largest rate."""
        raise NotImplementedError

    @property
    def rate(self) -> float:
        """Returns the maximum probability that a client is drawn."""
        drawn, clients = self._densest
        return float(drawn) / float(clients)

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """Returns one round's release for a client with the maximum probability of being drawn."""
        drawn, clients = self._densest
        gaussian = dp_accounting.GaussianDpEvent(float(noise_multiplier) / self.sensitivity)
        return dp_accounting.SampledWithoutReplacementDpEvent(int(clients), int(drawn), gaussian)

    def participations(self, rounds: int) -> int:
        """Returns `rounds`, as every round draws from all clients."""
        return rounds

    def amplified(self, divergence: Divergence, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences, amplified by a draw without replacement."""
        return sampled_without_replacement(divergence, self.rate, orders)


@dataclasses.dataclass(frozen=True)
class FixedSizeCohorts(_WithoutReplacement):
    """Each round draws exactly `clients_per_round` clients.

    Attributes:
        clients: Number N of clients in the population.
        clients_per_round: Number of clients in each cohort, from 1 to N.
    """

    clients: int
    clients_per_round: int

    adjacency = REPLACE_ONE

    def __post_init__(self) -> None:
        _check_cohort(self.clients_per_round, self.clients)

    @property
    def _densest(self) -> tuple[int, int]:
        return self.clients_per_round, self.clients

    @property
    def assumption(self) -> str:
        """See `CohortSampling.assumption`."""
        return (
            f"each round draws {self.clients_per_round} of {self.clients} clients uniformly "
            "without replacement, and who took part stays secret"
        )


@dataclasses.dataclass(frozen=True)
class StratifiedCohorts(_WithoutReplacement):
    """Each round draws from each stratum in proportion to its size, randomly rounded up or down.

    The account assumes the largest sampling rate of any stratum for every client. If rounds draw
    all clients of one stratum, the account therefore includes no amplification.

    Attributes:
        strata: Number of clients in each stratum, at least 1.
        clients_per_round: Number of clients in each cohort.
    """

    strata: tuple[int, ...]
    clients_per_round: int

    adjacency = "replace one client by another of the same stratum"

    def __post_init__(self) -> None:
        if not self.strata or min(self.strata) < 1:
            raise UserError(f"strata: expected clients in each, found {self.strata}")
        _check_cohort(self.clients_per_round, sum(self.strata))

    @property
    def _densest(self) -> tuple[int, int]:
        total = sum(self.strata)
        # Use integer arithmetic, so that an integer quotient is not rounded up.
        places = [(-(-size * self.clients_per_round // total), size) for size in self.strata]
        return max(places, key=lambda pair: pair[0] / pair[1])

    @property
    def assumption(self) -> str:
        """See `CohortSampling.assumption`."""
        return (
            f"each round draws {self.clients_per_round} of {sum(self.strata)} clients in "
            f"{len(self.strata)} strata, uniformly within each and at most {self.rate:.6g} of it; "
            "who took part stays secret, the sizes of strata do not"
        )


@dataclasses.dataclass(frozen=True)
class SecretCohorts:
    """M clients report in each round; a secret coin decides whether a client's values become zeros.

    Every reporting client adds noise, so a client excluded by its coin looks like a client with
    zero values. The bound for Poisson cohorts therefore applies, with the coin's probability c / M.
    The bound does not apply if a cohort's size is public: see `CountedCohorts`.

    Attributes:
        clients: Number N of clients in the population.
        answering: Number M of clients that report in a round; they report in a public, cyclic
            order.
        expected_clients: Expected number c of reporting clients whose values are not replaced by
            zeros.
    """

    clients: int
    answering: int
    expected_clients: float

    adjacency = ZERO_OUT
    sensitivity = 1.0

    def __post_init__(self) -> None:
        check_answering(self.clients, self.answering, self.expected_clients)

    @property
    def rate(self) -> float:
        """Returns the probability that a reporting client participates."""
        return float(self.expected_clients) / float(self.answering)

    @property
    def assumption(self) -> str:
        """See `CohortSampling.assumption`."""
        in_turns = "" if self.answering == self.clients else f" of {self.clients}, in turns,"
        return (
            f"{self.answering} clients{in_turns} answer each round with noise; each takes part by "
            f"itself with probability {self.rate:.6g} and sends zeros otherwise, and which of the "
            "two stays secret"
        )

    def participations(self, rounds: int) -> int:
        """Returns in how many of `rounds` rounds a client reports at most."""
        return math.ceil(rounds / (self.clients // self.answering))

    def amplified(self, divergence: Divergence, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences, amplified by the secret coin."""
        return poisson_sampled(divergence, self.rate, orders)


@dataclasses.dataclass(frozen=True)
class KnownCohorts:
    """The server chooses and knows the reporting clients, so sampling does not amplify privacy.

    The account is for one client, and counts only the rounds in which this client reports.
    """

    adjacency = ZERO_OUT
    sensitivity = 1.0
    assumption = "the server knows who takes part in a round, and rounds are those of one client"

    def participations(self, rounds: int) -> int:
        """Returns `rounds`."""
        return rounds

    def amplified(self, divergence: Divergence, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences unchanged."""
        return divergence(orders)


@dataclasses.dataclass(frozen=True)
class CountedCohorts:
    """Poisson cohorts with a public size, because excluded clients do not report.

    Given its size n, a cohort is a draw of n clients without replacement, and n does not depend on
    the clients' values. The pair (n, release) therefore has the divergence log(E_n exp((a - 1)
    D_a(n))) / (a - 1) at order a. To save time, sizes are grouped, and each size counts as the
    largest of its group.

    Attributes:
        clients: Number N of clients in the population.
        expected_clients: Expected number c of clients in a cohort.
        min_clients: Minimum cohort size; sums over smaller cohorts are discarded.
    """

    clients: int
    expected_clients: float
    min_clients: int

    adjacency = REPLACE_ONE
    sensitivity = 2.0

    def __post_init__(self) -> None:
        _check_cohort(self.expected_clients, self.clients)

    @property
    def assumption(self) -> str:
        """See `CohortSampling.assumption`."""
        return (
            f"each round each of {self.clients} clients takes part by itself with probability "
            f"{self.expected_clients / self.clients:.6g}; who took part stays secret, how many did "
            "does not"
        )

    def participations(self, rounds: int) -> int:
        """Returns `rounds`, as every round draws from all clients."""
        return rounds

    def amplified(self, divergence: Divergence, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences of releasing a sum and its cohort's size."""
        sizes = scipy.stats.binom(self.clients, self.expected_clients / self.clients)
        # The first term is for cohorts whose sum is discarded: it has a divergence of 0.
        below = self.min_clients - 1
        terms = [np.full(len(orders), sizes.logcdf(below))]
        for size in self._sizes():
            share = sizes.sf(below) - sizes.sf(size)
            # If float64 rounds the probability to 0, use Chernoff's bound for all larger sizes.
            log_share = math.log(share) if share > 0 else self._log_tail(below + 1)
            divergences = sampled_without_replacement(divergence, size / self.clients, orders)
            terms.append(log_share + (orders - 1) * divergences)
            below = size
        return np.array([log_sum(column) for column in np.array(terms).T]) / (orders - 1)

    def _sizes(self) -> list[int]:
        """Returns the largest size of each group, ascending; the last one is N."""
        deviation = math.sqrt(self.expected_clients)
        near = self.expected_clients + deviation * np.arange(-2, 8.5, 0.5)
        far = near[-1] * 1.3 ** np.arange(1, 1 + math.log(self.clients, 1.3))
        sizes = {math.ceil(size) for size in (*near, *far) if size < self.clients}
        return sorted(size for size in {*sizes, self.clients} if size >= self.min_clients)

    def _log_tail(self, size: int) -> float:
        """Bounds log P(n >= size) by c x - size log(1 + x), where size = c (1 + x)."""
        excess = size / self.expected_clients - 1
        if excess <= 0:
            return 0.0
        return self.expected_clients * excess - size * math.log1p(excess)


@dataclasses.dataclass(frozen=True)
class EveryClient:
    """Every client is in each release, as in evaluations on all test clients.

    Attributes:
        adjacency: How neighbouring client populations differ, as text. It must equal the adjacency
            of mechanisms with which this one is composed.
        sensitivity: Maximum change of a sum between neighbouring populations, in clip norms.
    """

    adjacency: str = ADD_OR_REMOVE
    sensitivity: float = 1.0

    @property
    def relation(self) -> dp_accounting.NeighboringRelation:
        """See `CohortSampling.relation`."""
        # Any relation is valid, as the event's multiplier includes the sensitivity.
        return dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

    accountants = (PLD, RDP)
    rate = 1.0
    assumption = (
        "the choice of evaluated clients depends on no client's data, and absent clients add zeros"
    )

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """See `CohortSampling.event`."""
        return dp_accounting.GaussianDpEvent(float(noise_multiplier) / self.sensitivity)


@dataclasses.dataclass(frozen=True)
class SecretParticipation(Options):
    """Poisson cohorts in which clients excluded by the coin also report.

    Excluded clients send zeros with their share of the noise, so that it stays secret which clients
    participate, and how many.

    Attributes:
        answering: Number M of clients that report in each round, in a public, cyclic order; all
            clients if None.
        min_clients: Minimum number of clients with noise; a sum over fewer is discarded. All
            reporting clients if None.
    """

    answering: Optional[Annotated[int, Within(least=1)]] = None
    min_clients: Optional[Annotated[int, Within(least=1)]] = None


@dataclasses.dataclass(frozen=True)
class PublicParticipation(Options):
    """Cohorts with a public number of clients: only drawn clients report.

    Attributes:
        min_clients: Minimum number of clients with noise; a sum over fewer is discarded. If None,
            all clients of a fixed-size cohort, or c - 2 sqrt(c) for Poisson cohorts with c clients
            on average.
    """

    min_clients: Optional[Annotated[int, Within(least=1)]] = None


class NoisyCohorts(NamedTuple):
    """The clients that add a round's noise.

    Attributes:
        sampling: Sampling scheme of the cohorts, including what is public about it.
        noise_clients: Number of clients among which the noise is divided.
        min_clients: Minimum number of clients with noise.
    """

    sampling: IntegerSampling
    noise_clients: int
    min_clients: int


def noisy_cohorts(
    sampling: CohortSampling,
    participation: Union[SecretParticipation, PublicParticipation],
    needed: int = 1,
) -> NoisyCohorts:
    """Returns the clients that add a round's noise.

    Args:
        sampling: Sampling scheme of the cohorts.
        participation: Whether participation in Poisson cohorts is secret.
        needed: Lower bound on the resulting `min_clients`.
    """
    drawn_cohorts: Any = sampling
    if not isinstance(sampling, PoissonCohorts):
        if isinstance(participation, SecretParticipation) and participation.answering is not None:
            raise participation.error(
                "answering", "none with cohorts of a fixed size, whose clients all answer"
            )
        assert isinstance(sampling, _WithoutReplacement)
        noise_clients = default_min = sampling.clients_per_round
    elif isinstance(participation, SecretParticipation):
        noise_clients = default_min = participation.answering or sampling.clients
        drawn_cohorts = SecretCohorts(sampling.clients, noise_clients, sampling.expected_clients)
    else:
        noise_clients = round(sampling.expected_clients)
        # This minimum discards few sums: a Poisson cohort is more than two standard deviations
        # below its mean size in only 2 of 100 rounds.
        default_min = max(1, math.floor(noise_clients - 2 * math.sqrt(noise_clients)))
    given = participation.min_clients
    least = max(default_min if given is None else given, needed)
    if least > noise_clients:
        raise participation.error(
            "min_clients", f"at most {noise_clients}, the clients that answer a round", least
        )
    if isinstance(drawn_cohorts, PoissonCohorts):
        drawn_cohorts = CountedCohorts(drawn_cohorts.clients, drawn_cohorts.expected_clients, least)
    return NoisyCohorts(drawn_cohorts, noise_clients, least)


def check_answering(clients: int, answering: int, expected_clients: float) -> None:
    """Raises OptionError unless `answering` is between `expected_clients` and `clients`."""
    _check_cohort(expected_clients, clients)
    if not expected_clients <= answering <= clients:
        raise OptionError(
            "answering",
            f"from {expected_clients:g}, the clients of a round, to {clients}, all clients",
            answering,
            SecretParticipation,
        )


def _check_cohort(drawn: float, clients: int) -> None:
    if not (math.isfinite(drawn) and 0 < drawn <= clients):
        expected = f"more than 0 and at most {clients}, the number of clients"
        raise OptionError("clients_per_round", expected, Verbatim(f"{drawn:g}"))


# Functions that map (number of clients, clients per round) to a sampling scheme.
COHORT_SAMPLINGS: Registry[Callable[[int, int], CohortSampling]] = Registry(
    "cohort sampling",
    {"poisson": PoissonCohorts, "fixed_size": FixedSizeCohorts, "uniform": FixedSizeCohorts},
)
