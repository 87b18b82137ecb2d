"""Metrics of a round as scalars, which the platform's servers record.

A metric per domain becomes scalars NAME/0 to NAME/(p - 1), and NAME/overall if all domains have a
common value. Metrics with more dimensions are in the checkpoint only.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportField, ReportFields, Unit
from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    Measurement,
    metric_grid,
    model_measurement,
)
from tff_agnostic.computations.histograms import Grid
from tff_agnostic.deployment.graphs import METRICS, Leaf, node_name
from tff_agnostic.models.model import Measure, Model, model_measures

DEFAULT_PERCENTILES = (10.0, 50.0, 90.0, 95.0)
OVERALL = "overall"


def _unchanged(summed: EvaluationOutput) -> EvaluationOutput:
    return summed


@dataclasses.dataclass(frozen=True)
class EvaluationMetrics:
    """The server's report of a federated evaluation, computed from its sums.

    Attributes:
        worst_min_examples: Minimum number of examples that a domain needs to be the worst.
        percentiles: Percentiles of the clients' values to compute, each in (0, 100).
        measurement: Called with (model, p); returns the clients' measurement, which has other
            bounds if its sums get noise.
        tidied: Called with the sums; returns the sums to report.
    """

    model: Model
    worst_min_examples: int = 1
    percentiles: tuple[float, ...] = DEFAULT_PERCENTILES
    measurement: Callable[[Model, int], Measurement] = model_measurement
    tidied: Callable[[EvaluationOutput], EvaluationOutput] = _unchanged

    def __call__(self, summed: EvaluationOutput, aggregator: Mapping[str, Any]) -> Any:
        """Returns the report.

        Args:
            aggregator: Report of the aggregation, such as the number of values that secure sums
                clipped.

        Returns:
            "domains": each measure, float32 [p], and "num_examples". "overall": the same for all
            examples together. "worst": each measure of the worst domain. "over_clients": mean and
            percentiles of the clients' values of each measure in each domain, and for all examples
            in the last row, float32 [p + 1]. "clients": numbers of clients. "sums": the sums.
            Undefined values are NaN.
        """
        summed = self.tidied(summed)
        sums = summed.sums
        ratios = OrderedDict(loss=(sums.losses, tf.cast(sums.counts, tf.float32)))
        ratios.update((name, tuple(sums.metric_sums[name])) for name in sums.metric_sums)
        domains, overall, worst, over_clients = (OrderedDict() for _ in range(4))
        is_counted = sums.counts >= max(1, self.worst_min_examples)
        for name, measure in model_measures(self.model).items():
            numerator, denominator = ratios[name]
            domains[name] = _value(measure, _ratio(numerator, denominator))
            overall[name] = _value(
                measure, _ratio(tf.reduce_sum(numerator), tf.reduce_sum(denominator))
            )
            worst[name] = _worst(measure, domains[name], is_counted)
            over_clients[name] = self._over_clients(measure, summed.over_clients[name])
        domains["num_examples"] = sums.counts
        overall["num_examples"] = tf.reduce_sum(sums.counts)
        return OrderedDict(
            domains=domains,
            overall=overall,
            worst=worst,
            over_clients=over_clients,
            clients=summed.clients,
            aggregator=aggregator,
            sums=summed,
        )

    def _over_clients(
        self, measure: Measure, clients: ClientDistribution
    ) -> OrderedDict[str, tf.Tensor]:
        mean = _ratio(clients.total, tf.cast(clients.num_clients, tf.float32))
        values = OrderedDict(mean=_value(measure, mean))
        grid = metric_grid(measure.metric)
        for percentile in sorted(self.percentiles):
            quantile = quantiles(grid, clients.histogram, percentile / 100)
            values[f"p{percentile:g}"] = _value(measure, tf.cast(quantile, tf.float32))
        return values


def quantiles(grid: Grid, histograms: tf.Tensor, q: float) -> tf.Tensor:
    """Returns the q-quantile of each histogram over clients; see `histograms.quantile`.

    Args:
        histograms: Number of clients in each bin, int64 [rows, num_bins].
        q: Fraction of the clients below the quantile, in [0, 1].

    Returns:
        float64 [rows]; NaN without clients.
    """
    ranks = tf.cumsum(histograms, axis=1)
    total = ranks[:, -1:]
    # Round first: 0.7 * 10 is a little less than 7.
    position = tf.round(q * tf.cast(total - 1, tf.float64) * 1e6) / 1e6
    below, above = tf.floor(position), tf.math.ceil(position)
    centers = tf.constant(grid.centers(), tf.float64)

    def at(position: tf.Tensor) -> tf.Tensor:
        """Returns the center of the first bin whose ranks exceed the position."""
        is_before = ranks <= tf.cast(position, tf.int64)
        index = tf.reduce_sum(tf.cast(is_before, tf.int32), axis=1)
        return tf.gather(centers, tf.minimum(index, grid.num_bins - 1))

    lower, upper = at(below), at(above)
    value = lower + tf.squeeze(position - below, axis=1) * (upper - lower)
    return tf.where(tf.squeeze(total, axis=1) > 0, value, _nan(tf.float64))


def _ratio(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    quotient = tf.math.divide_no_nan(numerator, denominator)
    return tf.where(denominator > 0, quotient, _nan(tf.float32))


def _value(measure: Measure, ratio: tf.Tensor) -> tf.Tensor:
    return ratio if measure.metric is None else measure.metric.value(ratio)


def _worst(measure: Measure, values: tf.Tensor, is_counted: tf.Tensor) -> tf.Tensor:
    best = float("inf") if measure.higher_is_better else float("-inf")
    pick = tf.reduce_min if measure.higher_is_better else tf.reduce_max
    worst = pick(tf.where(is_counted & ~tf.math.is_nan(values), values, best))
    return tf.where(tf.equal(worst, best), _nan(tf.float32), worst)


def _nan(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(float("nan"), dtype)


class Overall(NamedTuple):
    """A metric over all domains, computed from the entries per domain.

    Attributes:
        metric: Path of the metric with an entry per domain.
        weights: Path of the numbers of examples, which are the weights of a mean; None for a sum.
    """

    metric: str
    weights: Optional[str]


def overall_metrics(quantities: ReportFields, scope: str = "") -> Iterator[Overall]:
    """Yields the metrics that have a value for all domains together.

    Numbers of examples are summed. Means over a domain's examples are averaged, weighted by the
    preceding numbers of examples in the same report. Other metrics, such as perplexities, have no
    overall value.
    """
    counts = None
    for key, quantity in quantities.items():
        if isinstance(quantity, ReportField) and _counts_examples(quantity):
            counts = counts or f"{scope}{key}"
    for key, quantity in quantities.items():
        if isinstance(quantity, Mapping):
            yield from overall_metrics(quantity, f"{scope}{key}/")
        elif _counts_examples(quantity):
            yield Overall(f"{scope}{key}", None)
        elif quantity.needs_examples and quantity.unit is not Unit.FACTOR and counts:
            yield Overall(f"{scope}{key}", counts)


def scalar_outputs(
    metrics: Sequence[Leaf], values: Sequence[tf.Tensor], quantities: ReportFields
) -> dict[str, tf.Tensor]:
    """Returns the scalar metrics of a round by name, each in a node of that name."""
    by_path = {leaf.path: value for leaf, value in zip(metrics, values)}
    scalars: dict[str, tf.Tensor] = {}
    for leaf in metrics:
        if leaf.shape.rank > 1:
            continue
        name = leaf.named(METRICS).name
        for index in itertools.product(*map(range, leaf.shape.as_list())):
            at = "/".join(map(str, (name, *index)))
            scalars[at] = by_path[leaf.path][index] if index else by_path[leaf.path]
    for metric, weights in overall_metrics(quantities):
        counts = None if weights is None else by_path[weights]
        name = f"{METRICS}/{node_name(metric)}/{OVERALL}"
        scalars[name] = overall_value(by_path[metric], counts)
    return {name: tf.identity(value, name=name) for name, value in scalars.items()}


def overall_value(values: tf.Tensor, counts: Optional[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of `values` [p], or their mean weighted by `counts` [p].

    Domains without examples are ignored, even if their value is NaN. If no domain has examples, the
    mean is 0.
    """
    if counts is None:
        return tf.reduce_sum(values)
    weights = tf.cast(counts, values.dtype)
    weighted = tf.where(weights > 0, values * weights, tf.zeros_like(values))
    return tf.math.divide_no_nan(tf.reduce_sum(weighted), tf.reduce_sum(weights))


def _counts_examples(quantity: ReportField) -> bool:
    return quantity.per_domain and quantity.unit is Unit.EXAMPLES
