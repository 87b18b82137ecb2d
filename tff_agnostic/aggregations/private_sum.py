"""Private sums: their base class, sums with the server's noise, and the options of all kinds.

All values that a client sends in a round are one release. They form groups that share the release's
privacy budget; see `clipping`. Clip norms may adapt. Values that would get no noise are not sent:
counts of clipped values stay on the client, and so do weights if their sum is public.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Optional, Union

from tff_agnostic.aggregations.aggregation import (
    Aggregation,
    Bound,
    ClientFacts,
    ClientLimits,
    FederatedSums,
    LimitedOptions,
    SecurityProperty,
)
from tff_agnostic.aggregations.clipping import (
    Group,
    bound_groups,
    budget_shares,
    clip,
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
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.base.report_fields import ReportField, ReportFields
from tff_agnostic.privacy.mechanisms import MIN_NOISE
from tff_agnostic.privacy.sampling import PublicParticipation, SecretParticipation

# Bound of a bit "within its clip norm", which is an indicator minus 1/2.
_WITHIN = Bound(0.5, signed=True)
# Bound of rounded sums: exact in float64, and well within int64.
_LARGEST = 2.0**62
_PLAIN_SUMS_NOTE = (
    "plain sums add float32 numbers, whose rounding depends on every client, but is in no account: "
    "secure sums add whole numbers"
)


@dataclasses.dataclass(frozen=True)
class FixedClipping(Options):
    """Constant clip norms."""


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping(Options):
    """Clip norms that follow a quantile of the norms of updates (Andrew et al. 2021).

    Attributes:
        quantile: Quantile that a clip norm follows.
        rate: eta, learning rate of the logarithm of a clip norm.
    """

    quantile: Annotated[float, Within(least=0.0, most=1.0)] = 0.5
    rate: Annotated[float, Within(above=0)] = 0.2


@dataclasses.dataclass(frozen=True)
class PrivacyOptions(LimitedOptions):
    """Options of differential privacy; the unit is a client with all its examples.

    Attributes:
        noise_multiplier: Noise multiplier z: standard deviation of a round's noise, as a multiple
            of one client's maximum influence; or give --target_epsilon. With 0 nothing is private.
        target_epsilon: Epsilon for which the noise is computed.
        delta: The delta of (epsilon, delta); if not given, 1 / (10 times the number of training
            clients).
        clip_norm: Bound of the l2 norm of a client's model delta; the initial bound, if adaptive.
        clipping: Whether the clip norm is constant (fixed), or follows a quantile of the deltas'
            norms at some rate (adaptive).
        update_share: Share of a round's privacy budget for model updates.
        noise_seed: Seed of the noise, only for experiments: the noise is then not secret, and every
            report warns about it.
    """

    noise_multiplier: Optional[Annotated[float, Within(least=MIN_NOISE, or_zero=True)]] = None
    target_epsilon: Optional[Annotated[float, Within(above=0)]] = None
    delta: Optional[Annotated[float, Within(above=0, below=1.0)]] = None
    clip_norm: Annotated[float, Within(above=0)] = 1.0
    clipping: Union[FixedClipping, AdaptiveClipping] = FixedClipping()
    update_share: Annotated[float, Within(above=0, below=1)] = 0.8
    noise_seed: Optional[Annotated[int, Within(least=0)]] = None

    @property
    def is_adaptive(self) -> bool:
        """Whether clip norms adapt."""
        return isinstance(self.clipping, AdaptiveClipping)

    @property
    def generator(self) -> NoiseGenerator:
        """Generator of the noise and of the key."""
        return SECURE


_Share = Annotated[float, Within(least=0.0, below=1.0)]


@dataclasses.dataclass(frozen=True)
class NoiseEvaluation(Options):
    """Private evaluations with a given noise level, if their number is not known in advance.

    Attributes:
        multiplier: Noise multiplier of each evaluation of a model.
        clients_share: Share of the budget for means and percentiles over clients; with 0 these are
            omitted. Sums over domains get the rest.
        statistics: Whether to count predictions by class. The counts share the budget of the sums
            over domains, which get more noise.
    """

    multiplier: Annotated[float, Within(least=MIN_NOISE, or_zero=True)]
    clients_share: _Share = 0.2
    statistics: bool = False


@dataclasses.dataclass(frozen=True)
class BudgetEvaluation(Options):
    """Private evaluations whose noise is computed from their number and an epsilon.

    Attributes:
        epsilon: The epsilon of all private evaluations of a run together.
        clients_share: See `NoiseEvaluation`.
        statistics: See `NoiseEvaluation`.
    """

    epsilon: Annotated[float, Within(above=0)]
    clients_share: _Share = 0.2
    statistics: bool = False


@dataclasses.dataclass(frozen=True)
class ServerNoiseOptions(PrivacyOptions):
    """Options of noise that a trusted server adds.

    Attributes:
        joint_clipping: Clip all values of a client as one vector, scaled by the groups' bounds and
            shares, instead of each group separately. With the same noise and epsilon, clients that
            stay below some bounds lose less.
        private_evaluation: Also clip the sums of evaluations and add noise, with a separate budget.
            This gives test clients a guarantee, either for a noise multiplier of each evaluation of
            a model (noise), or for an epsilon of all evaluations together (budget). clients_share
            of the budget is for means and percentiles over clients. With statistics=true
            predictions are counted by class.
    """

    joint_clipping: bool = False
    private_evaluation: Union[NoiseEvaluation, BudgetEvaluation, None] = None


@dataclasses.dataclass(frozen=True)
class DistributedOptions(PrivacyOptions):
    """Options of noise that clients add before a secure sum.

    Attributes:
        participation: Whether it stays secret which clients of Poisson cohorts participate, and how
            many (secret); otherwise epsilon is several times as large (public). If secret, clients
            that a coin flip excludes send zeros plus their share of the noise. In each round all
            clients answer, or the number of clients that answering gives, chosen in a public order:
            with fewer, less is sent, but epsilon is larger. If fewer than min_clients clients with
            noise answer, the round counts as a round without clients. By default min_clients is the
            number of answering clients, and c - 2 sqrt(c) for public Poisson cohorts.
        noise_generator: Generator of simulated clients' noise: philox (TensorFlow's, faster) or
            secure (ChaCha20, cryptographic).
    """

    participation: Union[SecretParticipation, PublicParticipation] = SecretParticipation()
    noise_generator: Annotated[str, OneOf(NOISE_GENERATORS)] = "philox"

    @property
    def generator(self) -> NoiseGenerator:
        """Generator of the simulated clients' noise, and of the key."""
        return NOISE_GENERATORS[self.noise_generator]


class ClippedOutput(NamedTuple):
    """A client's clipped submission; the same structure also holds its bounds, and sums.

    Attributes:
        answer: The client's output.
        within: 1/2 for each update within its adaptive clip norm, -1/2 for other updates.
    """

    answer: Any
    within: list[Any]


class PrivateState(NamedTuple):
    """The server's state for a communication step.

    Attributes:
        noise_key: Secret key of the noise, int64, as long as the generator requires.
        releases: Number of previously released sums, int64 scalar.
        noise_multiplier: Noise multiplier z, float64 scalar.
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
        inner: The aggregation that sums clipped outputs.
        name: Name in the registry.
        expected_clients: Expected number of clients of a round; public.
        noise_key: Secret numbers of the generator; ignored by equality.
        noise_multiplier: Noise multiplier z; ignored by equality, like the key.
        exchange: Index of the communication step in its round.
        shares: Share of a round's budget for each group of the step; empty if it is the only step.
        absent_below: Threshold for denominators, such as a domain's number of examples: below this
            number of standard deviations of the noise, a denominator counts as zero.
    """

    inner: Aggregation
    options: PrivacyOptions
    name: str
    expected_clients: float
    noise_key: tuple[int, ...] = dataclasses.field(compare=False, repr=False)
    noise_multiplier: float = dataclasses.field(compare=False)
    exchange: int = 0
    shares: tuple[float, ...] = ()
    absent_below: float = 2.0

    cuts_clients = True

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes about these sums, for readers of the privacy guarantee."""
        return ()

    @property
    def limits(self) -> ClientLimits:
        """Limits of one client's values."""
        return self.options.limit

    def for_steps(self, bounds: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the aggregation of each step; together they share the budget of a round."""
        groups = [self.groups(step_groups) for step_groups in bounds]
        everything = [group for step_groups in groups for group in step_groups]
        shares = iter(budget_shares(everything, self.options.update_share))
        return tuple(
            dataclasses.replace(self, exchange=k, shares=tuple(next(shares) for _ in step_groups))
            for k, step_groups in enumerate(groups)
        )

    def groups(self, bounds: Any) -> tuple[Group, ...]:
        """Returns the groups of values; last come the bits of adaptive clipping."""
        groups = bound_groups(bounds, self.options.limit.update, self.expected_clients)
        if not self.options.is_adaptive:
            return groups
        num_values = len(tf.nest.flatten(bounds))
        return groups + tuple(
            Group(f"{update.name} within its clip norm", (num_values + k,), _WITHIN.limit)
            for k, update in enumerate(group for group in groups if group.is_update)
        )

    def noise_factors(self, bounds: Any) -> tuple[float, ...]:
        """Returns the factor z_g / z = 1 / sqrt(w_g) of each group."""
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
        """On a client: returns its output with every group clipped to its bound.

        Args:
            clip_norms: The clip norm of each update, float32 [updates].
            rounding: See `clipping.clip`.
        """
        groups = bound_groups(bounds, self.options.limit.update, self.expected_clients)
        is_joint = isinstance(self.options, ServerNoiseOptions) and self.options.joint_clipping
        sent, within = clip(
            tf.nest.flatten(output),
            tf.nest.flatten(bounds),
            groups,
            tf.unstack(clip_norms),
            rounding,
            # Exclude the bits of adaptive clipping: they come last, and always reach their bound.
            self._shares(bounds)[: len(groups)] if is_joint else None,
        )
        bits = [bit - _WITHIN.limit for bit in within] if self.options.is_adaptive else []
        return ClippedOutput(tf.nest.pack_sequence_as(output, sent), bits)

    def group_limits(self, clip_norms: tf.Tensor, bounds: Any) -> list[tf.Tensor]:
        """Returns each group's norm bound, float64; an update's bound depends on its clip norm."""
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
            See `Aggregation.decode`.
        """
        flat_bounds = tf.nest.flatten(bounds)
        answer = without_noise_below(
            tf.nest.flatten(noisy.answer), deviations, flat_bounds, self.absent_below
        )
        answer = [_as_bound_type(value, bound) for value, bound in zip(answer, flat_bounds)]
        next_state = state._replace(
            releases=state.releases + 1, clip_norms=self._moved(state.clip_norms, noisy.within)
        )
        output = tf.nest.pack_sequence_as(noisy.answer, answer)
        names = [group.name for group in self._updates(bounds)]
        clip_norms = OrderedDict(zip(names, tf.unstack(state.clip_norms)))
        return next_state, output, OrderedDict(clip_norm=clip_norms)

    def _moved(self, clip_norms: tf.Tensor, within: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the next norms, C exp(-eta (b - quantile)) (Andrew et al. 2021, equation 1)."""
        clipping = self.options.clipping
        if not within or not isinstance(clipping, AdaptiveClipping):
            return clip_norms
        share = tf.cast(tf.stack(within) / self.expected_clients, tf.float32) + _WITHIN.limit
        # Noise, or a large Poisson cohort, can move the fraction b out of [0, 1].
        share = tf.clip_by_value(share, 0.0, 1.0)
        return clip_norms * tf.exp(-clipping.rate * (share - clipping.quantile))

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Returns descriptions of the clip norms, which are public."""
        names = [group.name for group in self._updates(bounds)]

        def clip_norm(name: str) -> ReportField:
            suffix = f"/{name}" if len(names) > 1 else ""
            return ReportField(f"{prefix}clip_norm{suffix}", f"clip norm of the {name}")

        return OrderedDict(clip_norm=OrderedDict((name, clip_norm(name)) for name in names))

    def _updates(self, bounds: Any) -> list[Group]:
        return [group for group in self.groups(bounds) if group.is_update]

    def released_bounds(self, bounds: Any) -> ClippedOutput:
        """Returns the bounds of a client's submission."""
        num_bits = len(self._updates(bounds)) if self.options.is_adaptive else 0
        return ClippedOutput(bounds, [_WITHIN] * num_bits)


def _as_bound_type(value: tf.Tensor, bound: Bound) -> tf.Tensor:
    if not bound.integer:
        return tf.cast(value, tf.float32)
    return tf.cast(tf.clip_by_value(tf.round(value), -_LARGEST, _LARGEST), tf.int64)


@dataclasses.dataclass(frozen=True)
class CentralDpSum(PrivateAggregation):
    """The sum of clipped client outputs, with noise added by the server."""

    noise: Noise = gaussian

    @property
    def guarantees(self) -> frozenset[SecurityProperty]:
        """The guarantees of the inner sum, and the secrecy of the noise key."""
        return self.inner.guarantees | {SecurityProperty.SECRET_NOISE}

    @property
    def remarks(self) -> tuple[str, ...]:
        """A note about float32 sums, as all other arithmetic is exact."""
        has_floats = SecurityProperty.SECURE_SUMS not in self.inner.guarantees
        return (_PLAIN_SUMS_NOTE,) if has_floats else ()

    @property
    def min_clients(self) -> int:
        """Minimum number of clients of a sum."""
        return self.inner.min_clients

    def on_clients(self) -> Aggregation:
        """Returns the aggregation without the key, which clients do not need."""
        inner = self.inner.on_clients()
        return dataclasses.replace(self, inner=inner, noise_key=(), noise_multiplier=0.0)

    def initialize(self, bounds: Any) -> PrivateState:
        """Returns the state before the first sum."""
        z = self.noise_multiplier
        check_multipliers([z * factor for factor in self.noise_factors(bounds)])
        return super().initialize(bounds)

    def secrets(self, state: PrivateState) -> list[Any]:
        """Returns the noise key, and the inner sum's secrets."""
        return [state.noise_key, *self.inner.secrets(())]

    def rounding(self, bound: Bound) -> float:
        """Returns the maximum rounding error of the inner sum."""
        return self.inner.rounding(bound)

    def client_params(self, state: PrivateState) -> Any:
        """Returns the clip norms."""
        return state.clip_norms

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Clips an output, and encodes it for the inner sum."""
        rounding = [self.inner.rounding(bound) for bound in tf.nest.flatten(bounds)]
        released = self.clipped(params, output, bounds, rounding)
        # Do not release the number of examples beyond the limit.
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
