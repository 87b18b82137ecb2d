"""Sums with differential privacy of which nobody sees one without noise: clients add it.

A client scales each group of its clipped answer to a norm of c steps, rotates updates, rounds to
integers, adds its share of Skellam noise (Agarwal, Kairouz, Liu 2021), and submits them modulo a
power of two to a modular secure sum. The server takes the integers nearest zero, rotates back and
rescales. Rotating is of use for the many values of an update, of which it makes small ones; single
sums are sent as they are.

**In a simulation** all clients' noise is made of one key, which the server sends them, so that a
run can be repeated. Whoever knows the key can take the noise away, and clients know it: that is
sound where one process plays everybody. On a device the noise must be the device's own draw, and no
key be sent.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import ClientFacts, Guarantee
from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.aggregations.private.groups import Group
from tff_agnostic.aggregations.private.integers import (
    bits_of_sum,
    centred,
    residues,
    rounded,
    skellam,
)
from tff_agnostic.aggregations.private.options import DistributedOptions
from tff_agnostic.aggregations.private.private_release import (
    PrivateRelease,
    PrivateState,
    Released,
)
from tff_agnostic.aggregations.private.rotation import (
    padded_size,
    random_signs,
    rotated,
    rotated_back,
)
from tff_agnostic.computations.seeds import fold_in, uniform
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.integer_noise import ROUNDING_BETA, rounded_sensitivity
from tff_agnostic.quantities import Quantities, Quantity

# A vector of a norm at its bound is too long after one rounding in ten, about; shorter ones never.
_TRIES = 4
# int64 sums in a simulation: bits of a residue and of the number of clients together.
_MAX_BITS = 62
# Keep draws of one place apart.
_ROTATION, _ROUNDING = 1, 2


class ClientParams(NamedTuple):
    """What clients are sent.

    Attributes:
        clip_norms: Of each update.
        noise_key: What simulated clients draw their noise with; see the module.
        releases: How many sums were released.
        noise_multiplier: z.
    """

    clip_norms: tf.Tensor
    noise_key: tf.Tensor
    releases: tf.Tensor
    noise_multiplier: tf.Tensor


class Integers(NamedTuple):
    """What a client submits; int64 everywhere.

    Attributes:
        values: Residues, in the shapes of what is released; of a rotated group, its first ones.
        padding: The others of each rotated group.
        num_clients: 1, so that the server learns how many clients' noise the sum holds.
    """

    values: Released
    padding: list[tf.Tensor]
    num_clients: tf.Tensor


@dataclasses.dataclass(frozen=True)
class DistributedSum(PrivateRelease):
    """Clips what clients answer, and sums integers to which they added noise.

    It promises what the inner secure sum does. `Guarantee.SECRET_NOISE` is not claimed, which is
    about a server's key.

    Attributes:
        noise_multiplier: z; here equal sums have equal ones, as the number of bits is made of it.
        least_clients: Clients whose noise a sum must have: one of fewer is not looked at, and
            counts as the sum over no clients.
    """

    noise_multiplier: float
    least_clients: int = 1

    # A sum of too few is not looked at, and a Poisson cohort may be small by chance.
    min_clients = 0

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Those of the inner sum."""
        return self.inner.guarantees

    def on_clients(self) -> "DistributedSum":
        """Returns it without the key, which clients get with the message."""
        return dataclasses.replace(self, noise_key=(0, 0))

    def secrets(self, state: PrivateState) -> list[Any]:
        """Returns nothing: simulated clients are sent the key."""
        del state
        return []

    def rounding(self, bound: Bound) -> float:
        """Returns 0: rounding is part of the noise."""
        del bound
        return 0.0

    def client_params(self, state: PrivateState) -> ClientParams:
        """Returns the clip norms, and what simulated noise is made of."""
        return ClientParams(
            state.clip_norms, state.noise_key, state.releases, state.noise_multiplier
        )

    def sizes(self, encoded: Any, bounds: Any) -> tuple[int, ...]:
        """Returns how many integers there are of each group.

        Args:
            encoded: What a client submits, or its specs, or a sum.
            bounds: Of the answer.
        """
        values, padding = tf.nest.flatten(encoded.values), iter(encoded.padding)
        return tuple(
            sum(_num_elements(values[i]) for i in group.positions)
            + (_num_elements(next(padding)) if group.is_update else 0)
            for group in self.groups(bounds)
        )

    def bits(self, encoded: Any, bounds: Any) -> tuple[int, ...]:
        """Returns the bits of the modular sum of each group; arguments are those of `sizes`.

        Raises:
            UserError: If integers are too fine to be summed.
        """
        groups, factors = self.groups(bounds), self.noise_factors(bounds)
        return tuple(map(self._bits_of, groups, self.sizes(encoded, bounds), factors))

    def _bits_of(self, group: Group, size: int, factor: float) -> int:
        steps = self._options.integer_clip
        deviation = self.noise_multiplier * factor * steps
        bits = bits_of_sum(steps, size, group.is_update, deviation, self.expected_clients)
        total = bits + math.log2(self.expected_clients)
        if total > _MAX_BITS:
            raise UserError(
                f"--integer_clip: expected so few steps that sums of them have {_MAX_BITS} bits, "
                f"found {steps:g}, which with this noise and {self.expected_clients:g} clients "
                f"takes {math.ceil(total)}"
            )
        return bits

    def encode(
        self, params: ClientParams, output: Any, bounds: Any, client: ClientFacts
    ) -> Integers:
        """Clips an answer, rounds it, and adds a client's share of the noise."""
        released = self.clipped(params.clip_norms, output, bounds)
        values = tf.nest.flatten(released)
        sent = [tf.zeros(value.shape, tf.int64) for value in values]
        padding = []
        limits = self.group_limits(params.clip_norms, bounds)
        factors, steps = self.noise_factors(bounds), self._options.integer_clip
        seed = fold_in(client.seed, params.releases)
        for k, (group, limit) in enumerate(zip(self.groups(bounds), limits)):
            vector = _joined([tf.cast(values[i], tf.float64) for i in group.positions])
            vector *= tf.math.divide_no_nan(tf.constant(steps, tf.float64), limit)
            if group.is_update:
                vector = rotated(vector, self._signs(params.releases, k, vector.shape[0]))
            bits = self._bits_of(group, vector.shape[0], factors[k])
            integers = residues(self._noisy(vector, params, seed, k, factors[k]), bits)
            *pieces, rest = _split(integers, [values[i].shape for i in group.positions])
            for i, piece in zip(group.positions, pieces):
                sent[i] = piece
            if group.is_update:
                padding.append(rest)
        return Integers(tf.nest.pack_sequence_as(released, sent), padding, tf.constant(1, tf.int64))

    def _noisy(
        self, vector: tf.Tensor, params: ClientParams, seed: tf.Tensor, k: int, factor: float
    ) -> tf.Tensor:
        size, steps = vector.shape[0], self._options.integer_clip
        place = tf.constant((self.exchange << 32) + k, tf.int64)
        seed = fold_in(seed, place)
        max_norm = rounded_sensitivity(steps, size, ROUNDING_BETA).l2
        draws = uniform(fold_in(seed, tf.range(_TRIES * size)), _ROUNDING)
        integers = rounded(vector, max_norm, tf.reshape(draws, [_TRIES, size]))
        # (z_g c)^2 / n of each client.
        variance = tf.square(params.noise_multiplier * factor * steps) / self.expected_clients
        key = tf.bitwise.bitwise_xor(params.noise_key, tf.stack([seed, place]))
        return tf.cast(integers, tf.int64) + skellam(key, variance, size)

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """Returns modular secure sums of the integers, and one of the number of clients."""
        spec = tff.types.type_to_tf_tensor_specs(encoded.type_signature.member)
        bits = self.bits(spec, bounds)
        # What belongs to no group is zeros.
        moduli = [np.int64(2)] * len(tf.nest.flatten(spec.values))
        of_padding = []
        for group, of_group in zip(self.groups(bounds), bits):
            for i in group.positions:
                moduli[i] = np.int64(2**of_group)
            if group.is_update:
                of_padding.append(np.int64(2**of_group))

        modulus = (tf.nest.pack_sequence_as(spec.values, moduli), of_padding)
        summed = tff.backends.mapreduce.federated_secure_modular_sum(
            tff.federated_zip((encoded.values, encoded.padding)), modulus
        )
        num_clients = tff.federated_secure_sum_bitwidth(encoded.num_clients, 1)
        return tff.federated_zip(Integers(summed[0], summed[1], num_clients))

    def decode(
        self, state: PrivateState, summed: Integers, bounds: Any
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """Turns integers back into values; of too few clients' into those of none."""
        has_enough = summed.num_clients >= self.least_clients
        integers = tf.nest.flatten(summed.values)
        values = [tf.zeros(value.shape, tf.float64) for value in integers]
        deviations = [tf.constant(0.0, tf.float64)] * len(values)
        groups, factors = self.groups(bounds), self.noise_factors(bounds)
        limits, padding = self.group_limits(state.clip_norms, bounds), iter(summed.padding)
        bits = self.bits(summed, bounds)
        for k, group in enumerate(groups):
            shapes = [integers[i].shape for i in group.positions]
            parts = [integers[i] for i in group.positions]
            parts += [next(padding)] if group.is_update else []
            vector = tf.cast(centred(_joined(parts), bits[k]), tf.float64)
            if group.is_update:
                size = vector.shape[0]
                vector = rotated_back(vector, self._signs(state.releases, k, size))
            vector *= limits[k] / self._options.integer_clip
            vector = tf.where(has_enough, vector, tf.zeros_like(vector))
            *pieces, _ = _split(vector, shapes)
            for i, piece in zip(group.positions, pieces):
                values[i] = piece
                deviations[i] = state.noise_multiplier * factors[k] * limits[k]
        noisy = tf.nest.pack_sequence_as(summed.values, values)
        next_state, output, report = self.finished(state, noisy, deviations, bounds)
        clip_norms = tf.where(has_enough, next_state.clip_norms, state.clip_norms)
        too_few = tf.cast(~has_enough, tf.int64)
        return (
            next_state._replace(clip_norms=clip_norms),
            output,
            OrderedDict(report, too_few_clients=too_few),
        )

    def quantities(self, bounds: Any, prefix: str = "") -> Quantities:
        """Describes clip norms, and rounds that had too few clients."""
        too_few = Quantity(
            f"{prefix}too_few_clients", "rounds whose sum was not looked at: too few clients"
        )
        return OrderedDict(super().quantities(bounds, prefix), too_few_clients=too_few)

    @property
    def _options(self) -> DistributedOptions:
        assert isinstance(self.options, DistributedOptions)
        return self.options

    def _signs(self, releases: tf.Tensor, k: int, size: int) -> tf.Tensor:
        place = tf.constant((self.exchange << 32) + k, tf.int64)
        seed = fold_in(fold_in(tf.constant(_ROTATION, tf.int64), releases), place)
        return random_signs(seed, padded_size(size))


def _num_elements(value: Any) -> int:
    return int(value.shape.num_elements())


def _joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def _split(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns the first entries of a vector in shapes, and the rest."""
    sizes = [shape.num_elements() for shape in shapes]
    *pieces, rest = tf.split(vector, [*sizes, vector.shape[0] - sum(sizes)])
    return [*(tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes)), rest]
