"""The release of a round in which clients add integer noise, and a secure sum adds them up."""

import dataclasses
import functools
import math

import numpy as np

from tff_agnostic.privacy.integer_noise import (
    INTEGER_NOISES,
    ROUNDING_BETA,
    rounded_sensitivity,
)
from tff_agnostic.privacy.mechanism import PrivacyLoss
from tff_agnostic.privacy.sampling import RDP, IntegerSampling


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

    Each client's has the variance (z_g c_g)^2 / `noise_clients`. Fewer clients bring less of it:
    what is claimed holds with `min_clients`, below which a round is to be refused.

    Attributes:
        groups: What is released.
        noise: A name of `INTEGER_NOISES`.
        sampling: How cohorts are drawn, and what is known of them.
        noise_clients: For how many clients with noise that of each is worked out.
        min_clients: How many there are at the least.
        beta: With which probability a rounding is too long, at the most; see `rounded_sensitivity`.
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
        """Returns z of the release with all clients' noise, before rounding."""
        z = [float(group.noise_multiplier) for group in self.groups]
        return 0.0 if min(z) == 0 else math.fsum(x**-2 for x in z) ** -0.5

    @property
    def adjacency(self) -> str:
        """Returns what neighbours differ in: a client's noise is in the sum of both."""
        return self.sampling.adjacency

    @property
    def assumption(self) -> str:
        """Returns the sampling's and how many clients there are."""
        return (
            f"{self.sampling.assumption}; at least {self.min_clients} clients of a round add their "
            "noise, and how many do is no secret"
        )

    def rdp(self, rounds: int, orders: tuple[float, ...]) -> np.ndarray:
        """Returns the sum over groups of the noise's divergences, with the cohort's sampling."""
        if self.noise_multiplier == 0:
            return np.full(len(orders), np.inf) if rounds else np.zeros(len(orders))
        return self.sampling.participations(rounds) * _distributed_rdp(self, orders)

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
            variance = (float(group.noise_multiplier) * group.clip) ** 2 / self.noise_clients
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
    return mechanism.sampling.amplified(mechanism.release_rdp, np.array(orders))
