"""Federated evaluation: per domain, over all examples, and as a distribution over clients.

The server learns sums only; the distribution over clients comes from summed histograms, and how a
measure depends on the size of a client from sums over the clients of about the same size.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.computations.client_group import ClientGroup, PerClient, one_client
from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.exchange import Exchange
from tff_agnostic.computations.histogram import Grid, LinearGrid, LogGrid, SizeGrid
from tff_agnostic.computations.server_update import domain_sums_bounds
from tff_agnostic.computations.structures import DomainSums, MetricSums, all_finite
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.metrics import Metric

SIZES = SizeGrid()


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


class SizeSums(NamedTuple):
    """One measure by the clients' numbers of examples, all domains together; see `SIZES`.

    Attributes:
        num_clients: Clients of each size for which the measure is defined, int64 [sizes].
        total: Sum of their values, of a metric its ratios, float32 [sizes].
    """

    num_clients: tf.Tensor
    total: tf.Tensor


class EvaluationOutput(NamedTuple):
    """What a client contributes to an evaluation; the server sees the sum over clients.

    Attributes:
        sums: Losses, counts and metric sums per domain.
        over_clients: The distribution over clients of "loss" and of each metric.
        by_size: The same measures by the clients' numbers of examples.
        clients: Number of clients that were evaluated, had no examples, or gave values that are not
            finite (which add nothing else), int64 scalars.
    """

    sums: DomainSums
    over_clients: "OrderedDict[str, ClientDistribution]"
    by_size: "OrderedDict[str, SizeSums]"
    clients: "OrderedDict[str, tf.Tensor]"


def measure_grids(model: Model) -> "OrderedDict[str, Grid]":
    """Returns the histogram grid of the loss and of each metric's ratio."""
    grids: OrderedDict[str, Grid] = OrderedDict(loss=grid_of(None))
    for metric in model.metrics:
        grids[metric.name] = grid_of(metric)
    return grids


def grid_of(metric: Optional[Metric]) -> Grid:
    """Returns the histogram grid of a metric's ratio, or of the loss if it is None."""
    if metric is None or metric.upper is None:
        return LogGrid()
    return LinearGrid(metric.upper, metric.num_bins)


@dataclasses.dataclass(frozen=True)
class EvaluateClients:
    """The clients' side of an evaluation: measures the weights that are broadcast.

    Attributes:
        model: The model.
        num_domains: p.
    """

    model: Model
    num_domains: int

    def __call__(
        self,
        weights: ModelWeights,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient = one_client,
    ) -> EvaluationOutput:
        """Returns what each client contributes; nothing in it is random."""
        del seed
        sums = domain_pass(self.model, self.num_domains, weights, clients, per_client)
        return per_client(
            lambda sums, n: evaluation_output(self.model, sums, tf.equal(n, 0)),
            sums,
            clients.num_examples,
        )


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A federated evaluation, of one model or of several: one exchange, and no state after it.

    Attributes:
        exchange: What is broadcast is its state: what is measured.
        measured_spec: Spec of that, a structure of `tf.TensorSpec`.
        client_data_spec: Of a client's examples.
    """

    exchange: Exchange
    measured_spec: Any
    client_data_spec: Any


def measurement_of_model(model: Model, num_domains: int) -> Measurement:
    """Returns the evaluation of one model's weights; its sums are an `EvaluationOutput`."""
    return Measurement(
        Exchange(
            name="evaluation",
            prepare=lambda weights, sums: weights,
            client=EvaluateClients(model, num_domains),
            bounds=lambda limits: evaluation_bounds(model, limits),
            bytes_per_example=model.bytes_per_example,
        ),
        weights_spec(model),
        model.client_data_spec(),
    )


def weights_spec(model: Model) -> ModelWeights:
    """Returns the spec of a model's weights."""
    return tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), model.initial_weights)


def evaluation_output(model: Model, sums: DomainSums, is_empty: tf.Tensor) -> EvaluationOutput:
    """Returns what one client contributes, from its sums over each domain; or zeros.

    Args:
        model: The model.
        sums: Of the client, values [p].
        is_empty: Whether it has no examples, boolean scalar.
    """
    ratios = OrderedDict(loss=MetricSums(sums.losses, tf.cast(sums.counts, tf.float32)))
    ratios.update(sums.metric_sums)
    over_clients = OrderedDict(
        (name, _client_distribution(grid, ratios[name]))
        for name, grid in measure_grids(model).items()
    )
    is_finite = all_finite([sums.losses, sums.metric_sums])
    is_of_size = SIZES.holds(tf.reduce_sum(sums.counts)) & is_finite
    by_size = _by_size(is_of_size, over_clients)
    sums, over_clients = tf.nest.map_structure(
        lambda value: tf.where(is_finite, value, tf.zeros_like(value)), (sums, over_clients)
    )
    clients = OrderedDict(
        evaluated=tf.cast(is_finite & ~is_empty, tf.int64),
        empty=tf.cast(is_empty, tf.int64),
        non_finite=tf.cast(~is_finite, tf.int64),
    )
    return EvaluationOutput(sums, over_clients, by_size, clients)


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


def _by_size(
    is_of_size: tf.Tensor, over_clients: Mapping[str, ClientDistribution]
) -> "OrderedDict[str, SizeSums]":
    counted, none = tf.cast(is_of_size, tf.int64), tf.zeros([SIZES.num_bins])
    return OrderedDict(
        # Of all of a client's examples together; the value is 0 where it is undefined.
        (name, SizeSums(counted * of.num_clients[-1], tf.where(is_of_size, of.total[-1], none)))
        for name, of in over_clients.items()
    )


def evaluation_bounds(model: Model, limits: ClientLimits) -> EvaluationOutput:
    """Returns the bounds of what one client contributes, for secure sums."""
    one = Bound(1, integer=True)
    largest = {"loss": limits.max_loss}
    largest.update((m.name, m.max_numerator if m.upper is None else m.upper) for m in model.metrics)
    return EvaluationOutput(
        sums=domain_sums_bounds(model, limits),
        over_clients=OrderedDict(
            (name, ClientDistribution(one, Bound(limit), one)) for name, limit in largest.items()
        ),
        by_size=OrderedDict((name, SizeSums(one, Bound(limit))) for name, limit in largest.items()),
        clients=OrderedDict(evaluated=one, empty=one, non_finite=one),
    )
