"""Integer noise that clients add before a secure sum: its mechanism and Renyi divergences.

All quantities are in steps of the integer grid. With the l2 and l1 sensitivities D2 and D1, and
noise of variance mu in the complete sum, the divergence at order a is at most

- Skellam (Agarwal, Kairouz, Liu 2021, Theorem 3.5):
  a D2^2 / (2 mu) + min( ((2a - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu) );
- discrete Gaussian of n clients (Kairouz, Liu, Steinke 2021, Theorem 1): with D1 and D2 divided by
  sqrt(mu), the minimum of a D2^2/2 + tau d, (a/2)(D2^2 + 2 D1 tau + tau^2 d) and (a/2)(D2 + sqrt(d)
  tau)^2. A sum of discrete Gaussians is not a discrete Gaussian; tau, in `discrete_gaussian`,
  bounds the difference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple, Protocol

import numpy as np

from tff_agnostic.base.registry import Registry
from tff_agnostic.privacy.mechanisms import Mechanism, effective_noise_multiplier
from tff_agnostic.privacy.sampling import RDP, IntegerSampling

# Maximum probability that rounding makes a client's vector too long.
ROUNDING_BETA = math.exp(-8)
# Maximum number of terms of tau to compute; the last computed term bounds the others.
_MAX_TERMS = 2**20


class Sensitivity(NamedTuple):
    """Sensitivity of an integer vector: maximum l2 and l1 distances between neighbours."""

    l2: float
    l1: float

    def times(self, factor: float) -> Sensitivity:
        """Returns the sensitivity of the vector scaled by a factor."""
        return Sensitivity(factor * self.l2, factor * self.l1)


class IntegerNoise(Protocol):
    """Computes Renyi divergences of integer noise, at orders above 1."""

    def __call__(
        self,
        sensitivity: Sensitivity,
        local_variance: float,
        num_clients: int,
        dimension: int,
        orders: np.ndarray,
    ) -> np.ndarray:
        """Returns the divergence at each order.

        Args:
            local_variance: Variance of the noise that each client adds to each value, above 0.
            num_clients: Number of clients with noise in the sum.
            dimension: Number d of values in the vector.
        """


def rounded_sensitivity(clip: float, dimension: int, beta: float) -> Sensitivity:
    """Returns the sensitivity of a clipped vector after stochastic rounding.

    Clients do not send rounded vectors that are longer (Kairouz, Liu, Steinke 2021, Proposition
    22). The l1 norm of an integer vector is at most its squared l2 norm.

    Args:
        clip: Clip norm c before rounding, in steps.
        dimension: Number d of values in the vector.
        beta: Maximum probability that a rounded vector is too long, above 0.
    """
    root = math.sqrt(dimension)
    unlikely = math.sqrt(2 * math.log(1 / beta)) * (clip + root / 2)
    l2 = min(clip + root, math.sqrt(clip**2 + dimension / 4 + unlikely))
    return Sensitivity(l2, l2 * min(root, l2))


def skellam(
    sensitivity: Sensitivity,
    local_variance: float,
    num_clients: int,
    dimension: int,
    orders: np.ndarray,
) -> np.ndarray:
    """Returns the divergences of Skellam noise; the sum of the clients' noise is Skellam noise."""
    del dimension
    mu = num_clients * float(local_variance)
    l2, l1 = sensitivity
    rest = np.minimum(((2 * orders - 1) * l2**2 + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu))
    return orders * l2**2 / (2 * mu) + rest


def discrete_gaussian(
    sensitivity: Sensitivity,
    local_variance: float,
    num_clients: int,
    dimension: int,
    orders: np.ndarray,
) -> np.ndarray:
    """Returns the divergences of a sum of discrete Gaussians."""
    mu = num_clients * float(local_variance)
    k = np.arange(1, min(num_clients, _MAX_TERMS + 1))
    # tau = 10 sum_{k < n} exp(-2 pi^2 sigma^2 k / (k + 1)); the terms decrease.
    terms = np.exp(-2 * math.pi**2 * float(local_variance) * k / (k + 1))
    rest = (num_clients - 1 - len(k)) * float(terms[-1]) if num_clients - 1 > len(k) else 0.0
    tau = 10 * (float(np.sum(terms)) + rest)
    l2, l1 = sensitivity.l2 / math.sqrt(mu), sensitivity.l1 / math.sqrt(mu)
    return np.min(
        [
            orders / 2 * l2**2 + tau * dimension,
            orders / 2 * (l2**2 + 2 * l1 * tau + tau**2 * dimension),
            orders / 2 * (l2 + math.sqrt(dimension) * tau) ** 2,
        ],
        axis=0,
    )


INTEGER_NOISES: Registry[IntegerNoise] = Registry(
    "distributed noise", {"skellam": skellam, "discrete_gaussian": discrete_gaussian}
)


@dataclasses.dataclass(frozen=True)
class IntegerGroup:
    """A group of values that clients send as noised integers.

    Attributes:
        noise_multiplier: Noise multiplier z_g: if the expected number of clients reports, their
            total noise has the standard deviation z_g times `clip`.
        clip: Clip norm c_g before rounding, in steps of the integer grid.
        dimension: Number d_g of values in the group, including padding for the rotation.
    """

    noise_multiplier: float
    clip: float
    dimension: int


@dataclasses.dataclass(frozen=True)
class DistributedNoise(Mechanism):
    """Integer noise that clients add before a secure sum.

    Each client's noise has the variance (z_g c_g)^2 / `noise_clients`. With fewer clients the total
    noise is smaller. Epsilon assumes at least `min_clients` clients, so the server must reject
    rounds with fewer.

    Attributes:
        groups: The groups of values in a release.
        noise: A name in `INTEGER_NOISES`.
        sampling: Sampling scheme of the cohorts, including what is public about it.
        noise_clients: Number of clients whose total noise has the groups' noise multipliers.
        min_clients: Minimum number of clients with noise.
        beta: Maximum probability that rounding makes a vector too long; see `rounded_sensitivity`.
    """

    groups: tuple[IntegerGroup, ...]
    noise: str
    sampling: IntegerSampling
    noise_clients: int
    min_clients: int
    beta: float = ROUNDING_BETA

    accountants = (RDP,)

    @property
    def noise_multiplier(self) -> float:
        """Returns z of the complete release with all clients' noise, before rounding."""
        return effective_noise_multiplier(group.noise_multiplier for group in self.groups)

    @property
    def adjacency(self) -> str:
        """Returns the sampling's adjacency, which the clients' noise does not change."""
        return self.sampling.adjacency

    @property
    def sensitivity(self) -> float:
        """Returns the sampling's sensitivity."""
        return self.sampling.sensitivity

    @property
    def assumption(self) -> str:
        """Returns the sampling's assumption, and the minimum number of clients."""
        return (
            f"{self.sampling.assumption}; at least {self.min_clients} clients of a round add their "
            "noise, and how many do is no secret"
        )

    def variance(self, group: IntegerGroup) -> float:
        """Returns the variance of one client's noise on each value of a group."""
        return (float(group.noise_multiplier) * group.clip) ** 2 / self.noise_clients

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the sum over groups of the noise's divergences, amplified by sampling."""
        if self.noise_multiplier == 0:
            return np.full(len(orders), np.inf) if rounds else np.zeros(len(orders))
        return self.sampling.participations(rounds) * _distributed_rdp(self, orders)

    def release_rdp(self, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences of one release about a known cohort.

        Args:
            orders: Orders above 1.
        """
        noise, total = INTEGER_NOISES[self.noise], np.zeros(len(orders))
        for group in self.groups:
            sensitivity = rounded_sensitivity(group.clip, group.dimension, self.beta)
            total += noise(
                sensitivity.times(self.sampling.sensitivity),
                self.variance(group),
                self.min_clients,
                group.dimension,
                orders,
            )
        return total


@functools.lru_cache(maxsize=32)
def _distributed_rdp(mechanism: DistributedNoise, orders: tuple[float, ...]) -> np.ndarray:
    return mechanism.sampling.amplified(mechanism.release_rdp, np.array(orders))
