"""Measures overall and by domain, with the names of fairlearn's `MetricFrame`.

A measure is the loss or a metric. Results are mappings that `pandas.DataFrame` accepts, as pandas
is not a dependency.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional

from tff_agnostic.models.model import Measure


@dataclasses.dataclass(frozen=True)
class ByGroup:
    """Measures of one model, or means over the trials of a method.

    Attributes:
        overall: Each measure on all examples; NaN where it is undefined.
        by_group: Value of each measure in each domain, by_group[MEASURE][DOMAIN]; its
            `pandas.DataFrame` has a row per domain.
        higher_is_better: Whether larger values are better, by measure.
        not_counted: Domains with too few examples to be the worst or the best; all methods ignore
            them.
    """

    overall: Mapping[str, float]
    by_group: Mapping[str, Mapping[str, float]]
    higher_is_better: Mapping[str, bool]
    not_counted: tuple[str, ...] = ()

    def group_min(self) -> dict[str, float]:
        """Returns the smallest value of each measure over the domains."""
        return {m: min(self._counted(m).values(), default=math.nan) for m in self.by_group}

    def group_max(self) -> dict[str, float]:
        """Returns the largest value of each measure over the domains."""
        return {m: max(self._counted(m).values(), default=math.nan) for m in self.by_group}

    def difference(self) -> dict[str, float]:
        """Returns the largest minus the smallest value of each measure over the domains."""
        low, high = self.group_min(), self.group_max()
        return {m: high[m] - low[m] for m in self.by_group}

    def ratio(self) -> dict[str, float]:
        """Returns smallest value / largest value of each measure; NaN if the largest is 0."""
        low, high = self.group_min(), self.group_max()
        return {m: low[m] / high[m] if high[m] else math.nan for m in self.by_group}

    def worst(self) -> dict[str, Optional[str]]:
        """Returns the worst domain in each measure; None if no domain is counted."""
        worst: dict[str, Optional[str]] = {}
        for measure, higher in self.higher_is_better.items():
            values = self._counted(measure)
            choose = min if higher else max
            worst[measure] = choose(values, key=lambda n: values[n]) if values else None
        return worst

    def _counted(self, measure: str) -> dict[str, float]:
        return {
            name: value
            for name, value in self.by_group[measure].items()
            if name not in self.not_counted and not math.isnan(value)
        }


def measures_by_group(result: Mapping[str, Any], measures: Mapping[str, Measure]) -> ByGroup:
    """Returns the measures that a run's result.json states, given the content of this file."""

    def number(values: Mapping[str, Any], name: str) -> float:
        return math.nan if values[name] is None else float(values[name])

    domains = result["domains"].items()
    return ByGroup(
        overall={name: number(result["overall"], name) for name in measures},
        by_group={name: {d: number(values, name) for d, values in domains} for name in measures},
        higher_is_better={name: values.higher_is_better for name, values in measures.items()},
        not_counted=tuple(result.get("not_counted", ())),
    )
