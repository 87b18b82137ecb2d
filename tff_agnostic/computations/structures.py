"""What travels between server and clients in a round."""

from collections import OrderedDict
from typing import Any, NamedTuple, Union

import tensorflow as tf

from tff_agnostic.models.functional import ModelWeights


class Message(NamedTuple):
    """What the server sends to every client in an exchange.

    Attributes:
        broadcast: What the exchange prepared.
        aggregation: What the aggregation needs of its state.
        seed: Of the round: (seed of the run, number of the round), int32 [2].
    """

    broadcast: Any
    aggregation: Any
    seed: tf.Tensor


class TrainingBroadcast(NamedTuple):
    """What the server broadcasts to clients that train.

    Attributes:
        weights: w_{t-1}.
        alpha: Scale of each domain, float32 [p].
    """

    weights: ModelWeights
    alpha: tf.Tensor


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


class MetricSums(NamedTuple):
    """Numerator and denominator of a metric per domain, float32 [p]."""

    numerator: tf.Tensor
    denominator: tf.Tensor


class DomainSums(NamedTuple):
    """Sums over the examples of each domain at given weights; see `TrainingOutput`."""

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"

    @property
    def trained(self) -> tf.Tensor:
        """Number of examples of each domain that are trained on: those that are measured."""
        return self.counts


class DomainSumsApart(NamedTuple):
    """Sums over examples that are kept out of training, and the number of those that are not."""

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"
    trained: tf.Tensor


AnyDomainSums = Union[DomainSums, DomainSumsApart]
AnyTrainingOutput = Union[TrainingOutput, TrainingOutputApart]


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
