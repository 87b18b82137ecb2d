"""CLIENT lines 2 to 6 of Algorithm 1 (Ro et al. 2021): losses and counts of each domain."""

from collections import OrderedDict

import tensorflow as tf

from tff_agnostic.computations.structures import DomainSums, MetricSums
from tff_agnostic.models.functional import Examples, Model, ModelWeights, num_examples


def domain_pass(
    model: Model, num_domains: int, weights: ModelWeights, examples: Examples, batch_size: int
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Domain ids are in [0, p): others fail in TensorFlow, and datasets refuse them beforehand.
    """
    n = num_examples(examples)
    zeros = tf.zeros([num_domains])
    initial = DomainSums(
        losses=zeros,
        counts=tf.zeros([num_domains], tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )

    def add_batch(start: tf.Tensor, sums: DomainSums) -> tuple[tf.Tensor, DomainSums]:
        end = tf.minimum(start + batch_size, n)
        batch = tf.nest.map_structure(lambda column: column[start:end], examples)
        losses, predictions = model.example_losses(
            weights, batch, training=False, seed=tf.zeros([2], tf.int32)
        )

        def by_domain(values: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(values, batch["domain_id"], num_domains)

        batch_sums = DomainSums(
            losses=by_domain(losses),
            counts=by_domain(tf.ones_like(batch["domain_id"], tf.int64)),
            metric_sums=OrderedDict(
                (
                    metric.name,
                    MetricSums(*map(by_domain, metric.per_example(batch["y"], predictions))),
                )
                for metric in model.metrics
            ),
        )
        return end, tf.nest.map_structure(tf.add, sums, batch_sums)

    _, sums = tf.while_loop(lambda start, _: start < n, add_batch, (tf.constant(0), initial))
    return sums
