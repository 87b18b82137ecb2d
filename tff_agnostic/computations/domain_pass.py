"""CLIENT lines 2 to 6 of Algorithm 1 (Ro et al. 2021): losses and counts of each domain."""

from collections import OrderedDict

import tensorflow as tf

from tff_agnostic.computations.client_group import (
    ClientGroup,
    Each,
    batch_positions,
    one_client,
)
from tff_agnostic.computations.structures import DomainSums, MetricSums
from tff_agnostic.models.functional import Examples, Model, ModelWeights


def domain_pass(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    batch_size: int,
    each: Each = one_client,
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Domain ids are in [0, p): others fail in TensorFlow, and datasets refuse them beforehand.

    Args:
        model: The model.
        num_domains: p.
        weights: w, the same for every client.
        clients: One client, or a group for an `each` in step.
        batch_size: Examples of a client per step; bounds the memory only.
        each: How functions of one client are applied.
    """

    def add_batch(start: tf.Tensor, sums: DomainSums) -> tuple[tf.Tensor, DomainSums]:
        positions = batch_positions(start, batch_size, clients.capacity, each)

        def of_client(batch: Examples, counted: tf.Tensor) -> DomainSums:
            losses, predictions = model.example_losses(
                weights, batch, training=False, seed=tf.zeros([2], tf.int32)
            )
            return sums_by_domain(model, num_domains, batch, counted, losses, predictions)

        batch_sums = each(of_client, clients.take(positions), clients.has(positions))
        return start + batch_size, tf.nest.map_structure(tf.add, sums, batch_sums)

    initial = each(lambda _: zero_sums(model, num_domains), clients.num_examples)
    _, sums = tf.while_loop(
        lambda start, _: start < clients.capacity, add_batch, (tf.constant(0), initial)
    )
    return sums


def zero_sums(model: Model, num_domains: int) -> DomainSums:
    """Returns the sums over no examples."""
    zeros = tf.zeros([num_domains])
    return DomainSums(
        losses=zeros,
        counts=tf.zeros([num_domains], tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )


def sums_by_domain(
    model: Model,
    num_domains: int,
    batch: Examples,
    counted: tf.Tensor,
    losses: tf.Tensor,
    predictions: tf.Tensor,
) -> DomainSums:
    """Returns the sums of a batch.

    Args:
        model: For its metrics.
        num_domains: p.
        batch: n examples.
        counted: Which of them count, boolean [n].
        losses: Their losses, float32 [n].
        predictions: The model's predictions for them.
    """

    def by_domain(values: tf.Tensor) -> tf.Tensor:
        values = tf.where(counted, values, tf.zeros_like(values))
        return tf.math.unsorted_segment_sum(values, batch["domain_id"], num_domains)

    return DomainSums(
        losses=by_domain(losses),
        counts=by_domain(tf.ones(tf.shape(batch["domain_id"]), tf.int64)),
        metric_sums=OrderedDict(
            (
                metric.name,
                MetricSums(*map(by_domain, metric.per_example(batch["y"], predictions))),
            )
            for metric in model.metrics
        ),
    )
