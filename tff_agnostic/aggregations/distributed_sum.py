"""Distributed differential privacy: clients add the noise, and no party sees an exact sum.

A client scales each group of its clipped output to a norm of c steps, rotates updates, rounds to
integers, and adds its share of Skellam noise (Agarwal, Kairouz, Liu 2021). It submits the integers,
modulo a power of two, to a modular secure sum. The server takes the integers nearest zero, rotates
back and rescales. Rotation spreads an update's norm over its coordinates, so that fewer bits
suffice. Other values, such as losses and counts, are not rotated.

**Participation is secret** if each client decides by its own coin flip. A public number of clients
reports in each round. Clients that the coin excludes are silent: they send zeros plus their share
of the noise, and no other party can distinguish them from clients with zero values. A simulation
does not run silent clients one by one: an entry of the cohort represents several of them, up to the
number whose joint noise fits one table.

**In a simulation** the noise of all clients derives from one key, which the server sends to them,
so that a run is repeatable. This is private only while one process simulates all parties, because
the key allows removing the noise. Real devices must draw their noise themselves, without a key:
`DeviceSum` is the sum for such devices.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_agnostic.aggregations.aggregation import ClientFacts, FederatedSums, SecurityProperty
from tff_agnostic.aggregations.integer_codec import ClientNoise, IntegerCodec, joined, split_vector
from tff_agnostic.aggregations.noise import Release, max_clients_per_table
from tff_agnostic.aggregations.private_sum import ClippedOutput, PrivateAggregation, PrivateState
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportField, ReportFields
from tff_agnostic.base.stateless_random import fold_in, uniform

# Number that distinguishes random rounding from other uses of a client's seed.
_ROUNDING = 7


class ClientParams(NamedTuple):
    """The part of the state that clients receive.

    Attributes:
        clip_norms: The clip norm of each update.
        noise_key: Key from which simulated clients draw their noise; () for devices.
        releases: Number of previously released sums.
    """

    clip_norms: tf.Tensor
    noise_key: tf.Tensor
    releases: tf.Tensor


class Integers(NamedTuple):
    """A client's submission; all fields are int64.

    Attributes:
        values: Residues of the clipped values, in their shapes.
        padding: Residues of the entries that pad each rotated group to a power of two.
        num_clients: Number of clients that the entry represents: 1, or the number of silent
            clients. The server thus learns the number of clients with noise in the sum.
    """

    values: ClippedOutput
    padding: list[tf.Tensor]
    num_clients: tf.Tensor


# Fields to sum modulo powers of two.
MODULAR = ("values", "padding")


@dataclasses.dataclass(frozen=True)
class DistributedDpSum(PrivateAggregation):
    """Sums of clipped client outputs: clients send integers that already contain their noise.

    It has the guarantees of the inner secure sum, but not `SecurityProperty.SECRET_NOISE`:
    simulated clients receive the key, so no part of the state is secret. No minimum number of
    clients per round applies, as a Poisson cohort may be small at random.

    Attributes:
        noise_multiplier: Noise multiplier z. Unlike in the base class, equality compares it, as it
            determines the number of bits.
        min_noise_clients: Minimum number of clients with noise in a sum. A sum over fewer is
            treated as the sum over no clients.
        noise_clients: Number of clients that report in a round, each with its share of the noise; 0
            for the expected number of training clients. If it is larger, coin flips decide which
            clients are silent.
        bundle: Maximum number of silent clients that one entry of a simulated cohort represents.
        integer_clip: Number of integer steps in the bound of each group. More steps mean less
            rounding noise, but integers with more bits.
    """

    noise_multiplier: float
    min_noise_clients: int = 1
    noise_clients: int = 0
    bundle: int = 1
    integer_clip: float = 2.0**14

    # A cohort may contain a client several times: only their places give these copies separate
    # noise.
    numbers_clients = True

    @property
    def guarantees(self) -> frozenset[SecurityProperty]:
        """The guarantees of the inner sum."""
        return self.inner.guarantees

    def for_steps(self, bounds: Sequence[Any]) -> tuple[Any, ...]:
        """Returns a sum for each step; they share the budget, and have the same bundle size."""
        sums = super().for_steps(bounds)
        if self.noise_clients <= self.expected_clients:
            return sums
        factors = [
            f for sum_, step_bounds in zip(sums, bounds) for f in sum_.noise_factors(step_bounds)
        ]
        widest = self.noise_multiplier * max(factors) * self.integer_clip
        max_silent = self.noise_clients - int(self.expected_clients)
        bundle = max_clients_per_table(widest**2 / self.noise_clients, max_silent)
        return tuple(dataclasses.replace(sum_, bundle=bundle) for sum_ in sums)

    def on_clients(self) -> DistributedDpSum:
        """Returns the aggregation without the key, which clients receive in the broadcast."""
        return dataclasses.replace(self, noise_key=())

    def client_params(self, state: PrivateState) -> ClientParams:
        """Returns the clip norms, the key of simulated noise, and the release number."""
        # The clients' noise tables and number of bits are constants for this multiplier.
        is_same = tf.debugging.assert_equal(
            state.noise_multiplier,
            tf.constant(self.noise_multiplier, tf.float64),
            "a state of clients with other noise",
        )
        with tf.control_dependencies([is_same]):
            clip_norms = tf.identity(state.clip_norms)
        return ClientParams(clip_norms, state.noise_key, state.releases)

    def codecs(self, values: Sequence[Any], bounds: Any) -> tuple[IntegerCodec, ...]:
        """Returns the codec of each group of an output.

        Args:
            values: The flattened output or its residues, as values or as specs.
        """
        pairs = zip(self.groups(bounds), self.noise_factors(bounds))
        return tuple(
            IntegerCodec(
                is_rotated=group.is_update,
                num_values=sum(int(values[i].shape.num_elements()) for i in group.positions),
                steps=self.integer_clip,
                deviation=self.noise_multiplier * factor * self.integer_clip,
                expected_clients=self.expected_clients,
                noise_clients=self.noise_clients or self.expected_clients,
                bundle=self.bundle,
                place=(self.exchange << 32) + k,
            )
            for k, (group, factor) in enumerate(pairs)
        )

    def encode(
        self, params: ClientParams, output: Any, bounds: Any, client: ClientFacts
    ) -> Integers:
        """Clips and rounds an output, and adds a client's share of the noise."""
        silent = self._silent(client)
        # A silent client sends only noise, even for its counts and its bit of adaptive clipping.
        released = tf.nest.map_structure(
            lambda value: tf.where(silent > 0, tf.zeros_like(value), value),
            self.clipped(params.clip_norms, output, bounds),
        )
        values = tf.nest.flatten(released)
        sent = [tf.zeros(value.shape, tf.int64) for value in values]
        padding: list[tf.Tensor] = []
        codecs = self.codecs(values, bounds)
        draws = self._draws(params, client, codecs)
        limits = self.group_limits(params.clip_norms, bounds)
        for group, codec, limit, drawn in zip(self.groups(bounds), codecs, limits, draws):
            members = [values[i] for i in group.positions]
            integers = codec.encode(members, limit, drawn, params.releases, silent)
            pieces = split_vector(integers, [value.shape for value in members])
            for i, piece in zip(group.positions, pieces):
                sent[i] = piece
            padding += pieces[len(members) :]
        num_clients = tf.cast(tf.maximum(silent, 1), tf.int64)
        return Integers(tf.nest.pack_sequence_as(released, sent), padding, num_clients)

    def _silent(self, client: ClientFacts) -> tf.Tensor:
        """On a client: returns the number of silent clients in its entry; 0 if it trains."""
        silent: tf.Tensor = client.place.silent
        return silent

    def _draws(
        self, params: ClientParams, client: ClientFacts, codecs: Sequence[IntegerCodec]
    ) -> list[ClientNoise]:
        """On a client: returns its random numbers for each group."""
        release = Release(params.noise_key, self.exchange, params.releases)
        return self.options.generator.client_draws(release, client.place.number, codecs)

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Returns modular secure sums of integers, and the secure sum that counts clients."""
        bits = self.bit_widths(sums.spec(encoded), bounds)
        widths = (bits.values, bits.padding)
        modulus = tf.nest.map_structure(lambda width: np.int64(2**width), widths)
        summed = sums.secure_modular(sums.joined((encoded.values, encoded.padding)), modulus)
        num_clients = sums.secure(encoded.num_clients, bits.num_clients)
        return sums.joined(Integers(summed[0], summed[1], num_clients))

    def bit_widths(self, spec: Integers, bounds: Any) -> Any:
        """Returns the bit width of each value; for residues, the bit width of their sum.

        Args:
            spec: Specs of a client's submission.
        """
        values = tf.nest.flatten(spec.values)
        # Values outside of any group are zeros, for which one bit suffices.
        bits = [1] * len(values)
        padding_bits = []
        for group, codec in zip(self.groups(bounds), self.codecs(values, bounds)):
            for i in group.positions:
                bits[i] = codec.bits
            if codec.size > codec.num_values:
                padding_bits.append(codec.bits)
        value_bits = tf.nest.pack_sequence_as(spec.values, bits)
        return Integers(value_bits, padding_bits, self.bundle.bit_length())

    def noisy_sums(
        self, state: PrivateState, summed: Integers, bounds: Any
    ) -> tuple[ClippedOutput, list[tf.Tensor]]:
        """Decodes integers; a sum over too few clients becomes zeros."""
        has_enough = self._has_enough(summed)
        integers = tf.nest.flatten(summed.values)
        values = [tf.zeros(value.shape, tf.float64) for value in integers]
        deviations = [tf.constant(0.0, tf.float64)] * len(values)
        limits, padding = self.group_limits(state.clip_norms, bounds), iter(summed.padding)
        codecs = self.codecs(integers, bounds)
        for group, codec, limit in zip(self.groups(bounds), codecs, limits):
            parts = [integers[i] for i in group.positions]
            shapes = [part.shape for part in parts]
            parts += [next(padding)] if codec.size > codec.num_values else []
            vector = codec.decode(joined(parts), limit, state.releases)
            vector = tf.where(has_enough, vector, tf.zeros_like(vector))
            for i, piece in zip(group.positions, split_vector(vector, shapes)):
                values[i] = piece
                deviations[i] = codec.deviation / codec.steps * limit
        return tf.nest.pack_sequence_as(summed.values, values), deviations

    def decode(
        self, state: PrivateState, summed: Integers, bounds: Any
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """Decodes and post-processes noisy sums."""
        has_enough = self._has_enough(summed)
        noisy, deviations = self.noisy_sums(state, summed, bounds)
        next_state, output, report = self.finished(state, noisy, deviations, bounds)
        clip_norms = tf.where(has_enough, next_state.clip_norms, state.clip_norms)
        too_few = tf.cast(~has_enough, tf.int64)
        return (
            next_state._replace(clip_norms=clip_norms),
            output,
            OrderedDict(report, too_few_clients=too_few),
        )

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Returns descriptions of clip norms, and of rounds with too few clients."""
        too_few = ReportField(
            f"{prefix}too_few_clients",
            "rounds whose sum was discarded, as too few clients answered",
        )
        return OrderedDict(super().quantities(bounds, prefix), too_few_clients=too_few)

    def _has_enough(self, summed: Integers) -> tf.Tensor:
        return summed.num_clients >= self.min_noise_clients


@dataclasses.dataclass(frozen=True)
class DeviceSum(DistributedDpSum):
    """The sum for devices that themselves add noise to the integers that `encode` returns.

    Clients receive no key. Rounding directions derive from the client's seed, which the server may
    know, but the bound on a client's influence holds for any rounding.
    """

    numbers_clients = False

    def for_steps(self, bounds: Sequence[Any]) -> tuple[Any, ...]:
        """Returns a sum for each step; they share the budget, and an entry is one device."""
        return PrivateAggregation.for_steps(self, bounds)

    def client_params(self, state: PrivateState) -> ClientParams:
        """Returns the clip norms, and the release number."""
        return super().client_params(state)._replace(noise_key=())

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Returns secure sums of all parts, which `decode` reduces modulo 2^bits.

        In exported plans integers are summed modulo 2^bits.
        """
        return sums.secure(encoded, self.bit_widths(sums.spec(encoded), bounds))

    def _silent(self, client: ClientFacts) -> tf.Tensor:
        del client
        return tf.constant(0)

    def _draws(
        self, params: ClientParams, client: ClientFacts, codecs: Sequence[IntegerCodec]
    ) -> list[ClientNoise]:
        del params
        draws = []
        for codec in codecs:
            seeds = fold_in(client.seed, tf.range(codec.size, dtype=tf.int64))
            group_seeds = fold_in(seeds, tf.constant(codec.place, tf.int64))
            draws.append(ClientNoise(uniform(group_seeds, _ROUNDING), None))
        return draws
