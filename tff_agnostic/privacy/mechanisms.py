"""Mechanisms as accountants see them: the interface, and Gaussian noise of the server.

A mechanism is what a run releases about one population of clients, round by round. `CentralNoise`
is noise on sums over sampled cohorts, `TreeNoise` on a tree of sums; `distributed` has the noise
that clients add.

A release is divided into groups of values, each clipped and noised alone. A group g with
sensitivity c_g gets Gaussian noise of standard deviation z_g c_g. All groups of a round together
are one Gaussian mechanism of noise multiplier z_eff = (sum_g z_g^-2)^(-1/2) (McMahan and Andrew
2018, section 3). So with z_g = z / sqrt(w_g), and shares w_g that add up to 1, the whole release
has the multiplier z.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from tff_agnostic.base.later import dp_accounting
from tff_agnostic.privacy.amplification import poisson_sampled_gaussian
from tff_agnostic.privacy.sampling import PLD, RDP, CohortSampling, PoissonCohorts
from tff_agnostic.privacy.tree import Participations, squared_sensitivity

# Losses are rounded up to multiples of the interval, so that epsilon is never too small. For the
# settings of tests/privacy its relative error was at most 4e-4. A smaller interval takes seconds a
# round.
_INTERVAL, _COARSE_INTERVAL = 3e-4, 1e-3
# Below this noise multiplier losses are so large that the coarse interval is enough.
_COARSE_BELOW = 0.7
# Least noise multiplier of a run: with less, epsilon is in the thousands and guarantees nothing.
LEAST_NOISE = 2.0**-6

# `privacy_loss_distribution.PrivacyLossDistribution`: dp-accounting has no types.
PrivacyLoss = Any


class Mechanism(Protocol):
    """A release that is repeated, each time about another cohort of one client population."""

    @property
    def accountants(self) -> tuple[str, ...]:
        """Names of the accountants that apply, the default first."""

    @property
    def noise_multiplier(self) -> float:
        """Z of the whole release: standard deviation of the noise per clip norm."""

    @property
    def adjacency(self) -> str:
        """How neighbouring client populations differ."""

    @property
    def sensitivity(self) -> float:
        """By how many clip norms neighbouring populations may differ in the sum of everybody."""

    @property
    def assumption(self) -> str:
        """The assumption, a sentence without full stop."""

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the Renyi divergence of so many releases at each order."""

    def interval(self, rounds: int) -> float:
        """Returns the width to whose multiples privacy losses of so many releases are rounded up.

        Mechanisms without `PLD` among their accountants leave this method and the next one as they
        are.
        """
        raise TypeError(f"expected a mechanism with {PLD}, found {self}")

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Returns the distribution of the privacy loss of so many releases, at least one.

        Args:
            interval: Width of the grid of losses; only losses on one grid can be composed.
        """
        raise TypeError(f"expected a mechanism with {PLD}, found {self}")


@dataclasses.dataclass(frozen=True)
class CentralNoise:
    """Gaussian noise that a trusted server adds to a sum over a sampled cohort.

    Attributes:
        noise_multiplier: z of the whole release: `effective_noise_multiplier` of its groups.
        sampling: How cohorts are drawn.
    """

    noise_multiplier: float
    sampling: CohortSampling

    @property
    def accountants(self) -> tuple[str, ...]:
        """Returns the accountants of the sampling."""
        return self.sampling.accountants

    @property
    def adjacency(self) -> str:
        """Returns the sampling's."""
        return self.sampling.adjacency

    @property
    def sensitivity(self) -> float:
        """Returns the sampling's: 2 where a client takes another one's place."""
        return self.sampling.sensitivity

    @property
    def assumption(self) -> str:
        """Returns the sampling's."""
        return self.sampling.assumption

    def event(self, rounds: int) -> dp_accounting.DpEvent:
        """Returns so many rounds as dp-accounting describes them."""
        return dp_accounting.SelfComposedDpEvent(
            self.sampling.event(float(self.noise_multiplier)), rounds
        )

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the divergences that dp-accounting has for the event."""
        return rounds * _gaussian_rdp(self, orders)

    def interval(self, rounds: int) -> float:
        """Returns a coarser one for little noise."""
        of_all = self.sampling.rate == 1
        return _interval(self._of_all(rounds) if of_all else float(self.noise_multiplier))

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Returns the loss of Poisson cohorts, or of all clients: only these have `PLD`."""
        if self.sampling.rate == 1:
            return _gaussian_loss(self._of_all(rounds), interval)
        z = float(self.noise_multiplier)
        return _sampled_loss(z, self.sampling.rate, interval).self_compose(rounds)

    def _of_all(self, rounds: int) -> float:
        """Returns z of the single Gaussian release that equals so many about all clients."""
        return float(self.noise_multiplier) / self.sampling.sensitivity / math.sqrt(rounds)


@dataclasses.dataclass(frozen=True)
class TreeNoise:
    """Gaussian noise on the nodes of a tree over the rounds (DP-FTRL), without any sampling.

    rho of zero-concentrated privacy is `squared_sensitivity` / (2 z^2). Renyi divergences are rho
    times the order: that is the published account of DP-FTRL, and the default. For a fixed pattern
    of participations, nodes are Gaussian releases of fixed sensitivities. Their composition is one
    Gaussian release (Dong, Roth, Su 2019, Corollary 3.3), so `PLD` applies as well.

    Attributes:
        noise_multiplier: z of the whole release: `effective_noise_multiplier` of its groups, all
            of which are summed in such trees.
        participations: When a client may take part.
    """

    noise_multiplier: float
    participations: Participations

    accountants = (RDP, PLD)
    adjacency = "exchange all contributions of one client for zeros"
    sensitivity = 1.0

    @property
    def assumption(self) -> str:
        """Returns the bound on how often clients take part."""
        return self.participations.assumption

    def rho(self, rounds: int) -> float:
        """Returns rho of zero-concentrated privacy."""
        if self.noise_multiplier == 0:
            return math.inf
        square = squared_sensitivity(self.participations, rounds)
        return square / (2 * float(self.noise_multiplier) ** 2)

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns rho times the order."""
        return self.rho(rounds) * np.array(orders)

    def interval(self, rounds: int) -> float:
        """Returns a coarser one for little noise."""
        return _interval(self._of_all(rounds))

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Returns that of one Gaussian release."""
        return _gaussian_loss(self._of_all(rounds), interval)

    def _of_all(self, rounds: int) -> float:
        return 1 / math.sqrt(2 * self.rho(rounds))


@functools.lru_cache(maxsize=32)
def _gaussian_rdp(mechanism: CentralNoise, orders: tuple[float, ...]) -> np.ndarray:
    sampling, wanted = mechanism.sampling, np.array(orders)
    is_poisson = isinstance(sampling, PoissonCohorts) and sampling.rate < 1
    between = (wanted % 1 != 0) & is_poisson
    found = np.empty(len(wanted))
    accountant = dp_accounting.rdp.RdpAccountant(wanted[~between].tolist(), sampling.relation)
    found[~between] = accountant.compose(mechanism.event(1)).rdp
    if between.any():
        z = float(mechanism.noise_multiplier)
        found[between] = poisson_sampled_gaussian(z, sampling.rate, wanted[between])
    return found


# One round's loss takes longest to compute; the loss of any number of rounds is composed of it.
@functools.lru_cache(maxsize=8)
def _sampled_loss(noise_multiplier: float, rate: float, interval: float) -> PrivacyLoss:
    """Returns what dp-accounting's `from_gaussian_mechanism` returns, in a sixth of the time.

    The library inverts the privacy loss at one point of the grid after the other, tens of thousands
    of them. Here that is one expression on arrays, and the library does everything else.
    """
    pld = dp_accounting.pld
    kinds = pld.privacy_loss_mechanism.AdjacencyType

    def masses(removed: bool) -> Any:
        loss = pld.privacy_loss_mechanism.GaussianPrivacyLoss(
            noise_multiplier,
            sampling_prob=rate,
            adjacency_type=kinds.REMOVE if removed else kinds.ADD,
        )
        bounds = loss.connect_dots_bounds()
        lower = math.floor(bounds.epsilon_lower / interval)
        upper = math.ceil(bounds.epsilon_upper / interval)
        epsilons = np.arange(lower, upper + 1) * interval
        return pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            interval, lower, upper, _sampled_deltas(loss, epsilons, removed)
        )

    return pld.privacy_loss_distribution.PrivacyLossDistribution(masses(True), masses(False))


def _sampled_deltas(loss: Any, epsilons: np.ndarray, removed: bool) -> np.ndarray:
    """Returns delta of one round at each epsilon: P(x <= c) - e^epsilon Q(x <= c).

    The release is x, P and Q are its distributions with and without the client (or the other way
    round), and c is where the privacy loss is epsilon (Balle and Wang 2018, theorem 5).

    Args:
        loss: dp-accounting's `GaussianPrivacyLoss` with a sampling rate q below 1.
        epsilons: Ascending.
        removed: Whether the client is in P.
    """
    q, variance = loss.sampling_prob, loss.standard_deviation**2
    sign = 1.0 if removed else -1.0
    # Without the client in Q no loss is below log(1 - q), and otherwise none above -log(1 - q).
    deltas = np.maximum(-np.expm1(epsilons), 0.0)
    inside = sign * epsilons > math.log1p(-q)
    # Of the release without sampling: log(1 + (e^epsilon - 1) / q) has to be its loss.
    scaled = sign * epsilons[inside] - math.log(q)
    unsampled = sign * (scaled + np.log1p(-np.exp(math.log1p(-q) - math.log(q) - scaled)))
    cutoffs = -variance * unsampled - sign / 2
    deltas[inside] = loss.mu_upper_cdf(cutoffs) - np.exp(
        epsilons[inside] + loss.mu_lower_log_cdf(cutoffs)
    )
    clipped: np.ndarray = np.clip(deltas, 0.0, 1.0)
    return clipped


def _gaussian_loss(noise_multiplier: float, interval: float) -> PrivacyLoss:
    return dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, value_discretization_interval=interval
    )


def _interval(noise_multiplier: float) -> float:
    return _INTERVAL if noise_multiplier >= _COARSE_BELOW else _COARSE_INTERVAL


def effective_noise_multiplier(noise_multipliers: Iterable[float]) -> float:
    """Returns z_eff = (sum_g z_g^-2)^(-1/2) of independent Gaussian releases about one cohort.

    A group without noise makes it 0.
    """
    # dp-accounting counts only the first of several multipliers that are NumPy's numbers.
    multipliers = [float(z) for z in noise_multipliers]
    if min(multipliers) <= 0:
        return 0.0
    return math.fsum(z**-2 for z in multipliers) ** -0.5
