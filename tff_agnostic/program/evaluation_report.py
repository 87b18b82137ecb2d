"""Turns the sums of a federated evaluation into numbers for people and files."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    measure_grids,
)
from tff_agnostic.computations.histogram import Grid, quantile
from tff_agnostic.models.functional import Model
from tff_agnostic.models.metrics import Metric

# Beyond this, such as perplexity often is, a table has two decimals only.
_LARGE = 10.0


@dataclasses.dataclass(frozen=True)
class Measure:
    """One measure on a set of examples, and its distribution over the clients that hold them.

    All of it in the measure's own values: those of a metric with a `transform` are transformed.

    Attributes:
        value: Over all examples of the set; NaN if there are none, infinite if it is too large.
        num_clients: Clients with examples of the set.
        mean: Mean of the clients' values; of a metric with a transform, the transform of the mean
            of their ratios: of perplexity the geometric mean.
        p10: 10th percentile of the clients' values.
        p50: Median of the clients' values.
        p90: 90th percentile of the clients' values.
    """

    value: float
    num_clients: int
    mean: float
    p10: float
    p50: float
    p90: float


@dataclasses.dataclass(frozen=True)
class SetReport:
    """A domain's examples, or all examples.

    Attributes:
        num_examples: How many there are.
        measures: "loss" and the metrics, by name.
    """

    num_examples: int
    measures: Mapping[str, Measure]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value; what is undefined is null."""
        values = {name: _finite_or_none(m.value) for name, m in self.measures.items()}
        over_clients = {
            name: {k: _finite_or_none(v) for k, v in dataclasses.asdict(m).items() if k != "value"}
            for name, m in self.measures.items()
        }
        return {"num_examples": self.num_examples, **values, "over_clients": over_clients}


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """A federated evaluation.

    Attributes:
        domains: Report of each domain, by name.
        overall: Report of all examples together.
        higher_is_better: For each measure, which direction is good.
        clients: Clients evaluated, without examples, and with values that are not finite.
    """

    domains: Mapping[str, SetReport]
    overall: SetReport
    higher_is_better: Mapping[str, bool]
    clients: Mapping[str, int]

    def worst_domain(self, measure: str = "loss") -> str:
        """Returns the name of the domain that is worst in `measure`."""
        sign = 1.0 if self.higher_is_better[measure] else -1.0

        def goodness(name: str) -> float:
            value = self.domains[name].measures[measure].value
            return math.inf if math.isnan(value) else sign * value

        return min(self.domains, key=goodness)

    def worst(self, measure: str) -> float:
        """Returns the value of the worst domain."""
        return self.domains[self.worst_domain(measure)].measures[measure].value

    def difference(self, measure: str) -> float:
        """Returns by how much the values of the best and the worst domain differ; at least 0.

        Domains without examples have no part in it; NaN if none has any.
        """
        values = [report.measures[measure].value for report in self.domains.values()]
        known = [value for value in values if not math.isnan(value)]
        return max(known) - min(known) if known else math.nan

    def to_json(self) -> dict[str, Any]:
        """Returns the parts of result.json that an evaluation gives."""
        return {
            "domains": {name: report.to_json() for name, report in self.domains.items()},
            "overall": self.overall.to_json(),
            "worst_domain": self.worst_domain(),
            "worst": {
                name: {
                    "domain": self.worst_domain(name),
                    "value": _finite_or_none(self.worst(name)),
                }
                for name in self.higher_is_better
            },
            "difference": {
                name: _finite_or_none(self.difference(name)) for name in self.higher_is_better
            },
            "clients": dict(self.clients),
        }

    def table(self, domain_weights: Optional[Mapping[str, float]] = None) -> str:
        """Returns a table for the terminal: a row per domain, their difference, all examples.

        Args:
            domain_weights: lambda of each domain, to stand beside it.
        """
        worst = self.worst_domain()
        weights = domain_weights or {}
        rows = [
            [
                f"{name} (worst)" if name == worst else name,
                *_cells(report),
                *([f"{weights[name]:.3f}"] if name in weights else []),
            ]
            for name, report in self.domains.items()
        ]
        if len(rows) > 1:
            differences = [_text(self.difference(name), 4) for name in self.overall.measures]
            rows.append(["difference", "", *(cell for d in differences for cell in (d, ""))])
        rows.append(["all", *_cells(self.overall)])
        headers = ["domain", "examples"]
        for name in self.overall.measures:
            headers += [name, "over clients: mean (p10, p50, p90)"]
        headers += ["lambda"] if weights else []
        return tabulate(rows, headers=headers, disable_numparse=True, stralign="right")


def evaluation_report(
    model: Model, domain_names: tuple[str, ...], summed: EvaluationOutput
) -> EvaluationReport:
    """Returns the report of summed client outputs."""
    sums = summed.sums
    ratios = {"loss": (sums.losses, sums.counts)}
    ratios.update((name, (m.numerator, m.denominator)) for name, m in sums.metric_sums.items())
    grids = measure_grids(model)
    metrics = {metric.name: metric for metric in model.metrics}

    def set_report(row: int) -> SetReport:
        # Row p stands for all domains together.
        rows = slice(row, row + 1) if row < len(domain_names) else slice(None)
        return SetReport(
            num_examples=int(np.sum(sums.counts[rows])),
            measures={
                name: _measure(
                    np.sum(numerator[rows], dtype=np.float64),
                    np.sum(denominator[rows], dtype=np.float64),
                    grids[name],
                    summed.over_clients[name],
                    row,
                    metrics.get(name),
                )
                for name, (numerator, denominator) in ratios.items()
            },
        )

    return EvaluationReport(
        domains={name: set_report(i) for i, name in enumerate(domain_names)},
        overall=set_report(len(domain_names)),
        higher_is_better={"loss": False, **{m.name: m.higher_is_better for m in model.metrics}},
        clients={name: int(count) for name, count in summed.clients.items()},
    )


def _measure(
    numerator: float,
    denominator: float,
    grid: Grid,
    over_clients: ClientDistribution,
    row: int,
    metric: Optional[Metric],
) -> Measure:
    def value(ratio: float) -> float:
        return ratio if metric is None else float(metric.value(np.float64(ratio)))

    num_clients = int(over_clients.num_clients[row])
    histogram = np.asarray(over_clients.histogram[row])
    return Measure(
        value=value(float(numerator / denominator) if denominator else math.nan),
        num_clients=num_clients,
        mean=value(float(over_clients.total[row]) / num_clients if num_clients else math.nan),
        p10=value(quantile(grid, histogram, 0.1)),
        p50=value(quantile(grid, histogram, 0.5)),
        p90=value(quantile(grid, histogram, 0.9)),
    )


def _cells(report: SetReport) -> list[str]:
    cells = [str(report.num_examples)]
    for m in report.measures.values():
        quantiles = ", ".join(_text(q, 3) for q in (m.p10, m.p50, m.p90))
        cells += [_text(m.value, 4), f"{_text(m.mean, 3)} ({quantiles})"]
    return cells


def _text(value: float, decimals: int) -> str:
    return f"{value:.{2 if value >= _LARGE else decimals}f}"


def _finite_or_none(value: float) -> Any:
    return value if math.isfinite(value) else None
