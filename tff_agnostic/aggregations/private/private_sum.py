"""Sums with client-level differential privacy: answers are clipped, and their sum has noise."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, ClientFacts, Guarantee
from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.aggregations.private.noise import Noise, NoisedGroup, Release, gaussian
from tff_agnostic.aggregations.private.private_release import (
    PrivateRelease,
    PrivateState,
    Released,
)

_OF_PLAIN_SUMS = (
    "plain sums add float32 numbers, whose roundings depend on every client and are in no account: "
    "secure sums add whole numbers"
)


@dataclasses.dataclass(frozen=True)
class PrivateSum(PrivateRelease):
    """Clips what clients answer, sums it, and adds noise on the server.

    Attributes:
        noise: The kind of noise.
    """

    noise: Noise = gaussian

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Those of the inner sum, and that clients learn nothing of the noise."""
        return self.inner.guarantees | {Guarantee.SECRET_NOISE}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Returns that sums of float32 are rounded, where nothing else is."""
        is_of_floats = Guarantee.SECURE_SUMS not in self.inner.guarantees
        return (_OF_PLAIN_SUMS,) if self.generator.is_exact and is_of_floats else ()

    @property
    def min_clients(self) -> int:
        """The fewest clients of a sum."""
        return self.inner.min_clients

    def on_clients(self) -> Aggregation:
        """Returns it without the key, which processes that run clients need not have."""
        inner = self.inner.on_clients()
        return dataclasses.replace(self, inner=inner, noise_key=(), noise_multiplier=0.0)

    def initialize(self, bounds: Any) -> PrivateState:
        """Returns the state before the first sum.

        Raises:
            UserError: If the generator cannot make so much noise.
        """
        z = self.noise_multiplier
        self.generator.check([z * factor for factor in self.noise_factors(bounds)])
        return super().initialize(bounds)

    def secrets(self, state: PrivateState) -> list[Any]:
        """Returns the key."""
        return [state.noise_key, *self.inner.secrets(())]

    def rounding(self, bound: Bound) -> float:
        """Returns that of the inner sum."""
        return self.inner.rounding(bound)

    def client_params(self, state: PrivateState) -> Any:
        """Returns the clip norms."""
        return state.clip_norms

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Clips an answer, and encodes it for the inner sum."""
        rounding = [self.inner.rounding(bound) for bound in tf.nest.flatten(bounds)]
        released = self.clipped(params, output, bounds, rounding)
        # How many examples were left out is no part of the release.
        facts = client._replace(examples_cut=tf.zeros_like(client.examples_cut))
        return self.inner.encode((), released, self.released_bounds(bounds), facts)

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """Returns the inner sum."""
        return self.inner.federated_sum(encoded, self.released_bounds(bounds))

    def noisy_sums(
        self, state: PrivateState, summed: Any, bounds: Any
    ) -> tuple[Released, list[tf.Tensor]]:
        """Adds noise to what the inner sum has; returns the deviation of each value's, too."""
        inner = self.inner.exact() if self.generator.is_exact else self.inner
        _, released, _ = inner.decode((), summed, self.released_bounds(bounds))
        values = [tf.cast(value, tf.float64) for value in tf.nest.flatten(released)]
        limits, factors = self.group_limits(state.clip_norms, bounds), self.noise_factors(bounds)
        groups = [
            NoisedGroup(group.positions, state.noise_multiplier * factor, limit)
            for group, limit, factor in zip(self.groups(bounds), limits, factors)
        ]
        release = Release(state.noise_key, self.exchange, state.releases)
        values, deviations = self.generator.add_noise(self.noise, release, values, groups)
        return tf.nest.pack_sequence_as(released, values), deviations

    def decode(
        self, state: PrivateState, summed: Any, bounds: Any
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """Adds noise, and returns what is made of noisy sums."""
        return self.finished(state, *self.noisy_sums(state, summed, bounds), bounds)
