"""A value of each domain, the worst on top: bars with error bars, or dots of several series."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.later import matplotlib
from tff_agnostic.metrics.formatting import short_names, shown, with_percent
from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.figures import (
    ERROR_BAR,
    STRIPE,
    draw_grid,
    look,
    new_figure,
    plain_text,
    scale_axis,
)

# More domains than these are not drawn: those that are worst off are.
MAX_DOMAINS = 60
# With more bars than these, dots: bars would be lines.
_MAX_BARS = 40
_NAME_WIDTH = 44
_INCHES_PER_ROW = 0.27
_INCHES_PER_BAR = 0.17
_INCHES_PER_DOT = 0.07
_NOT_COUNTED = " (not counted)"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number, and how sure it is.

    Attributes:
        value: The number; NaN if there is none.
        low: Lower end of its error bar; NaN without one.
        high: Upper end.
    """

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclasses.dataclass(frozen=True)
class Series:
    """What one model, or one algorithm, attains.

    Attributes:
        name: Its name in the legend.
        by_domain: Its number for each domain.
        overall: Its number for all examples together; None if it is not to be drawn.
    """

    name: str
    by_domain: Mapping[str, Estimate]
    overall: Optional[float] = None


def worst_first(series: Sequence[Series], higher_is_better: bool) -> list[str]:
    """Returns the domains by what the first series attains, the worst first, unknown ones last."""
    sign = 1.0 if higher_is_better else -1.0
    first = series[0].by_domain
    return sorted(first, key=lambda name: (math.isnan(first[name].value), sign * first[name].value))


def draw_domains(
    axes: matplotlib.axes.Axes,
    series: Sequence[Series],
    label: str,
    unit: Unit,
    higher_is_better: bool,
    not_counted: Collection[str] = (),
) -> None:
    """Draws what series attain in each domain, a line a domain, the worst on top.

    Args:
        axes: Where.
        series: What is compared; the first one decides about the order.
        label: What the numbers are.
        unit: Of the numbers; shares are drawn in percent, factors as dots on a logarithmic axis.
        higher_is_better: Which end is the worst.
        not_counted: Domains with too few examples to be called worst or best.
    """
    names = worst_first(series, higher_is_better)
    left_out, names = len(names[MAX_DOMAINS:]), names[:MAX_DOMAINS]
    as_bars = len(series) * len(names) <= _MAX_BARS and unit is not Unit.FACTOR
    places, height = np.arange(len(names)), 0.8 / len(series)
    for i, one in enumerate(series):
        at = places + (i - (len(series) - 1) / 2) * height
        values, errors = _drawn([one.by_domain[name] for name in names], unit)
        style, text = look(i), plain_text(one.name)
        if as_bars:
            axes.barh(
                at,
                np.nan_to_num(values),
                0.95 * height,
                color=style.color,
                hatch=style.hatch,
                edgecolor="white",
                label=text,
            )
        own: dict[str, Any] = {"color": ERROR_BAR, "capsize": 2}
        if not as_bars:
            own = {"color": style.color, "marker": style.marker, "markersize": 5, "label": text}
        axes.errorbar(values, at, xerr=errors, linestyle="", linewidth=1, **own)
        if one.overall is not None and math.isfinite(one.overall):
            all_label = "all examples" if len(series) == 1 else None
            axes.axvline(
                shown(one.overall, unit), color=style.color, linestyle="--", label=all_label
            )
    stripes = [] if as_bars else places[1::2].tolist()
    for place in stripes:
        # So that dots between two names are seen to belong to one of them.
        axes.axhspan(place - 0.5, place + 0.5, color=STRIPE, linewidth=0)
    ticks = short_names(names, _NAME_WIDTH)
    ticks = [
        plain_text(text) + (_NOT_COUNTED if name in not_counted else "")
        for name, text in zip(names, ticks)
    ]
    axes.set_yticks(places, ticks, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(with_percent(label, unit))
    if left_out:
        axes.set_title(f"the worst {len(names)}; {left_out} more are not drawn", fontsize="small")
    scale_axis(axes, unit, "x")
    draw_grid(axes, "x")


def domains_height(num_domains: int, num_series: int) -> float:
    """Returns the inches that `draw_domains` needs."""
    rows = min(num_domains, MAX_DOMAINS)
    inches = _INCHES_PER_BAR if num_series * rows <= _MAX_BARS else _INCHES_PER_DOT
    return 1.2 + rows * max(_INCHES_PER_ROW, inches * num_series)


def domain_figure(
    series: Sequence[Series],
    label: str,
    unit: Unit,
    higher_is_better: bool,
    not_counted: Collection[str] = (),
) -> matplotlib.figure.Figure:
    """Returns the figure of `draw_domains`, with a legend above it."""
    height = domains_height(len(series[0].by_domain), len(series))
    figure = new_figure(8, height + 0.25 * math.ceil(len(series) / 2))
    axes = figure.subplots()
    draw_domains(axes, series, label, unit, higher_is_better, not_counted)
    handles, labels = axes.get_legend_handles_labels()
    if len(series) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize="small")
    return figure


def _drawn(estimates: Sequence[Estimate], unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Returns values [n] and the lengths of their error bars [2, n], as they are drawn."""
    values = np.array([shown(e.value, unit) for e in estimates])
    values[~np.isfinite(values)] = np.nan
    low = values - [shown(e.low, unit) for e in estimates]
    high = [shown(e.high, unit) for e in estimates] - values
    # Without an error bar NaN, which is not drawn.
    errors = np.array([low, high])
    errors[:, ~np.isfinite(errors).all(axis=0)] = np.nan
    return values, np.maximum(errors, 0.0)
