"""How often each outcome is among the examples of each domain, as a federated measurement.

What unigram models are made of; the server learns sums over clients.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.domain_pass import add_at
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.exchange import Exchange
from tff_agnostic.models.functional import Model


class OutcomeCounts(NamedTuple):
    """What a client sends.

    Attributes:
        counts: Of each domain and outcome, one after the other, int64 [p * outcomes].
        clients: 1 for each domain that it has examples of, int64 [p].
    """

    counts: tf.Tensor
    clients: tf.Tensor


@dataclasses.dataclass(frozen=True)
class CountOutcomes:
    """What a client does: counts the labels of its examples.

    Attributes:
        num_domains: p.
        num_outcomes: Labels are in [0, outcomes).
    """

    num_domains: int
    num_outcomes: int

    def __call__(
        self, measured: tf.Tensor, clients: ClientGroup, seed: tf.Tensor, per_client: PerClient
    ) -> OutcomeCounts:
        """Returns what each client sends."""
        del measured, seed
        positions = tf.range(clients.capacity)
        batch, counted = clients.take(positions), clients.has(positions)
        places = batch["domain_id"] * self.num_outcomes + tf.cast(batch["y"], tf.int32)
        shape = tf.concat(
            [tf.shape(clients.num_examples), [self.num_domains * self.num_outcomes]], axis=0
        )
        counts = add_at(tf.zeros(shape, tf.int64), places, tf.cast(counted, tf.int64))

        def has_domain(counts: tf.Tensor) -> tf.Tensor:
            of_domain = tf.reduce_sum(tf.reshape(counts, [self.num_domains, -1]), axis=1)
            return tf.cast(of_domain > 0, tf.int64)

        return OutcomeCounts(counts, per_client(has_domain, counts))


def measurement_of_outcomes(model: Model, num_domains: int, num_outcomes: int) -> Measurement:
    """Returns the measurement; its sums are an `OutcomeCounts`, and what it measures is nothing."""

    def bounds(limits: ClientLimits) -> OutcomeCounts:
        return OutcomeCounts(Bound(limits.max_examples, integer=True), Bound(1, integer=True))

    return Measurement(
        Exchange(
            name="counts",
            prepare=lambda nothing, sums: nothing,
            client=CountOutcomes(num_domains, num_outcomes),
            bounds=bounds,
        ),
        tf.TensorSpec([], tf.int32),
        model.client_data_spec(),
    )
