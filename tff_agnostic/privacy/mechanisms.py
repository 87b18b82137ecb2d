"""Privacy mechanisms: the interface for accountants, and Gaussian noise from the server.

A mechanism describes a run's releases about one client population. `CentralNoise` adds noise to
sums over sampled cohorts, and `TreeNoise` to a tree of sums; `distributed` defines noise that
clients add.

A release is divided into groups of values, which are clipped and noised separately. A group g with
sensitivity c_g gets Gaussian noise of standard deviation z_g c_g. All groups of a round together
are one Gaussian mechanism with the noise multiplier z_eff = (sum_g z_g^-2)^(-1/2) (McMahan and
Andrew 2018, section 3). With z_g = z / sqrt(w_g), and shares w_g that sum to 1, the complete
release has the multiplier z.
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

# Width of the grid to which privacy losses are rounded up, so that epsilon is never too small. In
# tests/privacy, epsilon's relative error is at most 4e-4. Smaller widths take seconds per round.
_INTERVAL, _COARSE_INTERVAL = 3e-4, 1e-3
# Noise multiplier below which privacy losses are so large that the coarse width suffices.
_COARSE_BELOW = 0.7
# Minimum noise multiplier of a run: with less, epsilon is in the thousands and guarantees nothing.
MIN_NOISE = 2.0**-6

# A `privacy_loss_distribution.PrivacyLossDistribution`; dp-accounting has no type annotations.
PrivacyLoss = Any


class Mechanism(Protocol):
    """A privacy mechanism that a run applies repeatedly, to cohorts of one client population."""

    @property
    def accountants(self) -> tuple[str, ...]:
        """Names of the accountants that apply, the default first."""

    @property
    def noise_multiplier(self) -> float:
        """Multiplier z of the complete release: standard deviation of the noise per clip norm."""

    @property
    def adjacency(self) -> str:
        """How neighbouring client populations differ."""

    @property
    def sensitivity(self) -> float:
        """Maximum change of a sum between neighbouring populations, in clip norms."""

    @property
    def assumption(self) -> str:
        """The clients' participation that epsilon assumes, as a sentence without full stop."""

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the Renyi divergence of `rounds` releases at each order."""

    def interval(self, rounds: int) -> float:
        """Returns the width of the grid to which privacy losses are rounded up.

        Like `privacy_loss`, it is called only for mechanisms whose accountants include `PLD`.
        """
        raise TypeError(f"expected a mechanism with {PLD}, found {self}")

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Returns the distribution of the privacy loss of `rounds` releases (at least 1).

        Args:
            interval: Width of the grid of losses; only losses on the same grid can be composed.
        """
        raise TypeError(f"expected a mechanism with {PLD}, found {self}")


@dataclasses.dataclass(frozen=True)
class CentralNoise:
    """Gaussian noise that a trusted server adds to a sum over a sampled cohort.

    Attributes:
        noise_multiplier: Noise multiplier z of the complete release: the
            `effective_noise_multiplier` of its groups.
        sampling: Sampling scheme of the cohorts.
    """

    noise_multiplier: float
    sampling: CohortSampling

    @property
    def accountants(self) -> tuple[str, ...]:
        """Returns the accountants of the sampling."""
        return self.sampling.accountants

    @property
    def adjacency(self) -> str:
        """Returns the sampling's adjacency."""
        return self.sampling.adjacency

    @property
    def sensitivity(self) -> float:
        """Returns the sampling's sensitivity: 2 if neighbours differ by a replaced client."""
        return self.sampling.sensitivity

    @property
    def assumption(self) -> str:
        """Returns the sampling's assumption."""
        return self.sampling.assumption

    def event(self, rounds: int) -> dp_accounting.DpEvent:
        """Returns `rounds` releases as an event of dp-accounting."""
        return dp_accounting.SelfComposedDpEvent(
            self.sampling.event(float(self.noise_multiplier)), rounds
        )

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """See `Mechanism.rdp`."""
        return rounds * _gaussian_rdp(self, orders)

    def interval(self, rounds: int) -> float:
        """Returns the width of the grid, which is coarser with little noise."""
        is_unsampled = self.sampling.rate == 1
        return _interval(
            self._single_multiplier(rounds) if is_unsampled else float(self.noise_multiplier)
        )

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """See `Mechanism.privacy_loss`; cohorts are Poisson, or all clients participate."""
        if self.sampling.rate == 1:
            return _gaussian_loss(self._single_multiplier(rounds), interval)
        z = float(self.noise_multiplier)
        return _sampled_loss(z, self.sampling.rate, interval).self_compose(rounds)

    def _single_multiplier(self, rounds: int) -> float:
        """Returns z of one Gaussian release equivalent to `rounds` releases about all clients."""
        return float(self.noise_multiplier) / self.sampling.sensitivity / math.sqrt(rounds)


@dataclasses.dataclass(frozen=True)
class TreeNoise:
    """Gaussian noise on the nodes of a tree over the rounds (DP-FTRL), without sampling.

    rho of zero-concentrated differential privacy is `squared_sensitivity` / (2 z^2). The Renyi
    divergence is rho times the order, which is the published account of DP-FTRL and the default.
    For a fixed pattern of participations, nodes are Gaussian releases with fixed sensitivities.
    Their composition is one Gaussian release (Dong, Roth, Su 2019, Corollary 3.3), so `PLD` also
    applies.

    Attributes:
        noise_multiplier: Noise multiplier z of the complete release: the
            `effective_noise_multiplier` of its groups, which must all be summed in such trees.
        participations: Limits on a client's participation.
    """

    noise_multiplier: float
    participations: Participations

    accountants = (RDP, PLD)
    adjacency = "exchange all contributions of one client for zeros"
    sensitivity = 1.0

    @property
    def assumption(self) -> str:
        """Returns the limits on a client's participation."""
        return self.participations.assumption

    def rho(self, rounds: int) -> float:
        """Returns rho of zero-concentrated differential privacy."""
        if self.noise_multiplier == 0:
            return math.inf
        square = squared_sensitivity(self.participations, rounds)
        return square / (2 * float(self.noise_multiplier) ** 2)

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns rho times the order."""
        return self.rho(rounds) * np.array(orders)

    def interval(self, rounds: int) -> float:
        """Returns the width of the grid, which is coarser with little noise."""
        return _interval(self._single_multiplier(rounds))

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Returns the privacy loss of the equivalent Gaussian release."""
        return _gaussian_loss(self._single_multiplier(rounds), interval)

    def _single_multiplier(self, rounds: int) -> float:
        return 1 / math.sqrt(2 * self.rho(rounds))


@functools.lru_cache(maxsize=32)
def _gaussian_rdp(mechanism: CentralNoise, orders: tuple[float, ...]) -> np.ndarray:
    sampling, order_array = mechanism.sampling, np.array(orders)
    is_poisson = isinstance(sampling, PoissonCohorts) and sampling.rate < 1
    between = (order_array % 1 != 0) & is_poisson
    divergences = np.empty(len(order_array))
    accountant = dp_accounting.rdp.RdpAccountant(order_array[~between].tolist(), sampling.relation)
    divergences[~between] = accountant.compose(mechanism.event(1)).rdp
    if between.any():
        z = float(mechanism.noise_multiplier)
        divergences[between] = poisson_sampled_gaussian(z, sampling.rate, order_array[between])
    return divergences


# Cache one round's privacy loss, which takes longest to compute; more rounds are composed from it.
@functools.lru_cache(maxsize=8)
def _sampled_loss(noise_multiplier: float, rate: float, interval: float) -> PrivacyLoss:
    """Returns the result of dp-accounting's `from_gaussian_mechanism` in a sixth of the time.

    The library inverts the privacy loss separately at each grid point, tens of thousands of times.
    Here one array expression does this; the library does everything else.
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

    Here x is the release, and P and Q are its distributions with and without the client, or vice
    versa. The point c has the privacy loss epsilon (Balle and Wang 2018, theorem 5).

    Args:
        loss: dp-accounting's `GaussianPrivacyLoss` with a sampling rate q below 1.
        epsilons: Epsilons, ascending.
        removed: Whether P includes the client.
    """
    q, variance = loss.sampling_prob, loss.standard_deviation**2
    sign = 1.0 if removed else -1.0
    # Privacy losses are above log(1 - q) if Q excludes the client; otherwise below -log(1 - q).
    deltas = np.maximum(-np.expm1(epsilons), 0.0)
    inside = sign * epsilons > math.log1p(-q)
    # Privacy loss of the release without sampling: log(1 + (e^epsilon - 1) / q).
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
    """Returns z_eff = (sum_g z_g^-2)^(-1/2) for independent Gaussian releases about one cohort.

    It is 0 if a group has no noise.
    """
    # Convert to float: dp-accounting counts only the first of several NumPy multipliers.
    multipliers = [float(z) for z in noise_multipliers]
    if min(multipliers) <= 0:
        return 0.0
    return math.fsum(z**-2 for z in multipliers) ** -0.5
