"""The common style of figures, and curves over rounds.

Figures are as wide as a phone's screen, with panels below each other. The colours are from Okabe
and Ito, "Color Universal Design" (2008): people who confuse red and green can distinguish them.
Their yellow is not used, as it is too light for lines on white. Line styles and markers also
differ, for prints without colours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.metrics.formatting import short_names
from tff_agnostic.metrics.metrics_file import ROUND, Column

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Greys for background curves, reference curves, error bars and background stripes.
MUTED = "0.72"
REFERENCE = "0.35"
ERROR_BAR = "0.1"
STRIPE = "0.95"
# Width of figures in inches: text of 10 points stays readable on a screen of 390 pixels.
WIDTH = 5.4
LEGEND_ROW = 0.2
_MARKERS = "osD^vPX*<>p"
_LINES = ("-", "--", "-.", ":")
_GRID = 0.3
# With more curves than this, only the worst ones have colours, and the others are grey.
_MAX_COLORED = 10
_HIGHLIGHTED = len(COLORS)
_LEGEND_WIDTH = 40
# Legends have two columns if their names have at most this many characters.
_NARROW = 20
# Number of markers on a curve, for any number of rounds.
_NUM_MARKERS = 8
# Opacity of bands, which may overlap.
_BAND = 0.12


@dataclasses.dataclass(frozen=True)
class Look:
    """The style of one of several series."""

    color: str
    line: str
    marker: str


def look(index: int) -> Look:
    """Returns the look of the series at a position; the first 77 looks differ."""
    turn = index // len(COLORS)
    return Look(
        COLORS[index % len(COLORS)],
        _LINES[turn % len(_LINES)],
        _MARKERS[index % len(_MARKERS)],
    )


def new_figure(width: float, height: float) -> matplotlib.figure.Figure:
    """Returns an empty figure, whose layout avoids overlapping parts; its size is in inches."""
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def legend_above(
    figure: matplotlib.figure.Figure, *axes: matplotlib.axes.Axes, ncols: int = 2
) -> None:
    """Adds a legend above the figure, with the entries of several axes."""
    legends = [panel.get_legend_handles_labels() for panel in axes]
    handles, texts = ([item for entries in kind for item in entries] for kind in zip(*legends))
    figure.legend(handles, texts, loc="outside upper center", ncols=ncols, fontsize="small")


def draw_grid(axes: matplotlib.axes.Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draws the grid, below everything else."""
    axes.grid(alpha=_GRID, axis=axis)
    axes.set_axisbelow(True)


def plain_text(name: str) -> str:
    """Escapes a name, so that a figure shows it unchanged and "$" does not start a formula."""
    escaped = name.replace("$", r"\$")
    # matplotlib omits labels with a leading underscore from legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def percent_axis(axes: matplotlib.axes.Axes, unit: Unit) -> None:
    """Labels the vertical axis of shares in percent; the drawn values stay shares."""
    if unit is Unit.SHARE:
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))


def scale_axis(
    axes: matplotlib.axes.Axes, unit: Unit, names: str = "y", whole: float = 100.0
) -> None:
    """Sets the range or the scale of axes by a measure's unit. Call it after drawing everything.

    Axes of shares are limited to [0, `whole`]. Axes of factors become logarithmic, unless they have
    no positive value.

    Args:
        names: Axes to scale: "x", "y" or "xy".
        whole: The drawn value of a share of 1.
    """
    for name in names if unit is Unit.SHARE else "":
        low, high = getattr(axes, f"get_{name}lim")()
        axes.set(**{f"{name}lim": (max(low, 0.0), min(high, whole))})
    for name in names if unit is Unit.FACTOR else "":
        if not 0 < getattr(axes.dataLim, f"minpos{name}") < float("inf"):
            continue
        axes.set(**{f"{name}scale": "log"})
        # matplotlib's own labels between two powers of ten are multiples such as 5.75e1.
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(matplotlib.ticker.LogFormatter())
        axis.set_minor_formatter(matplotlib.ticker.LogFormatter())


# The values of columns over the rounds, by name.
Values = Mapping[str, np.ndarray]


def quantity_figure(
    quantity: ReportField, columns: Sequence[Column], values: Values
) -> matplotlib.figure.Figure:
    """Returns a figure of a quantity over the rounds, with a curve for each of its columns.

    With many domains, only the worst at the end of training have colours and names, and the others
    are grey. If neither direction is better, the domains with the largest values are highlighted
    instead.
    """
    shown = _highlighted(quantity, columns, values)
    others = [column for column in columns if column not in shown]
    labels = short_names([column.domain or "" for column in shown], _LEGEND_WIDTH)
    num_columns = 2 if max(map(len, labels)) <= _NARROW else 1
    rows = -(-(len(shown) + 2) // num_columns) if quantity.per_domain else 0
    figure = new_figure(WIDTH, 3.8 + LEGEND_ROW * rows)
    axes = figure.subplots()
    for i, column in enumerate(others):
        label = f"{len(others)} others" if i == 0 else None
        style = {"color": MUTED, "linewidth": 0.8, "label": label}
        plot_known(axes, values[ROUND], values[column.name], **style)
    for i, (column, label) in enumerate(zip(shown, labels)):
        text = None if column.domain is None else plain_text(label)
        plot_series(axes, values[ROUND], values[column.name], i, label=text)
    finish_course(axes, quantity.label, quantity.unit)
    if quantity.per_domain:
        handles, texts = axes.get_legend_handles_labels()
        # Grey curves are drawn first, to be below the others, but they are last in the legend.
        order = [*range(1, len(texts)), 0] if others else range(len(texts))
        which = "the largest" if quantity.higher_is_better is None else "the worst"
        figure.legend(
            [handles[k] for k in order],
            [texts[k] for k in order],
            loc="outside lower center",
            title=f"domain ({which} in the end)" if others else "domain",
            ncols=num_columns,
            fontsize="small",
        )
    return figure


def plot_series(
    axes: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, index: int, **style: Any
) -> None:
    """Plots a curve in the style of the series at a position; see `plot_known`."""
    series_style = look(index)
    is_finite = int(np.isfinite(y).sum())
    plot_known(
        axes,
        x,
        y,
        color=series_style.color,
        linestyle=series_style.line,
        marker=series_style.marker,
        markersize=4,
        # Shift the markers of each curve, so that fewer coincide.
        markevery=(index % max(1, is_finite // _NUM_MARKERS), max(1, is_finite // _NUM_MARKERS)),
        **style,
    )


def plot_spread(
    axes: matplotlib.axes.Axes, x: np.ndarray, by_trial: np.ndarray, index: int, label: str
) -> None:
    """Plots the mean of curves over trials, and a band of one standard deviation around it.

    Args:
        by_trial: The curve of each trial, [trials, rounds]; NaN for missing values.
    """
    with np.errstate(invalid="ignore"):  # Perplexities may be infinite.
        mean, std = by_trial.mean(axis=0), by_trial.std(axis=0, ddof=len(by_trial) > 1)
    plot_series(axes, x, mean, index, label=plain_text(label))
    is_finite = np.isfinite(mean)
    axes.fill_between(
        x[is_finite],
        (mean - std)[is_finite],
        (mean + std)[is_finite],
        color=look(index).color,
        alpha=_BAND,
    )


def finish_course(axes: matplotlib.axes.Axes, label: str, unit: Unit) -> None:
    """Labels and scales the axes of curves over the rounds, which are integers."""
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    scale_axis(axes, unit, whole=1.0)
    percent_axis(axes, unit)
    draw_grid(axes)


def plot_known(axes: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Plots a curve through the points that have a finite value."""
    is_finite = np.isfinite(y)
    axes.plot(x[is_finite], y[is_finite], **style)


def _highlighted(quantity: ReportField, columns: Sequence[Column], values: Values) -> list[Column]:
    """Returns the columns to draw in colour: the worst ones at the end of training."""
    if len(columns) <= _MAX_COLORED:
        return list(columns)
    sign = -1.0 if quantity.higher_is_better else 1.0
    ends = {}
    for column in columns:
        finite = values[column.name][np.isfinite(values[column.name])]
        ends[column] = sign * finite[-1] if len(finite) else np.nan
    return sorted(columns, key=lambda c: (np.isnan(ends[c]), -ends[c]))[:_HIGHLIGHTED]
