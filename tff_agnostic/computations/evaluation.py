"""Federated evaluation: per domain, over all examples, and as a distribution over clients.

The server learns sums only; the distribution over clients comes from summed histograms.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import Aggregation, Bound, SecureBounds
from tff_agnostic.computations.client_group import (
    ClientGroup,
    Each,
    group_of_one,
    one_client,
)
from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.histogram import Grid, LinearGrid, LogGrid
from tff_agnostic.computations.structures import DomainSums, MetricSums, all_finite
from tff_agnostic.computations.template import type_from_spec
from tff_agnostic.models.functional import Model, ModelWeights

_BATCH_SIZE = 256


class ClientDistribution(NamedTuple):
    """Sums that describe how one measure is spread over clients.

    Rows 0 to p-1 are domains, row p is all of a client's examples together. A client counts in a
    row if the measure is defined for it there.

    Attributes:
        num_clients: Clients in each row, int64 [p + 1].
        total: Sum of their values, of a metric its ratios, float32 [p + 1].
        histogram: The same on the measure's grid, int64 [p + 1, bins].
    """

    num_clients: tf.Tensor
    total: tf.Tensor
    histogram: tf.Tensor


class EvaluationOutput(NamedTuple):
    """What a client contributes to an evaluation; the server sees the sum over clients.

    Attributes:
        sums: Losses, counts and metric sums per domain.
        over_clients: The distribution over clients of "loss" and of each metric.
        clients: Number of clients that were evaluated, had no examples, or gave values that are not
            finite (which add nothing else), int64 scalars.
    """

    sums: DomainSums
    over_clients: "OrderedDict[str, ClientDistribution]"
    clients: "OrderedDict[str, tf.Tensor]"


def measure_grids(model: Model) -> "OrderedDict[str, Grid]":
    """Returns the histogram grid of the loss and of each metric's ratio."""
    grids: OrderedDict[str, Grid] = OrderedDict(loss=LogGrid())
    for metric in model.metrics:
        grids[metric.name] = (
            LogGrid() if metric.upper is None else LinearGrid(metric.upper, metric.num_bins)
        )
    return grids


def evaluate_clients(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    each: Each = one_client,
) -> EvaluationOutput:
    """Evaluates `weights` on the data of one client, or of each of a group."""
    sums = domain_pass(model, num_domains, weights, clients, _BATCH_SIZE, each)
    return each(
        lambda sums, n: _evaluation_output(model, sums, tf.equal(n, 0)), sums, clients.num_examples
    )


def _evaluation_output(model: Model, sums: DomainSums, is_empty: tf.Tensor) -> EvaluationOutput:
    ratios = OrderedDict(loss=MetricSums(sums.losses, tf.cast(sums.counts, tf.float32)))
    ratios.update(sums.metric_sums)
    over_clients = OrderedDict(
        (name, _client_distribution(grid, ratios[name]))
        for name, grid in measure_grids(model).items()
    )
    is_finite = all_finite([sums.losses, sums.metric_sums])
    sums, over_clients = tf.nest.map_structure(
        lambda value: tf.where(is_finite, value, tf.zeros_like(value)), (sums, over_clients)
    )
    clients = OrderedDict(
        evaluated=tf.cast(is_finite & ~is_empty, tf.int64),
        empty=tf.cast(is_empty, tf.int64),
        non_finite=tf.cast(~is_finite, tf.int64),
    )
    return EvaluationOutput(sums, over_clients, clients)


def _client_distribution(grid: Grid, ratio: MetricSums) -> ClientDistribution:
    def with_overall(values: tf.Tensor) -> tf.Tensor:
        return tf.concat([values, [tf.reduce_sum(values)]], axis=0)

    denominator = with_overall(ratio.denominator)
    value = tf.math.divide_no_nan(with_overall(ratio.numerator), denominator)
    defined = denominator > 0
    bins = tf.one_hot(grid.bin_of(value), grid.num_bins, dtype=tf.int64)
    return ClientDistribution(
        num_clients=tf.cast(defined, tf.int64),
        total=value,
        histogram=bins * tf.cast(defined, tf.int64)[:, tf.newaxis],
    )


def evaluation_bounds(model: Model, bounds: SecureBounds) -> EvaluationOutput:
    """Returns the bound of every value of `EvaluationOutput`, in its structure."""
    n = bounds.max_examples
    one = Bound(1, integer=True)
    largest = {"loss": bounds.max_loss}
    largest.update((m.name, m.max_numerator if m.upper is None else m.upper) for m in model.metrics)
    return EvaluationOutput(
        sums=DomainSums(
            losses=Bound(n * bounds.max_loss),
            counts=Bound(n, integer=True),
            metric_sums=OrderedDict(
                (m.name, MetricSums(Bound(n * m.max_numerator), Bound(n * m.max_denominator)))
                for m in model.metrics
            ),
        ),
        over_clients=OrderedDict(
            (name, ClientDistribution(one, Bound(limit), one)) for name, limit in largest.items()
        ),
        clients=OrderedDict(evaluated=one, empty=one, non_finite=one),
    )


def build_evaluation(model: Model, num_domains: int, aggregation: Aggregation) -> tff.Computation:
    """Returns a TFF computation (weights at the server, client data) -> `EvaluationOutput` sums."""
    bounds = evaluation_bounds(model, aggregation.bounds)
    weights_type = tff.to_type(
        ModelWeights(
            *[[tff.TensorType(w.dtype, w.shape) for w in ws] for ws in model.initial_weights]
        )
    )
    client_data_type = type_from_spec(model.client_data_spec())

    @tff.tensorflow.computation(weights_type, client_data_type)
    def client_work(weights: Any, examples: Any) -> Any:
        output = evaluate_clients(model, num_domains, weights, group_of_one(examples))
        return aggregation.encode(output, bounds)

    @tff.tensorflow.computation(client_work.type_signature.result)
    def decode(summed: Any) -> Any:
        output, _ = aggregation.decode(summed, bounds)
        return output

    @tff.federated_computation(
        tff.FederatedType(weights_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def evaluate(weights: Any, client_data: Any) -> Any:
        encoded = tff.federated_map(client_work, (tff.federated_broadcast(weights), client_data))
        return tff.federated_map(decode, aggregation.federated_sum(encoded, bounds))

    return evaluate
