"""What the server reports of an evaluation: numbers made of its sums, in the server's graph."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Callable

import tensorflow as tf

from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    Measurement,
    grid_of,
    measurement_of_model,
)
from tff_agnostic.computations.histogram import Grid
from tff_agnostic.models.functional import Model
from tff_agnostic.models.measures import Measure, measures_of

DEFAULT_PERCENTILES = (10.0, 50.0, 90.0, 95.0)


def _as_they_are(summed: EvaluationOutput) -> EvaluationOutput:
    return summed


@dataclasses.dataclass(frozen=True)
class EvaluationMetrics:
    """Turns the sums of a federated evaluation into what a server reports.

    Attributes:
        model: What is evaluated.
        worst_min_examples: Examples that a domain needs to be the worst one.
        percentiles: Which percentiles of the clients' values, each in (0, 100).
        measurement: (model, p) -> what clients are asked; sums with noise have bounds of their own.
        tidied: What is made of the sums before anything is computed from them.
    """

    model: Model
    worst_min_examples: int = 1
    percentiles: tuple[float, ...] = DEFAULT_PERCENTILES
    measurement: Callable[[Model, int], Measurement] = measurement_of_model
    tidied: Callable[[EvaluationOutput], EvaluationOutput] = _as_they_are

    def __call__(self, summed: EvaluationOutput, aggregator: Mapping[str, Any]) -> Any:
        """Returns the report.

        Args:
            summed: The sums over the clients.
            aggregator: The report of the aggregation, such as what secure sums clipped.

        Returns:
            "domains" has float32 [p] of each measure, and "num_examples"; "overall" the same of all
            examples together and "worst" of the worst domain, float32 scalars. "over_clients" has
            of each measure the mean and the percentiles of the clients' values in each domain, and
            of all their examples in the last row, float32 [p + 1]; "clients" counts them. What is
            undefined is NaN. "sums" are the sums themselves.
        """
        summed = self.tidied(summed)
        sums = summed.sums
        ratios = OrderedDict(loss=(sums.losses, tf.cast(sums.counts, tf.float32)))
        ratios.update((name, tuple(sums.metric_sums[name])) for name in sums.metric_sums)
        domains, overall, worst, over_clients = (OrderedDict() for _ in range(4))
        is_counted = sums.counts >= max(1, self.worst_min_examples)
        for name, measure in measures_of(self.model).items():
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
        self, measure: Measure, of: ClientDistribution
    ) -> "OrderedDict[str, tf.Tensor]":
        mean = _ratio(of.total, tf.cast(of.num_clients, tf.float32))
        values = OrderedDict(mean=_value(measure, mean))
        grid = grid_of(measure.metric)
        for percentile in sorted(self.percentiles):
            quantile = quantiles(grid, of.histogram, percentile / 100)
            values[f"p{percentile:g}"] = _value(measure, tf.cast(quantile, tf.float32))
        return values


def quantiles(grid: Grid, histograms: tf.Tensor, q: float) -> tf.Tensor:
    """Returns the q-quantile of the clients of each histogram; see `histogram.quantile`.

    Args:
        grid: The grid.
        histograms: Clients in each bin, int64 [rows, num_bins].
        q: In [0, 1].

    Returns:
        float64 [rows]; NaN where there are no clients.
    """
    ranks = tf.cumsum(histograms, axis=1)
    total = ranks[:, -1:]
    # Rounded first: 0.7 * 10 is a little less than 7, and the value at 7 would be left out.
    position = tf.round(q * tf.cast(total - 1, tf.float64) * 1e6) / 1e6
    below, above = tf.floor(position), tf.math.ceil(position)
    centers = tf.constant(grid.centers(), tf.float64)

    def at(position: tf.Tensor) -> tf.Tensor:
        """The value of the client at a position: that of the first bin whose rank is beyond it."""
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
    # Of no domain that is counted: undefined.
    best = float("inf") if measure.higher_is_better else float("-inf")
    pick = tf.reduce_min if measure.higher_is_better else tf.reduce_max
    worst = pick(tf.where(is_counted & ~tf.math.is_nan(values), values, best))
    return tf.where(tf.equal(worst, best), _nan(tf.float32), worst)


def _nan(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(float("nan"), dtype)
