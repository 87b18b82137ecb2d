"""The release of a round in which clients add integer noise, and a secure sum adds them up."""

import dataclasses
import functools
import math

import numpy as np
from dp_accounting import NeighboringRelation

from tff_agnostic.privacy.amplification import poisson_sampled, sampled_without_replacement
from tff_agnostic.privacy.integer_noise import (
    INTEGER_NOISES,
    ROUNDING_BETA,
    rounded_sensitivity,
)
from tff_agnostic.privacy.mechanism import PrivacyLoss
from tff_agnostic.privacy.sampling import RDP, CohortSampling


@dataclasses.dataclass(frozen=True)
class IntegerGroup:
    """A group of values that clients send as noised integers.

    Attributes:
        noise_multiplier: z_g: clients' noise together, if as many come as are expected, per `clip`.
        clip: c_g, the clip norm in steps of the integer grid, before rounding.
        dimension: d_g, values of the group, those that a rotation adds among them.
    """

    noise_multiplier: float
    clip: float
    dimension: int


@dataclasses.dataclass(frozen=True)
class DistributedNoise:
    """Integer noise that clients add before a secure sum.

    Each client's has the variance (z_g c_g)^2 / `expected_clients`. Fewer clients bring less of it:
    what is claimed holds with `min_clients`, below which a round is to be refused.

    Attributes:
        groups: What is released.
        noise: A name of `INTEGER_NOISES`.
        sampling: How cohorts are drawn.
        expected_clients: For how many the noise of each is worked out.
        min_clients: How many there are at the least.
        beta: With which probability a rounding is too long, at the most; see `rounded_sensitivity`.
    """

    groups: tuple[IntegerGroup, ...]
    noise: str
    sampling: CohortSampling
    expected_clients: int
    min_clients: int
    beta: float = ROUNDING_BETA

    accountants = (RDP,)

    @property
    def noise_multiplier(self) -> float:
        """Returns z of the release with the expected clients, before rounding."""
        z = [float(group.noise_multiplier) for group in self.groups]
        return 0.0 if min(z) == 0 else math.fsum(x**-2 for x in z) ** -0.5

    @property
    def adjacency(self) -> str:
        """Returns what neighbours differ in: a client's noise is in the sum of both."""
        if self.sampling.relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
            return "exchange one client's values for zeros"
        return self.sampling.adjacency

    @property
    def assumption(self) -> str:
        """Returns the sampling's and how many clients there are."""
        return (
            f"{self.sampling.assumption}; at least {self.min_clients} clients of a round add their "
            "noise, of which their number does not stay secret"
        )

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the sum over groups of the noise's divergences, with the cohort's sampling."""
        if self.noise_multiplier == 0:
            return np.full(len(orders), np.inf) if rounds else np.zeros(len(orders))
        return rounds * _distributed_rdp(self, orders)

    def interval(self, rounds: int) -> float:
        """Raises an error, as `privacy_loss` does."""
        raise NotImplementedError(f"privacy loss of {rounds} rounds of {self.noise}")

    def privacy_loss(self, rounds: int, interval: float) -> PrivacyLoss:
        """Raises an error: only bounds of the divergences are known."""
        raise NotImplementedError(f"privacy loss of {rounds} rounds of {self.noise}")

    def release_rdp(self, orders: np.ndarray) -> np.ndarray:
        """Returns the divergences of one release about a known cohort.

        Args:
            orders: Orders above 1.
        """
        noise, total = INTEGER_NOISES[self.noise], np.zeros(len(orders))
        for group in self.groups:
            sensitivity = rounded_sensitivity(group.clip, group.dimension, self.beta)
            variance = (float(group.noise_multiplier) * group.clip) ** 2 / self.expected_clients
            total += noise(
                sensitivity.times(self.sampling.sensitivity),
                variance,
                self.min_clients,
                group.dimension,
                orders,
            )
        return total


@functools.lru_cache(maxsize=32)
def _distributed_rdp(mechanism: DistributedNoise, orders: tuple[float, ...]) -> np.ndarray:
    is_poisson = mechanism.sampling.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    sampled = poisson_sampled if is_poisson else sampled_without_replacement
    return sampled(mechanism.release_rdp, mechanism.sampling.rate, np.array(orders))
