"""Private sums, with the noise of the server, and the settings of every kind.

Values are clipped to shares of one budget, and clip norms may adapt. Everything that a client sends
in a round is one release, in groups that share that budget; see `clipping`. Values that get no
noise are not sent: counters of clipped values stay on the client, and where the sum of weights is
public, clients send no weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import (
    Aggregation,
    Bound,
    ClientFacts,
    ClientLimits,
    FederatedSums,
    SecurityProperty,
)
from tff_agnostic.aggregations.clipping import (
    Group,
    budget_shares,
    clip,
    groups_of,
    without_noise_below,
)
from tff_agnostic.aggregations.noise import Noise, NoisedGroup, Release, gaussian
from tff_agnostic.aggregations.noise_generators import (
    NOISE_GENERATORS,
    SECURE,
    NoiseGenerator,
    add_noise,
    check_multipliers,
)
from tff_agnostic.later import tf
from tff_agnostic.privacy.mechanisms import LEAST_NOISE, update_share_setting
from tff_agnostic.privacy.sampling import answering_clients_setting, secret_participation_setting
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import ReportField, ReportFields
from tff_agnostic.settings import part_of, setting

# Whether the clip norm follows the norms of the updates.
CLIPPINGS = Registry("clipping", {"fixed": False, "adaptive": True})
# An indicator less one half: its sensitivity to a client that joins is one half.
_WITHIN = Bound(0.5, signed=True)
# A whole number that is exact in float64, and well within int64.
_LARGEST = 2.0**62
_OF_PLAIN_SUMS = (
    "plain sums add float32 numbers, whose roundings depend on every client and are in no account: "
    "secure sums add whole numbers"
)


@dataclasses.dataclass(frozen=True)
class PrivacyOptions(ClientLimits):
    """Settings of differential privacy; the unit is a client with all its examples.

    Attributes:
        noise_multiplier: z: the standard deviation of a round's noise as a multiple of the bound of
            a client's output; None if `target_epsilon` is given.
        target_epsilon: The epsilon that the noise is computed for.
        delta: None for one over ten times the number of training clients.
        clip_norm: Bound of the l2 norm of a client's model delta; the first one, if adaptive.
        clipping: Whether it stays.
        clip_quantile: The quantile of the clients' norms that an adaptive clip norm tracks.
        clip_learning_rate: How fast it moves.
        update_share: Share of a round's budget for updates.
        absent_below: Number of standard deviations of its noise below which a denominator, such as
            a domain's number of examples, counts as zero.
        noise_seed: Seed in place of a secret key, so that noise can be repeated.
    """

    noise_multiplier: Optional[float] = setting(
        None,
        "z: standard deviation of a round's noise as a multiple of what one client can change; or "
        "give --target_epsilon. With 0 nothing is private.",
        zero_or_at_least=LEAST_NOISE,
    )
    target_epsilon: Optional[float] = setting(
        None, "The epsilon that the noise is computed for.", positive=True
    )
    delta: Optional[float] = setting(
        None,
        "The delta of (epsilon, delta); one over ten times the training clients if not given.",
        positive=True,
        below=1.0,
    )
    clip_norm: float = setting(
        1.0,
        "Bound of the l2 norm of a client's model delta; the first one, if adaptive.",
        positive=True,
    )
    clipping: str = setting(
        "fixed",
        "Whether the clip norm stays, or follows a quantile of the deltas' norms.",
        choices=CLIPPINGS,
    )
    clip_quantile: float = setting(
        0.5,
        "Quantile of the deltas' norms that an adaptive clip norm tracks.",
        at_least=0.0,
        at_most=1.0,
        only_with=("clipping", ("adaptive",)),
    )
    clip_learning_rate: float = setting(
        0.2,
        "How fast an adaptive clip norm moves.",
        positive=True,
        only_with=("clipping", ("adaptive",)),
    )
    update_share: float = update_share_setting()
    absent_below: float = setting(
        2.0,
        "A denominator, such as a domain's number of examples, counts as zero below so many "
        "standard deviations of its noise.",
        at_least=0.0,
    )
    noise_seed: Optional[int] = setting(
        None,
        "For experiments: seeds the noise, which is then not secret; every report warns of it.",
        at_least=0,
    )

    @property
    def generator(self) -> NoiseGenerator:
        """Generator of the noise and of the key."""
        return SECURE


_WITH_EVALUATION = ("private_evaluation", (True,))


@dataclasses.dataclass(frozen=True)
class ServerNoiseOptions(PrivacyOptions):
    """Settings of noise that a trusted server adds.

    Attributes:
        joint_clipping: Whether all that a client sends is clipped as one vector, in which each
            group has its part; otherwise each group is clipped alone.
        private_evaluation: Whether the sums of evaluations have noise, too.
        evaluation_noise_multiplier: z of each evaluation; None if `evaluation_target_epsilon` is
            given.
        evaluation_target_epsilon: Epsilon of all evaluations of a run together.
        evaluation_clients_share: Share of an evaluation's budget for statistics over clients, such
            as percentiles; the sums over domains have the rest.
        evaluation_statistics: Whether answers are counted by class, too, as a part of the rest.
    """

    joint_clipping: bool = setting(
        False,
        "Clip all that a client sends as one vector, in which groups are scaled by their bounds "
        "and shares, instead of each group alone: with the same noise and epsilon, clients that "
        "do not reach all of their bounds lose less.",
    )
    private_evaluation: bool = setting(
        False,
        "Clip and noise the sums of evaluations too, with a budget of their own: test clients then "
        "have a guarantee as well.",
    )
    evaluation_noise_multiplier: Optional[float] = setting(
        None,
        "z of each private evaluation of a model; or give --evaluation_target_epsilon.",
        zero_or_at_least=LEAST_NOISE,
        only_with=_WITH_EVALUATION,
    )
    evaluation_target_epsilon: Optional[float] = setting(
        None,
        "The epsilon of all private evaluations of a run together, for which their noise is "
        "computed.",
        positive=True,
        only_with=_WITH_EVALUATION,
    )
    evaluation_clients_share: float = setting(
        0.2,
        "Share of a private evaluation's budget for means and percentiles over clients; sums over "
        "domains have the rest. With 0 there are no statistics over clients.",
        at_least=0.0,
        below=1.0,
        only_with=_WITH_EVALUATION,
    )
    evaluation_statistics: bool = setting(
        False,
        "Count answers by class in private evaluations, too: they share the budget of the sums "
        "over domains, which get more noise.",
        only_with=_WITH_EVALUATION,
    )


@dataclasses.dataclass(frozen=True)
class TreeOptions(ServerNoiseOptions):
    """Settings of tree aggregation.

    Attributes:
        tree_restart_every: Rounds of one tree; None for a single tree over all rounds.
    """

    tree_restart_every: Optional[int] = setting(
        None,
        "Rounds after which tree aggregation begins a new tree; never if not given.",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True)
class DistributedOptions(PrivacyOptions):
    """Settings of noise that clients add before a secure sum.

    Attributes:
        integer_clip: c: steps of the integers in the bound of each group.
        secret_participation: With Poisson cohorts, whether clients that the coin leaves out report
            too, so that it stays secret which clients took part, and how many.
        answering_clients: M, how many clients report in a round then; None for all.
        privacy_min_clients: Least number of clients with noise in a round; None for all that
            report, and c - 2 sqrt(c) for Poisson cohorts of a public size that is c on average.
        noise_generator: Name of the generator of simulated clients' noise.
    """

    integer_clip: float = setting(
        2.0**14,
        "Steps of the integers that clients send in the bound of each group: with more steps "
        "rounding adds less, and integers have more bits.",
        positive=True,
    )
    secret_participation: bool = secret_participation_setting()
    answering_clients: Optional[int] = answering_clients_setting(
        only_with=("secret_participation", (True,))
    )
    privacy_min_clients: Optional[int] = setting(
        None,
        "Least number of clients with noise in a round: a round of fewer is one without clients. "
        "By default all that report; c - 2 sqrt(c) with --nosecret_participation.",
        at_least=1,
    )
    noise_generator: str = setting(
        "philox",
        "Generator of simulated clients' noise: philox, TensorFlow's, the faster one; or secure, "
        "ChaCha20, a cryptographic one.",
        choices=NOISE_GENERATORS,
    )

    @property
    def generator(self) -> NoiseGenerator:
        """Generator of the noise of simulated clients and of the key."""
        return NOISE_GENERATORS[self.noise_generator]


class ClippedOutput(NamedTuple):
    """A client's clipped submission; also its bounds, and sums.

    Attributes:
        answer: The client's output.
        within: For each update 1/2 if it was within an adaptive clip norm, -1/2 if not.
    """

    answer: Any
    within: list[Any]


class PrivateState(NamedTuple):
    """The server's state for a communication step.

    Attributes:
        noise_key: The secret, int64, as long as the generator's keys.
        releases: Number of sums released before, int64 scalar.
        noise_multiplier: z, float64 scalar.
        clip_norms: The clip norm of each update, float32 [updates].
    """

    noise_key: tf.Tensor
    releases: tf.Tensor
    noise_multiplier: tf.Tensor
    clip_norms: tf.Tensor


@dataclasses.dataclass(frozen=True)
class PrivateAggregation(Aggregation):
    """Base of private sums.

    Attributes:
        inner: The sum of clipped outputs.
        options: Settings.
        name: Name in the registry.
        expected_clients: Clients that a round is expected to have; public.
        noise_key: Secret numbers of the generator; equal sums may have different keys.
        noise_multiplier: z, likewise.
        exchange: Number of the communication step in its round.
        shares: Share of a round's budget for each group of the step; empty if it is the only step.
    """

    inner: Aggregation
    options: PrivacyOptions
    name: str
    expected_clients: float
    noise_key: tuple[int, ...] = dataclasses.field(compare=False, repr=False)
    noise_multiplier: float = dataclasses.field(compare=False)
    exchange: int = 0
    shares: tuple[float, ...] = ()

    cuts_clients = True

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on the sums for readers of the privacy guarantee."""
        return ()

    @property
    def limits(self) -> ClientLimits:
        """Limits of what one client may send."""
        limits: ClientLimits = part_of(self.options, ClientLimits)
        return limits

    def of_exchanges(self, bounds: Sequence[Any]) -> tuple[Any, ...]:
        """Returns one for each step, which share the budget of a round."""
        groups = [self.groups(of_exchange) for of_exchange in bounds]
        everything = [group for of_exchange in groups for group in of_exchange]
        shares = iter(budget_shares(everything, self.options.update_share))
        return tuple(
            dataclasses.replace(self, exchange=k, shares=tuple(next(shares) for _ in of_exchange))
            for k, of_exchange in enumerate(groups)
        )

    def groups(self, bounds: Any) -> tuple[Group, ...]:
        """Returns the groups of values; the bits of adaptive clip norms come last."""
        groups = groups_of(bounds, self.options.max_delta, self.expected_clients)
        if not CLIPPINGS[self.options.clipping]:
            return groups
        num_values = len(tf.nest.flatten(bounds))
        return groups + tuple(
            Group(f"{update.name} within its clip norm", (num_values + k,), _WITHIN.limit)
            for k, update in enumerate(group for group in groups if group.is_update)
        )

    def noise_factors(self, bounds: Any) -> tuple[float, ...]:
        """Returns z_g / z = 1 / sqrt(w_g) of each group."""
        return tuple(1.0 / math.sqrt(share) for share in self._shares(bounds))

    def _shares(self, bounds: Any) -> tuple[float, ...]:
        return self.shares or budget_shares(self.groups(bounds), self.options.update_share)

    def initialize(self, bounds: Any) -> PrivateState:
        """Returns the state before the first sum."""
        num_updates = len(self._updates(bounds))
        return PrivateState(
            tf.constant(self.noise_key, tf.int64),
            tf.constant(0, tf.int64),
            tf.constant(self.noise_multiplier, tf.float64),
            tf.fill([num_updates], tf.constant(self.options.clip_norm, tf.float32)),
        )

    def clipped(
        self, clip_norms: tf.Tensor, output: Any, bounds: Any, rounding: Sequence[float] = ()
    ) -> ClippedOutput:
        """On a client: returns its output with every group within its bound.

        Args:
            clip_norms: The clip norm of each update, float32 [updates].
            rounding: See `clipping.clip`.
        """
        groups = groups_of(bounds, self.options.max_delta, self.expected_clients)
        is_joint = isinstance(self.options, ServerNoiseOptions) and self.options.joint_clipping
        sent, within = clip(
            tf.nest.flatten(output),
            tf.nest.flatten(bounds),
            groups,
            tf.unstack(clip_norms),
            rounding,
            # Without the bits, which come last and always have their full length.
            self._shares(bounds)[: len(groups)] if is_joint else None,
        )
        is_adaptive = CLIPPINGS[self.options.clipping]
        bits = [bit - _WITHIN.limit for bit in within] if is_adaptive else []
        return ClippedOutput(tf.nest.pack_sequence_as(output, sent), bits)

    def group_limits(self, clip_norms: tf.Tensor, bounds: Any) -> list[tf.Tensor]:
        """Returns the bound of each group's norm, float64: an update's is times its clip norm."""
        norms = iter(tf.unstack(tf.cast(clip_norms, tf.float64)))
        return [
            group.limit * (next(norms) if group.is_update else tf.constant(1.0, tf.float64))
            for group in self.groups(bounds)
        ]

    def finished(
        self,
        state: PrivateState,
        noisy: ClippedOutput,
        deviations: Sequence[tf.Tensor],
        bounds: Any,
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """On the server: post-processes noisy sums.

        Args:
            noisy: Noisy sums, float64.
            deviations: Standard deviation of the noise of each value.

        Returns:
            What `Aggregation.decode` does.
        """
        flat_bounds = tf.nest.flatten(bounds)
        answer = without_noise_below(
            tf.nest.flatten(noisy.answer), deviations, flat_bounds, self.options.absent_below
        )
        answer = [_of_its_type(value, bound) for value, bound in zip(answer, flat_bounds)]
        next_state = state._replace(
            releases=state.releases + 1, clip_norms=self._moved(state.clip_norms, noisy.within)
        )
        output = tf.nest.pack_sequence_as(noisy.answer, answer)
        names = [group.name for group in self._updates(bounds)]
        clip_norms = OrderedDict(zip(names, tf.unstack(state.clip_norms)))
        return next_state, output, OrderedDict(clip_norm=clip_norms)

    def _moved(self, clip_norms: tf.Tensor, within: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns C exp(-eta (b - quantile)) (Andrew et al. 2021, equation 1 of section 2.2)."""
        if not within:
            return clip_norms
        share = tf.cast(tf.stack(within) / self.expected_clients, tf.float32) + _WITHIN.limit
        # Noise, or a large Poisson cohort, may take the share b beyond what a share can be.
        share = tf.clip_by_value(share, 0.0, 1.0)
        options = self.options
        steps = options.clip_learning_rate * (share - options.clip_quantile)
        return clip_norms * tf.exp(-steps)

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Describes the clip norms, which are public."""
        names = [group.name for group in self._updates(bounds)]

        def clip_norm(name: str) -> ReportField:
            of_several = f"/{name}" if len(names) > 1 else ""
            return ReportField(f"{prefix}clip_norm{of_several}", f"clip norm of the {name}")

        return OrderedDict(clip_norm=OrderedDict((name, clip_norm(name)) for name in names))

    def _updates(self, bounds: Any) -> list[Group]:
        return [group for group in self.groups(bounds) if group.is_update]

    def released_bounds(self, bounds: Any) -> ClippedOutput:
        """Returns the bounds of a client's submission."""
        is_adaptive = CLIPPINGS[self.options.clipping]
        return ClippedOutput(bounds, [_WITHIN] * (len(self._updates(bounds)) if is_adaptive else 0))


def _of_its_type(value: tf.Tensor, bound: Bound) -> tf.Tensor:
    if not bound.integer:
        return tf.cast(value, tf.float32)
    return tf.cast(tf.clip_by_value(tf.round(value), -_LARGEST, _LARGEST), tf.int64)


@dataclasses.dataclass(frozen=True)
class CentralDpSum(PrivateAggregation):
    """The sum of clipped client outputs, with noise that the server adds.

    Attributes:
        noise: The kind of noise.
    """

    noise: Noise = gaussian

    @property
    def guarantees(self) -> frozenset[SecurityProperty]:
        """Those of the inner sum, and the secret key of the noise."""
        return self.inner.guarantees | {SecurityProperty.SECRET_NOISE}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Returns a note on sums of float32, where all other arithmetic is exact."""
        is_of_floats = SecurityProperty.SECURE_SUMS not in self.inner.guarantees
        return (_OF_PLAIN_SUMS,) if is_of_floats else ()

    @property
    def min_clients(self) -> int:
        """The fewest clients of a sum."""
        return self.inner.min_clients

    def on_clients(self) -> Aggregation:
        """Returns it without the key: processes that run clients do not need it."""
        inner = self.inner.on_clients()
        return dataclasses.replace(self, inner=inner, noise_key=(), noise_multiplier=0.0)

    def initialize(self, bounds: Any) -> PrivateState:
        """Returns the state before the first sum."""
        z = self.noise_multiplier
        check_multipliers([z * factor for factor in self.noise_factors(bounds)])
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
        """Clips an output, and encodes it for the inner sum."""
        rounding = [self.inner.rounding(bound) for bound in tf.nest.flatten(bounds)]
        released = self.clipped(params, output, bounds, rounding)
        # The number of examples that were left out is not released.
        facts = client._replace(examples_cut=tf.zeros_like(client.examples_cut))
        return self.inner.encode((), released, self.released_bounds(bounds), facts)

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Returns the inner sum."""
        return self.inner.federated_sum(encoded, self.released_bounds(bounds), sums)

    def noisy_sums(
        self, state: PrivateState, summed: Any, bounds: Any
    ) -> tuple[ClippedOutput, list[tf.Tensor]]:
        """Returns the inner sum with noise, and the standard deviation of each value's noise."""
        _, released, _ = self.inner.exact().decode((), summed, self.released_bounds(bounds))
        values = [tf.cast(value, tf.float64) for value in tf.nest.flatten(released)]
        limits, factors = self.group_limits(state.clip_norms, bounds), self.noise_factors(bounds)
        groups = [
            NoisedGroup(group.positions, state.noise_multiplier * factor, limit)
            for group, limit, factor in zip(self.groups(bounds), limits, factors)
        ]
        release = Release(state.noise_key, self.exchange, state.releases)
        values, deviations = add_noise(self.noise, release, values, groups)
        return tf.nest.pack_sequence_as(released, values), deviations

    def decode(
        self, state: PrivateState, summed: Any, bounds: Any
    ) -> tuple[PrivateState, Any, Mapping[str, Any]]:
        """Adds noise and post-processes the noisy sums."""
        return self.finished(state, *self.noisy_sums(state, summed, bounds), bounds)
