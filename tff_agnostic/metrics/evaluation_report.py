"""Reports of federated evaluations per domain and over clients, computed from sums over clients.

A measure is the loss or a metric. From the clients' values of a measure, the server only gets two
histograms: the number of clients by value, and the mean value by size of the client. Reports omit
empty bins, so that result.json stays small.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.computations.evaluation import (
    SIZES,
    ClientDistribution,
    EvaluationOutput,
    SizeSums,
    metric_grid,
)
from tff_agnostic.computations.histograms import LinearGrid, quantile, superquantile
from tff_agnostic.data.store_format import TEST
from tff_agnostic.domain_weights import LambdaSet, Simplex
from tff_agnostic.metrics.class_counts import ClassReport, class_report
from tff_agnostic.metrics.intervals import (
    LEVEL,
    Interval,
    Resampled,
    effective_clients,
    mean_interval,
    quantile_interval,
    replicate_ratios,
    share_interval,
    superquantile_interval,
)
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Measure, Model, model_measures

# Name in result.json of the method for percentiles over clients.
PERCENTILES = "interpolated"
DEFAULT_PERCENTILES = (10.0, 50.0, 90.0, 95.0)
# The superquantile is the mean over this fraction of the clients, the worst ones.
SUPERQUANTILE_SHARE = 0.1
SUPERQUANTILE = "superquantile"
# Key of the interval for `Measured.value`.
VALUE = "value"
# Significant digits of the centres of bins; bins are wider than the rounding error.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measure on a set of examples, and its distribution over clients that have some of them.

    If a metric has a `transform`, statistics are computed from the clients' ratios, and then
    transformed. For example, the mean of perplexity is a geometric mean.

    Attributes:
        value: Value on all examples of the set; NaN without examples, infinite if it is too large.
        num_clients: Number of clients with examples of the set.
        mean: Mean of the clients' values.
        percentiles: Clients' values at percentiles in (0, 100), ascending; see
            `histograms.quantile`.
        superquantile: Mean of the worst tenth of the clients' values, their CVaR; see
            `histograms.superquantile`.
        ends: Computes confidence intervals by name: of the value, if it is a share, and of each of
            `statistic_names`; None if an interval is not defined.
    """

    value: float
    num_clients: int
    mean: float
    percentiles: Mapping[float, float]
    superquantile: float
    ends: Callable[[], Mapping[str, Interval]] = dataclasses.field(
        default=dict, compare=False, repr=False
    )

    def over_clients(self) -> dict[str, float]:
        """Returns the statistics of the distribution, by `statistic_names`."""
        values = (self.mean, *self.percentiles.values(), self.superquantile)
        return dict(zip(statistic_names(tuple(self.percentiles)), values))

    def intervals(self) -> dict[str, Any]:
        """Returns the intervals as JSON values, [low, high] or null; see the module `intervals`."""
        return {
            name: None if ends is None or not all(map(math.isfinite, ends)) else list(ends)
            for name, ends in self.ends().items()
        }


def statistic_names(percentiles: Sequence[float]) -> tuple[str, ...]:
    """Returns the names of statistics over clients: "mean", "p10", "superquantile"."""
    return ("mean", *map(percentile_name, sorted(percentiles)), SUPERQUANTILE)


def percentile_name(percentile: float) -> str:
    """Returns the name of a percentile in columns and keys: "p10", "p99.5"."""
    return f"p{percentile:g}"


def measured(
    numerator: float,
    denominator: float,
    over_clients: ClientDistribution,
    row: int,
    measure: Measure,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> Measured:
    """Returns a measure on a set of examples, computed from sums.

    Args:
        row: Index of the set in `over_clients`.
    """
    grid = metric_grid(measure.metric)
    num_clients = int(over_clients.num_clients[row])
    histogram = np.asarray(over_clients.histogram[row])
    ratio = float(numerator / denominator) if denominator else math.nan
    mean_ratio = float(over_clients.total[row]) / num_clients if num_clients else math.nan

    def value(ratio: float) -> float:
        return float(metric_values(measure.metric, np.asarray(ratio, np.float64)))

    return Measured(
        value=value(ratio),
        num_clients=num_clients,
        mean=value(mean_ratio),
        percentiles={p: value(quantile(grid, histogram, p / 100)) for p in sorted(percentiles)},
        superquantile=value(
            superquantile(grid, histogram, SUPERQUANTILE_SHARE, not measure.higher_is_better)
        ),
        ends=functools.partial(
            _intervals, measure, ratio, float(denominator), mean_ratio, histogram, percentiles
        ),
    )


def _intervals(
    measure: Measure,
    ratio: float,
    denominator: float,
    mean_ratio: float,
    histogram: np.ndarray,
    percentiles: Sequence[float],
) -> dict[str, Interval]:
    """See `Measured.ends`."""
    metric, grid = measure.metric, metric_grid(measure.metric)
    centers, smallest = grid.centers(), not measure.higher_is_better
    is_share = measure.unit is Unit.SHARE and (metric is None or not metric.transform)
    intervals = [
        share_interval(ratio, denominator) if is_share else None,
        mean_interval(centers, histogram, mean_ratio),
        *(quantile_interval(centers, histogram, p / 100) for p in sorted(percentiles)),
        superquantile_interval(centers, histogram, SUPERQUANTILE_SHARE, smallest),
    ]
    # No ratio is below 0 or beyond the end of a linear grid.
    upper = grid.upper if isinstance(grid, LinearGrid) else math.inf
    results: dict[str, Interval] = {}
    for name, ends in zip((VALUE, *statistic_names(percentiles)), intervals):
        results[name] = None
        if ends is not None:
            low, high = sorted(metric_values(metric, np.clip(ends, 0.0, upper)).tolist())
            results[name] = low, high
    return results


def metric_values(metric: Optional[Metric], ratios: np.ndarray) -> np.ndarray:
    """Returns the values of a metric, given an array of its ratios; a loss equals its ratio."""
    return ratios if metric is None else np.asarray(metric.value(ratios))


@dataclasses.dataclass(frozen=True)
class SetReport:
    """The report on the examples of a domain, or on all examples.

    Attributes:
        measures: Values of "loss" and of the metrics, by name.
    """

    num_examples: int
    measures: Mapping[str, Measured]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value; undefined numbers are null."""
        values = {name: finite_or_none(m.value) for name, m in self.measures.items()}
        over_clients = {
            name: {
                "num_clients": m.num_clients,
                **{k: finite_or_none(v) for k, v in m.over_clients().items()},
            }
            for name, m in self.measures.items()
        }
        return {
            "num_examples": self.num_examples,
            **values,
            "over_clients": over_clients,
            "intervals": {name: m.intervals() for name, m in self.measures.items()},
        }


class WorstMixture(NamedTuple):
    """The worst of a set of mixtures: its loss, sum_i lambda_i L_i, and lambda_i by domain."""

    loss: float
    lambda_: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class ClientValues:
    """The distribution of a measure over the clients, all domains together.

    Attributes:
        values: Centres of the non-empty bins of values, ascending; NaN for an infinite centre.
        clients: Number of clients in each bin of values.
        sizes: Lower ends of the non-empty bins of client sizes; the upper end of a bin is twice the
            lower.
        size_clients: Number of clients in each bin of sizes.
        size_means: Mean value of the clients in each bin of sizes, as in `Measured`; NaN if it is
            infinite.
    """

    values: Sequence[float]
    clients: Sequence[int]
    sizes: Sequence[int]
    size_clients: Sequence[int]
    size_means: Sequence[float]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value; infinite numbers are null."""
        return {
            "histogram": {
                "value": list(map(finite_or_none, self.values)),
                "clients": list(self.clients),
            },
            "by_size": {
                "examples": list(self.sizes),
                "clients": list(self.size_clients),
                "mean": list(map(finite_or_none, self.size_means)),
            },
        }


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """The report of a federated evaluation.

    Attributes:
        domains: Report of each domain by name.
        clients: Number of clients by group: evaluated clients, clients without examples, and
            clients with values that are not finite.
        clipped: Number of values beyond their bounds, by field of the client output; empty for
            plain sums.
        split: Split of the evaluated clients: "test", or "heldout".
        worst_min_examples: Number of examples that a domain needs to be the worst or the best.
        lambda_set: The algorithm's set of domain mixtures. None without such a set, or for the full
            simplex, whose worst mixture is the worst domain.
        client_values: Distribution of each measure over the clients.
        replicates: Computes `resampled`; None if clients are not resampled.
        classes: Predictions by domain and class.
    """

    domains: Mapping[str, SetReport]
    overall: SetReport
    measures: Mapping[str, Measure]
    clients: Mapping[str, int]
    clipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    split: str = TEST
    worst_min_examples: int = 1
    lambda_set: Optional[LambdaSet] = None
    client_values: Mapping[str, ClientValues] = dataclasses.field(default_factory=dict)
    replicates: Optional[Callable[[], Resampled]] = dataclasses.field(default=None, compare=False)
    classes: ClassReport = ClassReport()

    @functools.cached_property
    def resampled(self) -> Optional[Resampled]:
        """The values for resampled clients; None if clients are not resampled."""
        return None if self.replicates is None else self.replicates()

    @property
    def not_counted(self) -> tuple[str, ...]:
        """Names of the domains with too few examples to be the worst or the best."""
        return domains_below(
            {name: report.num_examples for name, report in self.domains.items()},
            self.worst_min_examples,
        )

    def worst_domain(self, measure: str = "loss") -> Optional[str]:
        """Returns the worst counted domain in a measure; None if no domain is counted."""
        values = self._counted_values(measure)
        pick = min if self.measures[measure].higher_is_better else max
        return pick(values, key=lambda name: values[name]) if values else None

    def worst(self, measure: str) -> float:
        """Returns the value of the worst domain; NaN if no domain is counted."""
        name = self.worst_domain(measure)
        return math.nan if name is None else self.domains[name].measures[measure].value

    def worst_mixture(self) -> Optional[WorstMixture]:
        """Returns the mixture of `lambda_set` with the largest loss.

        None without `lambda_set`, or if a domain has no examples or no finite loss.
        """
        losses = np.array([domain.measures["loss"].value for domain in self.domains.values()])
        if self.lambda_set is None or not np.all(np.isfinite(losses)):
            return None
        lambda_ = self.lambda_set.worst(losses)
        return WorstMixture(
            float(lambda_ @ losses), dict(zip(self.domains, map(float, lambda_.tolist())))
        )

    def difference(self, measure: str) -> float:
        """Returns the largest minus the smallest value of a measure over the counted domains.

        NaN if no domain is counted.
        """
        values = self._counted_values(measure).values()
        return max(values) - min(values) if values else math.nan

    def _worst_mixture_json(self) -> dict[str, Any]:
        if self.lambda_set is None:
            return {}
        worst = self.worst_mixture()
        values = dict(zip(("loss", "lambda"), worst or (None, None)))
        return {"worst_mixture": {**self.lambda_set.to_json(tuple(self.domains)), **values}}

    def _counted_values(self, measure: str) -> dict[str, float]:
        values = {name: report.measures[measure].value for name, report in self.domains.items()}
        excluded = self.not_counted
        return {n: v for n, v in values.items() if n not in excluded and not math.isnan(v)}

    def to_json(self) -> dict[str, Any]:
        """Returns the entries of result.json."""
        return {
            "split": self.split,
            "percentiles": PERCENTILES,
            "superquantile_share": SUPERQUANTILE_SHARE,
            "interval_level": LEVEL,
            "domains": {name: report.to_json() for name, report in self.domains.items()},
            "overall": self.overall.to_json(),
            "worst_domain": self.worst_domain(),
            "worst": {
                name: {
                    "domain": self.worst_domain(name),
                    "value": finite_or_none(self.worst(name)),
                }
                for name in self.measures
            },
            "difference": {name: finite_or_none(self.difference(name)) for name in self.measures},
            **self._worst_mixture_json(),
            "worst_min_examples": self.worst_min_examples,
            "not_counted": list(self.not_counted),
            "clients": dict(self.clients),
            "client_values": {
                name: values.to_json() for name, values in self.client_values.items()
            },
            **self.classes.to_json(),
            **({"clipped": dict(self.clipped)} if self.clipped else {}),
        }


def domains_below(num_examples: Mapping[str, int], least: int) -> tuple[str, ...]:
    """Returns the domains with fewer than `least` examples, or without examples."""
    return tuple(name for name, count in num_examples.items() if count < max(1, least))


def evaluation_report(
    model: Model,
    domain_names: tuple[str, ...],
    summed: EvaluationOutput,
    clipped: Optional[Mapping[str, int]] = None,
    split: str = TEST,
    worst_min_examples: int = 1,
    lambda_set: Optional[LambdaSet] = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> EvaluationReport:
    """Returns the report of an evaluation.

    Args:
        clipped: Number of values beyond their bounds, by field, for secure sums.
        lambda_set: The algorithm's set of mixtures, if it has one.
    """
    sums = summed.sums
    ratios = {"loss": (sums.losses, sums.counts)}
    ratios.update((name, (m.numerator, m.denominator)) for name, m in sums.metric_sums.items())
    measures = model_measures(model)

    def set_report(row: int) -> SetReport:
        # Row p is for all domains together.
        rows = slice(row, row + 1) if row < len(domain_names) else slice(None)
        return SetReport(
            num_examples=int(np.sum(sums.counts[rows])),
            measures={
                name: measured(
                    np.sum(numerator[rows], dtype=np.float64),
                    np.sum(denominator[rows], dtype=np.float64),
                    summed.over_clients[name],
                    row,
                    measures[name],
                    percentiles,
                )
                for name, (numerator, denominator) in ratios.items()
            },
        )

    return EvaluationReport(
        domains={name: set_report(i) for i, name in enumerate(domain_names)},
        overall=set_report(len(domain_names)),
        measures=measures,
        clients={name: int(count) for name, count in summed.clients.items()},
        clipped={field: int(count) for field, count in (clipped or {}).items()},
        split=split,
        worst_min_examples=worst_min_examples,
        lambda_set=None if isinstance(lambda_set, Simplex) else lambda_set,
        client_values={
            name: client_values(measure, summed.over_clients[name], summed.by_size[name])
            for name, measure in measures.items()
        },
        replicates=None
        if isinstance(summed.resampled, tuple)
        else functools.partial(_resampled, measures, ratios, summed.resampled),
        classes=class_report(domain_names, summed.classes),
    )


def _resampled(
    measures: Mapping[str, Measure], ratios: Mapping[str, Any], replicates: np.ndarray
) -> Resampled:
    """Computes the values of each replicate from its sums, [B, 2 m, p]."""
    drawn = _with_all(replicates)
    numerators, denominators = map(_with_all, map(np.stack, zip(*ratios.values())))
    by_ratio = replicate_ratios(numerators, denominators, drawn[:, 0::2], drawn[:, 1::2])
    values = {}
    for i, name in enumerate(ratios):
        metric = measures[name].metric
        # Clip replicates at 0: unlike losses, ratios of metrics are never negative.
        ratio = by_ratio[:, i] if metric is None else np.maximum(0.0, by_ratio[:, i])
        values[name] = metric_values(metric, ratio)
    return Resampled(values, effective_clients(denominators[0], drawn[:, 1]))


def _with_all(sums: Any) -> np.ndarray:
    """Appends the sum over all domains to sums by domain, [..., p + 1]."""
    values = np.asarray(sums, np.float64)
    return np.concatenate([values, values.sum(axis=-1, keepdims=True)], axis=-1)


def client_values(measure: Measure, clients: ClientDistribution, by_size: SizeSums) -> ClientValues:
    """Returns the distribution of a measure over the clients, computed from an evaluation's sums.

    Args:
        clients: Histograms of the measure; only the last row, for all domains, is used.
        by_size: Sums of the measure, by size of the client.
    """
    histogram = np.asarray(clients.histogram[-1])
    (filled,) = np.nonzero(histogram)
    (held,) = np.nonzero(np.asarray(by_size.num_clients))
    size_clients = np.asarray(by_size.num_clients)[held]
    ratios = np.asarray(by_size.total, np.float64)[held] / size_clients
    centers = metric_values(measure.metric, metric_grid(measure.metric).centers()[filled])
    return ClientValues(
        values=[float(f"{center:.{_DIGITS}g}") for center in centers],
        clients=histogram[filled].tolist(),
        sizes=SIZES.lower()[held].tolist(),
        size_clients=size_clients.tolist(),
        size_means=metric_values(measure.metric, ratios).tolist(),
    )


def client_values_from_json(content: Mapping[str, Any]) -> ClientValues:
    """Parses the JSON of `ClientValues.to_json`.

    Raises:
        LookupError, TypeError, ValueError: If the content is not a result of `to_json`.
    """
    histogram, sizes = content["histogram"], content["by_size"]

    def numbers(values: Sequence[Any]) -> list[float]:
        return [math.nan if value is None else float(value) for value in values]

    result = ClientValues(
        values=numbers(histogram["value"]),
        clients=list(map(int, histogram["clients"])),
        sizes=list(map(int, sizes["examples"])),
        size_clients=list(map(int, sizes["clients"])),
        size_means=numbers(sizes["mean"]),
    )
    by_size = result.sizes, result.size_clients, result.size_means
    if len(result.values) != len(result.clients) or len({*map(len, by_size)}) != 1:
        raise ValueError("expected lists of one length")
    return result
