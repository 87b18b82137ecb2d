"""CLIENT lines 2 to 6 of Algorithm 1 (Ro et al. 2021): losses and counts of each domain."""

from collections import OrderedDict
from typing import NamedTuple

import tensorflow as tf

from tff_agnostic.computations.client_group import (
    ClientGroup,
    PerClient,
    batch_positions,
    one_client,
)
from tff_agnostic.computations.structures import DomainSums, MetricSums
from tff_agnostic.models.functional import Examples, Model, ModelWeights

_BATCH_SIZE = 256


def domain_pass(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    per_client: PerClient = one_client,
    batch_size: int = _BATCH_SIZE,
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Domain ids are in [0, p): others fail in TensorFlow, and datasets refuse them beforehand.

    Args:
        model: The model.
        num_domains: p.
        weights: w, the same for every client.
        clients: One client, or many in step.
        per_client: How functions of one client are applied.
        batch_size: Examples of a client per step; bounds the memory only.
    """

    def add_batch(start: tf.Tensor, sums: DomainSums) -> tuple[tf.Tensor, DomainSums]:
        positions = batch_positions(start, batch_size, clients.capacity, per_client)
        batch = clients.take(positions)

        def of_client(batch: Examples) -> ExampleMeasures:
            losses, predictions = model.example_losses(
                weights, batch, training=False, seed=tf.zeros([2], tf.int32)
            )
            return measure_examples(model, batch, losses, predictions)

        counted = clients.has(positions)
        next_sums = add_by_domain(sums, batch["domain_id"], counted, per_client(of_client, batch))
        return start + batch_size, next_sums

    _, sums = tf.while_loop(
        lambda start, _: start < clients.capacity,
        add_batch,
        (tf.constant(0), zero_sums(model, num_domains, clients)),
    )
    return sums


class ExampleMeasures(NamedTuple):
    """What is measured of each of n examples.

    Attributes:
        losses: float32 [n].
        metrics: Numerator and denominator of each metric, float32 [n].
    """

    losses: tf.Tensor
    metrics: "OrderedDict[str, MetricSums]"


def measure_examples(
    model: Model, batch: Examples, losses: tf.Tensor, predictions: tf.Tensor
) -> ExampleMeasures:
    """Returns the measures of one client's batch, from its losses and predictions."""
    return ExampleMeasures(
        losses,
        OrderedDict(
            (metric.name, MetricSums(*metric.per_example(batch["y"], predictions)))
            for metric in model.metrics
        ),
    )


def zero_sums(model: Model, num_domains: int, clients: ClientGroup) -> DomainSums:
    """Returns each client's sums over no examples: values [p], in a group [G, p]."""
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    zeros = tf.zeros(shape)
    return DomainSums(
        losses=zeros,
        counts=tf.zeros(shape, tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )


def add_by_domain(
    sums: DomainSums, domain_id: tf.Tensor, counted: tf.Tensor, batch: ExampleMeasures
) -> DomainSums:
    """Adds the measures of a batch to the sums of each client.

    Args:
        sums: Values [p], in a group [G, p].
        domain_id: int32 [b], in a group [G, b].
        counted: Which examples count, boolean in the same shape.
        batch: Measures in the same shape.
    """

    def add(total: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        # The batch by itself first: added one by one to a sum that is large already, small losses
        # would be rounded away, and of a client with 20,000 examples the fourth digit.
        values = tf.where(counted, values, tf.zeros_like(values))
        return total + add_at(tf.zeros_like(total), domain_id, values)

    return DomainSums(
        losses=add(sums.losses, batch.losses),
        counts=add(sums.counts, tf.cast(counted, tf.int64)),
        metric_sums=tf.nest.map_structure(add, sums.metric_sums, batch.metrics),
    )


def add_at(total: tf.Tensor, domain_id: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds values [b] to the entries of their domains in a total [p]; in a group [G, b], [G, p].

    What it touches is as much as there are examples, however many domains there are.
    """
    num_domains = tf.shape(total)[-1]
    # All clients' totals lie end to end.
    first = tf.range(tf.size(total) // num_domains) * num_domains
    positions = tf.reshape(first, tf.shape(total)[:-1])[..., tf.newaxis] + domain_id
    flat = tf.tensor_scatter_nd_add(
        tf.reshape(total, [-1]), tf.reshape(positions, [-1, 1]), tf.reshape(values, [-1])
    )
    return tf.reshape(flat, tf.shape(total))
