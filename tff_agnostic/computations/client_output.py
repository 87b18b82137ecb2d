"""What a client sends after training, its bounds, and zeros in place of what is not finite.

The parts of CLIENT of Algorithm 1 (Ro et al. 2021) are in `domain_losses` and `local_training`;
here an answer is made of them.
"""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.computations.clients import ClientGroup, PerClient
from tff_agnostic.computations.domain_losses import (
    AnyDomainSums,
    DomainSums,
    DomainSumsApart,
    MetricSums,
    measured_sums_bounds,
)
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

# n_k -> p_k, up to a factor of all clients.
CLIENT_WEIGHTINGS = Registry("client weighting", {"examples": lambda n: n, "equal": tf.ones_like})


class ClientCounts(NamedTuple):
    """What became of a client: exactly one field is 1, the others are 0; int64 scalars.

    Attributes:
        contributed: Its update has a positive weight.
        zero_weight: It has examples, but none of a domain with a positive weight.
        empty: It has no examples.
        non_finite: Its update, weight or losses were not finite, and were dropped.
    """

    contributed: tf.Tensor
    zero_weight: tf.Tensor
    empty: tf.Tensor
    non_finite: tf.Tensor


class TrainingOutput(NamedTuple):
    """What a client that trained sends; the server only ever sees the sum of each field.

    Attributes:
        weighted_delta: beta^k (w - w^k), like the trainable weights.
        beta: Weight of the client, float32 scalar.
        domain_losses: Sum of the losses at w of each domain's examples, float32 [p].
        domain_counts: Number of examples of each domain, int64 [p].
        metric_sums: For each metric its numerator and denominator per domain, float32 [p] each.
        clients: What became of the client.
    """

    weighted_delta: list[tf.Tensor]
    beta: tf.Tensor
    domain_losses: tf.Tensor
    domain_counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"
    clients: ClientCounts


class TrainingOutputApart(NamedTuple):
    """What a client sends that measures other examples than it trains on; see `TrainingOutput`.

    Attributes:
        domain_losses: Of the examples that are kept out of training, as are counts and metrics.
        trained_counts: Number of examples of each domain that are trained on, int64 [p].
    """

    weighted_delta: list[tf.Tensor]
    beta: tf.Tensor
    domain_losses: tf.Tensor
    domain_counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"
    clients: ClientCounts
    trained_counts: tf.Tensor


AnyTrainingOutput = Union[TrainingOutput, TrainingOutputApart]


def domain_sums(summed: AnyTrainingOutput) -> AnyDomainSums:
    """Returns the part of a round's sums that is about domains."""
    sums = DomainSums(summed.domain_losses, summed.domain_counts, summed.metric_sums)
    if isinstance(summed, TrainingOutputApart):
        return DomainSumsApart(*sums, summed.trained_counts)
    return sums


def client_counts_bounds() -> ClientCounts:
    """Returns the bounds of `ClientCounts`."""
    one = Bound(1, integer=True, one_of="clients")
    return ClientCounts(*[one] * len(ClientCounts._fields))


def update_bounds(
    model: Model,
    limits: ClientLimits,
    max_beta: float,
    expected_beta: Optional[float] = None,
    ratio: str = "update",
) -> tuple[list[Bound], Bound]:
    """Returns the bounds of a client's weighted delta and of its weight, which form a ratio.

    Args:
        model: The model.
        limits: Of one client.
        max_beta: Bound of its weight.
        expected_beta: What the weights of a round are expected to add up to, if that is known.
        ratio: Name of the ratio.
    """
    delta = Bound(max_beta * limits.max_delta, signed=True, ratio=ratio)
    beta = Bound(max_beta, ratio=ratio, denominator=True, public_sum=expected_beta)
    return [delta for _ in model.initial_weights.trainable], beta


def training_output_bounds(
    model: Model,
    limits: ClientLimits,
    default_max_beta: float,
    is_apart: bool = False,
    expected_beta: Optional[float] = None,
) -> AnyTrainingOutput:
    """Returns the bound of every value of `TrainingOutput`, in its structure.

    Args:
        model: The model.
        limits: Of one client.
        default_max_beta: Bound of its weight, where the limits state none.
        is_apart: Whether it is `TrainingOutputApart`.
        expected_beta: What the weights of a round are expected to add up to, if that is known.
    """
    max_beta = limits.beta(default_max_beta)
    weighted_delta, beta = update_bounds(model, limits, max_beta, expected_beta)
    sums = measured_sums_bounds(model, limits, is_apart)
    return training_output(weighted_delta, beta, sums, client_counts_bounds())


class TrainingBroadcast(NamedTuple):
    """What the server broadcasts to clients that train.

    Attributes:
        weights: w_{t-1}.
        alpha: Scale of each domain, float32 [p].
    """

    weights: ModelWeights
    alpha: tf.Tensor


def training_output(
    weighted_delta: Any, beta: Any, sums: AnyDomainSums, clients: ClientCounts
) -> AnyTrainingOutput:
    """Returns what a client sends, or the bounds of it, in the structure of what it measures."""
    output = TrainingOutput(
        weighted_delta, beta, sums.losses, sums.counts, sums.metric_sums, clients
    )
    if isinstance(sums, DomainSumsApart):
        return TrainingOutputApart(*output, sums.trained)
    return output


def all_finite(structure: Any) -> tf.Tensor:
    """Returns whether every value of a structure of real tensors is finite, a boolean scalar."""
    finite = [tf.reduce_all(tf.math.is_finite(value)) for value in tf.nest.flatten(structure)]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)


def client_weight(alpha: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """CLIENT line 6: beta^k = sum_i alpha_i N_i^k, float32 scalar."""
    return tf.reduce_sum(alpha * tf.cast(counts, tf.float32))


def training_outputs(
    weights: ModelWeights,
    trained: list[tf.Tensor],
    beta: tf.Tensor,
    sums: AnyDomainSums,
    clients: ClientGroup,
    per_client: PerClient,
) -> Any:
    """CLIENT line 13: what each client returns, or zeros if any of it is not finite.

    It is a `TrainingOutput`, or a `TrainingOutputApart` if the sums are such.
    """

    def weighted(trained: list[tf.Tensor], beta: tf.Tensor) -> list[tf.Tensor]:
        return [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]

    return update_outputs(per_client(weighted, trained, beta), beta, sums, clients, per_client)


def update_outputs(
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
    sums: AnyDomainSums,
    clients: ClientGroup,
    per_client: PerClient,
) -> Any:
    """Returns the same of updates that are weighted already.

    Args:
        weighted_delta: What each client adds to the sum, like the trainable weights.
        beta: Weight of each client.
        sums: What it has measured.
        clients: The clients.
        per_client: How functions of one client are applied.
    """
    output = training_output(weighted_delta, beta, sums, no_clients(clients))
    return only_sound(output, beta, clients, per_client)


def only_sound(output: Any, weight: tf.Tensor, clients: ClientGroup, per_client: PerClient) -> Any:
    """Returns answers in which clients that could spoil a sum add nothing but their count.

    A client without examples, or with a value that is not finite, sends zeros.

    Args:
        output: A named tuple with a field `clients` of `ClientCounts`, which is filled.
        weight: Weight of each client; where it is positive, the client contributes.
        clients: The clients.
        per_client: How functions of one client are applied.
    """
    is_finite = per_client(all_finite, [v for v in tf.nest.flatten(output) if v.dtype.is_floating])
    is_empty = tf.equal(clients.num_examples, 0)
    is_finite |= is_empty
    is_kept = is_finite & ~is_empty
    kept = zeros_unless(is_kept, output)
    has_weight = weight > 0

    def one_if(condition: tf.Tensor) -> tf.Tensor:
        return tf.cast(condition, tf.int64)

    return kept._replace(
        clients=ClientCounts(
            contributed=one_if(is_kept & has_weight),
            zero_weight=one_if(is_kept & ~has_weight),
            empty=one_if(is_empty),
            non_finite=one_if(~is_finite),
        )
    )


def zeros_unless(is_kept: tf.Tensor, output: Any) -> Any:
    """Returns an answer with zeros in place of all values of clients that are not kept."""

    def masked(value: tf.Tensor) -> tf.Tensor:
        shape = [-1] * is_kept.shape.rank + [1] * (value.shape.rank - is_kept.shape.rank)
        return tf.where(tf.reshape(is_kept, shape), value, tf.zeros_like(value))

    # Nearly always all are kept, and then nothing need be copied.
    return tf.cond(
        tf.reduce_all(is_kept),
        lambda: output,
        lambda: tf.nest.map_structure(masked, output),
    )


def no_clients(clients: ClientGroup) -> ClientCounts:
    """Returns counts of zero, in the shape of the clients, for `only_sound` to fill."""
    zeros = tf.cast(tf.zeros_like(clients.num_examples), tf.int64)
    return ClientCounts(zeros, zeros, zeros, zeros)


@dataclasses.dataclass(frozen=True)
class ClientWeightingOptions(Settings):
    """Part of the settings of algorithms whose objective is one over clients.

    Attributes:
        client_weighting: Member of `CLIENT_WEIGHTINGS`: "examples" where cohorts are drawn
            uniformly (p_k is then in the weight), "equal" where clients are drawn with
            probabilities p_k.
    """

    client_weighting: str = setting(
        "examples",
        "What a client counts: its number of examples, or equally.",
        choices=CLIENT_WEIGHTINGS,
    )

    def largest_weight(self, limits: ClientLimits) -> float:
        """Returns the most that a client counts within the limits of an aggregation."""
        return 1.0 if self.client_weighting == "equal" else float(limits.max_examples)
