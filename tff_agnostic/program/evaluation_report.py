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
from tff_agnostic.models.measures import Measure, measures_of
from tff_agnostic.models.metrics import Metric
from tff_agnostic.program.cells import cell, with_percent


@dataclasses.dataclass(frozen=True)
class Measured:
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
    measures: Mapping[str, Measured]

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
        measures: What was measured, by name.
        clients: Clients evaluated, without examples, and with values that are not finite.
        clipped: Of secure sums, how many values of each field of the clients' answers exceeded
            their bounds; empty for plain sums.
    """

    domains: Mapping[str, SetReport]
    overall: SetReport
    measures: Mapping[str, Measure]
    clients: Mapping[str, int]
    clipped: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def worst_domain(self, measure: str = "loss") -> str:
        """Returns the name of the domain that is worst in `measure`."""
        sign = 1.0 if self.measures[measure].higher_is_better else -1.0

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
                for name in self.measures
            },
            "difference": {name: _finite_or_none(self.difference(name)) for name in self.measures},
            "clients": dict(self.clients),
            **({"clipped": dict(self.clipped)} if self.clipped else {}),
        }

    def table(
        self, domain_weights: Optional[Mapping[str, float]] = None, weights_name: str = "weight"
    ) -> str:
        """Returns a table for the terminal: a row per domain, their difference, all examples.

        A line below it says what was clipped, if anything was.

        Args:
            domain_weights: The weight of each domain, to stand beside it.
            weights_name: What the weights are called.
        """
        worst = self.worst_domain()
        weights = domain_weights or {}
        rows = [
            [
                f"{name} (worst)" if name == worst else name,
                *self._cells(report),
                *([f"{weights[name]:.3f}"] if name in weights else []),
            ]
            for name, report in self.domains.items()
        ]
        if len(rows) > 1:
            differences = [cell(self.difference(n), m.unit, 4) for n, m in self.measures.items()]
            rows.append(["difference", "", *(text for d in differences for text in (d, ""))])
        rows.append(["all", *self._cells(self.overall)])
        headers = ["domain", "examples"]
        for name, measure in self.measures.items():
            title = with_percent(name, measure.unit)
            headers += [title, "over clients: mean (p10, p50, p90)"]
        headers += [weights_name] if weights else []
        table: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
        return "\n".join([table, *self._clipping()])

    def _cells(self, report: SetReport) -> list[str]:
        cells = [str(report.num_examples)]
        for name, measure in self.measures.items():
            m, unit = report.measures[name], measure.unit
            quantiles = ", ".join(cell(q, unit, 3) for q in (m.p10, m.p50, m.p90))
            cells += [cell(m.value, unit, 4), f"{cell(m.mean, unit, 3)} ({quantiles})"]
        return cells

    def _clipping(self) -> list[str]:
        counts = [f"{count} of {field}" for field, count in self.clipped.items() if count]
        if not counts:
            return []
        return [f"values beyond the bounds of secure sums, which were clipped: {', '.join(counts)}"]


def evaluation_report(
    model: Model,
    domain_names: tuple[str, ...],
    summed: EvaluationOutput,
    clipped: Optional[Mapping[str, int]] = None,
) -> EvaluationReport:
    """Returns the report of an evaluation.

    Args:
        model: What was evaluated.
        domain_names: Names of the domains.
        summed: The sum of the clients' answers.
        clipped: Of secure sums, how many values of each field exceeded their bounds.
    """
    sums = summed.sums
    ratios = {"loss": (sums.losses, sums.counts)}
    ratios.update((name, (m.numerator, m.denominator)) for name, m in sums.metric_sums.items())
    grids = measure_grids(model)
    measures = measures_of(model)

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
                    measures[name].metric,
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
    )


def _measure(
    numerator: float,
    denominator: float,
    grid: Grid,
    over_clients: ClientDistribution,
    row: int,
    metric: Optional[Metric],
) -> Measured:
    def value(ratio: float) -> float:
        return ratio if metric is None else float(metric.value(np.float64(ratio)))

    num_clients = int(over_clients.num_clients[row])
    histogram = np.asarray(over_clients.histogram[row])
    return Measured(
        value=value(float(numerator / denominator) if denominator else math.nan),
        num_clients=num_clients,
        mean=value(float(over_clients.total[row]) / num_clients if num_clients else math.nan),
        p10=value(quantile(grid, histogram, 0.1)),
        p50=value(quantile(grid, histogram, 0.5)),
        p90=value(quantile(grid, histogram, 0.9)),
    )


def _finite_or_none(value: float) -> Any:
    return value if math.isfinite(value) else None
