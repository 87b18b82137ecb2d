"""Sums with client-level differential privacy: answers are clipped, and their sum has noise.

Everything that a client answers in a round is one release, in groups that share one budget; see
`groups`. What is not noised is not sent: counters of clipped values and of clients stay at home,
and where the sum of weights is public nobody is asked for it.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, ClientFacts, Guarantee
from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.aggregations.private.clipping import clip
from tff_agnostic.aggregations.private.groups import (
    Group,
    budget_shares,
    groups_of,
    noise_factor,
)
from tff_agnostic.aggregations.private.noise import Noise, Place
from tff_agnostic.aggregations.private.options import CLIPPINGS, PrivacyOptions
from tff_agnostic.aggregations.private.postprocessing import without_noise_below
from tff_agnostic.quantities import Quantities, Quantity
from tff_agnostic.settings import part_of

# An indicator less one half: what a client can change by joining.
_WITHIN = Bound(0.5, signed=True)
# Of whole numbers that float64 and int64 both hold.
_LARGEST = 2.0**62


class Released(NamedTuple):
    """What a client submits.

    Attributes:
        answer: Its answer, clipped.
        within: For each update 1/2 if it was within an adaptive clip norm, -1/2 if not.
    """

    answer: Any
    within: list[Any]


class PrivateState(NamedTuple):
    """What the server remembers of an exchange.

    Attributes:
        noise_key: The secret, int64 [2].
        releases: How many sums were released, int64 scalar.
        noise_multiplier: z, float64 scalar.
        clip_norms: The clip norm of each update, float32 [updates].
    """

    noise_key: tf.Tensor
    releases: tf.Tensor
    noise_multiplier: tf.Tensor
    clip_norms: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PrivateSum:
    """Clips what clients answer, sums it, and adds noise on the server.

    Attributes:
        inner: How clipped answers are summed.
        options: Settings.
        noise: The kind of noise.
        name: Name in the registry.
        expected_clients: Clients that a round is expected to have; public.
        noise_key: Two secret numbers of 63 bits; equal sums may differ in it.
        noise_multiplier: z, likewise.
        exchange: Number of the exchange in its round.
        shares: Of a round's budget, of each group of the exchange; empty if it is the only one.
    """

    inner: Aggregation
    options: PrivacyOptions
    noise: Noise
    name: str
    expected_clients: float
    noise_key: tuple[int, int] = dataclasses.field(compare=False, repr=False)
    noise_multiplier: float = dataclasses.field(compare=False)
    exchange: int = 0
    shares: tuple[float, ...] = ()

    cuts_clients = True

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """Those of the inner sum, and that clients learn nothing of the noise."""
        return self.inner.guarantees | {Guarantee.SECRET_NOISE}

    @property
    def limits(self) -> ClientLimits:
        """Limits of what one client may send."""
        limits: ClientLimits = part_of(self.options, ClientLimits)
        return limits

    @property
    def min_clients(self) -> int:
        """The fewest clients of a sum."""
        return self.inner.min_clients

    def of_exchanges(self, bounds: Sequence[Any]) -> tuple[Aggregation, ...]:
        """Returns sums that share the budget of a round."""
        groups = [self.groups(of_exchange) for of_exchange in bounds]
        everything = [group for of_exchange in groups for group in of_exchange]
        shares = iter(budget_shares(everything, self.options.update_share))
        return tuple(
            dataclasses.replace(self, exchange=k, shares=tuple(next(shares) for _ in of_exchange))
            for k, of_exchange in enumerate(groups)
        )

    def on_clients(self) -> Aggregation:
        """Returns it without the key, which processes that run clients need not have."""
        inner = self.inner.on_clients()
        return dataclasses.replace(self, inner=inner, noise_key=(0, 0), noise_multiplier=0.0)

    def groups(self, bounds: Any) -> tuple[Group, ...]:
        """Returns what is clipped and noised together; an adaptive clip norm's bits come last."""
        groups = groups_of(bounds, self.options.max_delta, self.expected_clients)
        if not CLIPPINGS[self.options.clipping]:
            return groups
        num_values = len(tf.nest.flatten(bounds))
        return groups + tuple(
            Group(f"{update.name} within its clip norm", (num_values + k,), _WITHIN.limit)
            for k, update in enumerate(group for group in groups if group.is_update)
        )

    def initialize(self, bounds: Any) -> PrivateState:
        """Returns the state before the first sum."""
        num_updates = len(self._updates(bounds))
        return PrivateState(
            tf.constant(self.noise_key, tf.int64),
            tf.constant(0, tf.int64),
            tf.constant(self.noise_multiplier, tf.float64),
            tf.fill([num_updates], tf.constant(self.options.clip_norm, tf.float32)),
        )

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
        flat_bounds = tf.nest.flatten(bounds)
        answer_groups = groups_of(bounds, self.options.max_delta, self.expected_clients)
        sent, within = clip(
            tf.nest.flatten(output),
            flat_bounds,
            answer_groups,
            tf.unstack(params),
            [self.inner.rounding(bound) for bound in flat_bounds],
        )
        is_adaptive = CLIPPINGS[self.options.clipping]
        released = Released(
            tf.nest.pack_sequence_as(output, sent),
            [bit - _WITHIN.limit for bit in within] if is_adaptive else [],
        )
        # How many examples were left out is no part of the release.
        facts = client._replace(examples_cut=tf.zeros_like(client.examples_cut))
        return self.inner.encode((), released, self._released_bounds(bounds), facts)

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        """Returns the inner sum."""
        return self.inner.federated_sum(encoded, self._released_bounds(bounds))

    def decode(
        self, state: PrivateState, summed: Any, bounds: Any
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """Adds noise; what follows works on noisy sums alone."""
        _, released, _ = self.inner.decode((), summed, self._released_bounds(bounds))
        values = [
            tf.cast(v, tf.float64) for v in tf.nest.flatten((released.answer, released.within))
        ]
        deviations = [tf.constant(0.0, tf.float64)] * len(values)
        groups = self.groups(bounds)
        shares = self.shares or budget_shares(groups, self.options.update_share)
        clip_norms = iter(tf.unstack(tf.cast(state.clip_norms, tf.float64)))
        for group, share in zip(groups, shares):
            # z_g = z_eff / sqrt(w_g), times the bound of the group
            deviation = state.noise_multiplier * noise_factor(share) * group.limit
            if group.is_update:
                deviation *= next(clip_norms)
            for i in group.positions:
                place = Place(self.exchange, i)
                noise = self.noise(state.noise_key, place, state.releases, values[i].shape)
                values[i] += deviation * tf.cast(noise, tf.float64)
                deviations[i] = deviation
        flat_bounds = tf.nest.flatten(bounds)
        answer, within = values[: len(flat_bounds)], values[len(flat_bounds) :]
        answer = without_noise_below(answer, deviations, flat_bounds, self.options.absent_below)
        answer = [_of_its_type(value, bound) for value, bound in zip(answer, flat_bounds)]
        next_state = state._replace(
            releases=state.releases + 1, clip_norms=self._moved(state.clip_norms, within)
        )
        output = tf.nest.pack_sequence_as(released.answer, answer)
        return next_state, output, self._report(state.clip_norms, bounds)

    def _moved(self, clip_norms: tf.Tensor, within: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns C exp(-eta (b - quantile)) (Andrew et al. 2021, equation 1 of section 2.2)."""
        if not within:
            return clip_norms
        share = tf.cast(tf.stack(within) / self.expected_clients, tf.float32) + _WITHIN.limit
        options = self.options
        steps = options.clip_learning_rate * (share - options.clip_quantile)
        return clip_norms * tf.exp(-steps)

    def _report(self, clip_norms: tf.Tensor, bounds: Any) -> Mapping[str, Any]:
        names = [group.name for group in self._updates(bounds)]
        return OrderedDict(clip_norm=OrderedDict(zip(names, tf.unstack(clip_norms))))

    def quantities(self, bounds: Any, prefix: str = "") -> Quantities:
        """Describes the clip norms, which are public."""
        names = [group.name for group in self._updates(bounds)]

        def clip_norm(name: str) -> Quantity:
            of_several = f"/{name}" if len(names) > 1 else ""
            return Quantity(f"{prefix}clip_norm{of_several}", f"clip norm of the {name}")

        return OrderedDict(clip_norm=OrderedDict((name, clip_norm(name)) for name in names))

    def _updates(self, bounds: Any) -> list[Group]:
        return [group for group in self.groups(bounds) if group.is_update]

    def _released_bounds(self, bounds: Any) -> Released:
        is_adaptive = CLIPPINGS[self.options.clipping]
        return Released(bounds, [_WITHIN] * (len(self._updates(bounds)) if is_adaptive else 0))


def _of_its_type(value: tf.Tensor, bound: Bound) -> tf.Tensor:
    if not bound.integer:
        return tf.cast(value, tf.float32)
    return tf.cast(tf.clip_by_value(tf.round(value), -_LARGEST, _LARGEST), tf.int64)
