"""One measure of a model: its value on a set of examples, and how it is spread over clients."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.computations.evaluation import ClientDistribution, grid_of
from tff_agnostic.computations.histogram import LinearGrid, quantile, superquantile
from tff_agnostic.models.measures import Measure
from tff_agnostic.models.metrics import Metric
from tff_agnostic.program.reporting.intervals import (
    Interval,
    mean_interval,
    quantile_interval,
    share_interval,
    superquantile_interval,
)
from tff_agnostic.quantities import Unit

# How percentiles over clients are made; release 0.1.0 took the nearest rank.
PERCENTILES = "interpolated"
DEFAULT_PERCENTILES = (10.0, 50.0, 90.0, 95.0)
# The part of the clients, the worst ones, whose mean is the superquantile.
SUPERQUANTILE_SHARE = 0.1
SUPERQUANTILE = "superquantile"
# In intervals: what stands for all examples of a set, beside the statistics over clients.
VALUE = "value"


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """What a measure on a set of examples is worked out from.

    Attributes:
        measure: What was measured.
        denominator: Sum over the examples; of an accuracy their number.
        ratio: Of the sums over the examples.
        mean_ratio: Mean over clients of their ratios.
        histogram: The clients' ratios on the measure's grid, int [bins].
    """

    measure: Measure
    denominator: float
    ratio: float
    mean_ratio: float
    histogram: np.ndarray

    def intervals(self, percentiles: Sequence[float]) -> dict[str, Interval]:
        """Returns the confidence intervals of the value, and of `statistic_names`, by name.

        See `intervals`; that of the value is for shares only. None where there is none.
        """
        measure, histogram = self.measure, self.histogram
        grid, unit = grid_of(measure.metric), measure.unit
        centers, smallest = grid.centers(), not measure.higher_is_better
        is_share = unit is Unit.SHARE and (measure.metric is None or not measure.metric.transform)
        found = [
            share_interval(self.ratio, self.denominator) if is_share else None,
            mean_interval(centers, histogram, self.mean_ratio),
            *(quantile_interval(centers, histogram, p / 100) for p in sorted(percentiles)),
            superquantile_interval(centers, histogram, SUPERQUANTILE_SHARE, smallest),
        ]
        names = (VALUE, *statistic_names(percentiles))
        # Ratios are none below 0, and those on a linear grid end where it does.
        upper = grid.upper if isinstance(grid, LinearGrid) else math.inf
        return {
            name: None
            if ends is None
            else _in_order([value_of(measure.metric, min(max(end, 0.0), upper)) for end in ends])
            for name, ends in zip(names, found)
        }


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measure on a set of examples, and its distribution over the clients that hold them.

    All of it in the measure's own values: those of a metric with a `transform` are transformed.

    Attributes:
        value: Over all examples of the set; NaN if there are none, infinite if it is too large.
        num_clients: Clients with examples of the set.
        mean: Mean of the clients' values; of a metric with a transform, the transform of the mean
            of their ratios: of perplexity the geometric mean.
        percentiles: Percentiles of the clients' values, each in (0, 100), in ascending order; see
            `histogram.quantile`. Of a metric with a transform, the transform of their ratios'
            percentile.
        superquantile: Mean of the worst tenth of the clients' values; see
            `histogram.superquantile`. Of a metric with a transform, the transform of their ratios'.
        sums: What all of this was worked out from; None if nobody knows any more.
    """

    value: float
    num_clients: int
    mean: float
    percentiles: Mapping[float, float]
    superquantile: float
    sums: Optional[Sums] = dataclasses.field(default=None, compare=False, repr=False)

    def over_clients(self) -> dict[str, float]:
        """Returns what describes the distribution, by `statistic_names`."""
        values = (self.mean, *self.percentiles.values(), self.superquantile)
        return dict(zip(statistic_names(tuple(self.percentiles)), values))

    def intervals(self) -> dict[str, Any]:
        """Returns a JSON value: [low, high] or null by what they are of; see `Sums.intervals`."""
        if self.sums is None:
            return {}
        found = self.sums.intervals(tuple(self.percentiles))
        return {name: _finite_ends(ends) for name, ends in found.items()}


def statistic_names(percentiles: Sequence[float]) -> tuple[str, ...]:
    """Returns what a distribution over clients is described by: "mean", "p10", "superquantile"."""
    return ("mean", *map(percentile_name, sorted(percentiles)), SUPERQUANTILE)


def percentile_name(percentile: float) -> str:
    """Returns what columns and keys call a percentile: "p10", "p99.5"."""
    return f"p{percentile:g}"


def measured(
    numerator: float,
    denominator: float,
    over_clients: ClientDistribution,
    row: int,
    measure: Measure,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> Measured:
    """Returns a measure on a set of examples, from sums.

    Args:
        numerator: Sum over the examples.
        denominator: The same.
        over_clients: The sums over clients.
        row: The set's row in them.
        measure: What was measured.
        percentiles: Which, each in (0, 100).
    """
    grid = grid_of(measure.metric)
    num_clients = int(over_clients.num_clients[row])
    histogram = np.asarray(over_clients.histogram[row])
    ratio = float(numerator / denominator) if denominator else math.nan
    mean_ratio = float(over_clients.total[row]) / num_clients if num_clients else math.nan

    def value(ratio: float) -> float:
        return value_of(measure.metric, ratio)

    return Measured(
        value=value(ratio),
        num_clients=num_clients,
        mean=value(mean_ratio),
        percentiles={p: value(quantile(grid, histogram, p / 100)) for p in sorted(percentiles)},
        superquantile=value(
            superquantile(grid, histogram, SUPERQUANTILE_SHARE, not measure.higher_is_better)
        ),
        sums=Sums(measure, float(denominator), ratio, mean_ratio, histogram),
    )


def value_of(metric: Optional[Metric], ratio: float) -> float:
    """Returns the value of a metric from its ratio; a loss, where there is no metric, is one."""
    return float(values_of(metric, np.asarray(ratio, np.float64)))


def values_of(metric: Optional[Metric], ratios: np.ndarray) -> np.ndarray:
    """Returns the same of ratios of any shape, float64."""
    return ratios if metric is None else np.asarray(metric.value(ratios))


def _in_order(ends: Sequence[float]) -> tuple[float, float]:
    low, high = sorted(ends)
    return low, high


def _finite_ends(ends: Interval) -> Optional[list[float]]:
    return None if ends is None or not all(map(math.isfinite, ends)) else list(ends)
