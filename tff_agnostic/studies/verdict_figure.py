"""The picture beside a verdict: each domain before and after, and what it gains, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tff_agnostic.later import matplotlib
from tff_agnostic.metrics.formatting import short_names, shown
from tff_agnostic.metrics.intervals import Interval
from tff_agnostic.models.model import Measure
from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.distributions import (
    MAX_DOMAINS,
    Estimate,
    Series,
    domains_height,
    draw_domains,
    worst_first,
)
from tff_agnostic.reports.figures import ERROR_BAR, draw_grid, look, new_figure
from tff_agnostic.studies.comparison import Comparison
from tff_agnostic.studies.gains import Gain, attained

_LABEL_WIDTH = 40
# By what a gain is told to be.
_BETTER, _WORSE, _UNKNOWN = "better off", "worse off", "cannot be told"
_MARKERS = {1: "^", -1: "v", 0: "o"}
_TOLD = {1: _BETTER, -1: _WORSE, 0: _UNKNOWN}


def verdict_figure(
    comparison: Comparison, row: str, baseline: str, measure: Measure, gains: Mapping[str, Gain]
) -> matplotlib.figure.Figure:
    """Returns the figure.

    On the left what both rows attain in each domain, the baseline's worst on top; on the right what
    the row gains there. Error bars are 95% intervals, on the right such that they hold together.

    Args:
        comparison: The trials.
        row: A row.
        baseline: The row that it is compared with.
        measure: What is drawn.
        gains: Of each domain.
    """
    labels = short_names([comparison.label(name) for name in (baseline, row)], _LABEL_WIDTH)
    series = [
        Series(label, {d: _estimate(comparison, name, d, measure) for d in comparison.domain_names})
        for label, name in zip(labels, (baseline, row))
    ]
    figure = new_figure(9.8, max(3.2, domains_height(len(comparison.domain_names), 2)) + 0.25)
    before, gained = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    text = f"{measure.name} on the {comparison.split} clients"
    draw_domains(
        before, series, text, measure.unit, measure.higher_is_better, comparison.not_counted
    )
    names = worst_first(series, measure.higher_is_better)[:MAX_DOMAINS]
    _draw_gains(gained, [gains[name] for name in names], len(comparison.domain_names), measure)
    handles = [
        handle for axes in (before, gained) for handle in zip(*axes.get_legend_handles_labels())
    ]
    figure.legend(
        [handle for handle, _ in handles],
        [text for _, text in handles],
        loc="outside upper center",
        ncols=5,
        fontsize="small",
    )
    return figure


def _draw_gains(
    axes: matplotlib.axes.Axes, gains: list[Gain], count: int, measure: Measure
) -> None:
    for told, text in _TOLD.items():
        places = [k for k, of in enumerate(gains) if of.told(count) == told]
        if not places:
            continue
        means = np.array([shown(gains[k].mean, measure.unit) for k in places])
        ends = [gains[k].interval(count) for k in places]
        axes.errorbar(
            means,
            places,
            xerr=np.array(
                [_lengths(gains[k].mean, e, measure.unit) for k, e in zip(places, ends)]
            ).T,
            linestyle="",
            linewidth=1,
            capsize=2,
            color=ERROR_BAR if told == 0 else look(2 if told > 0 else 3).color,
            marker=_MARKERS[told],
            label=text,
        )
    axes.axvline(0.0, color=ERROR_BAR, linewidth=1)
    axes.set_yticks(range(len(gains)), [""] * len(gains))
    axes.set_ylim(len(gains) - 0.5, -0.5)
    points = ", points" if measure.unit is Unit.SHARE else ""
    axes.set_xlabel(f"gain in {measure.name}{points}")
    draw_grid(axes, "x")


def _lengths(mean: float, interval: Interval, unit: Unit) -> tuple[float, float]:
    if interval is None:
        return math.nan, math.nan
    low, high = (shown(end, unit) for end in interval)
    return shown(mean, unit) - low, high - shown(mean, unit)


def _estimate(comparison: Comparison, row: str, domain: str, measure: Measure) -> Estimate:
    spread = attained(comparison.trials[row], comparison.domain_names, domain, measure)
    low, high = spread.interval() or (math.nan, math.nan)
    return Estimate(spread.mean, low, high)
