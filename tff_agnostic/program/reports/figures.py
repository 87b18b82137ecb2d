"""How all figures look, and curves over rounds: one palette, one grid, and what tells bars apart.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which people who confuse
red and green tell apart, without the yellow, which is too light for lines on white. Where they are
used up, lines, markers and hatches differ as well: in a print without colours, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tff_agnostic.base.files import atomic_file
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.metrics.formatting import short_names
from tff_agnostic.metrics.metrics_file import ROUND, Column

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Of what is there for comparison only.
MUTED = "0.72"
REFERENCE = "0.35"
# Has to be seen on bars of every colour.
ERROR_BAR = "0.1"
STRIPE = "0.95"
_MARKERS = "osD^vPX*<>p"
_LINES = ("-", "--", "-.", ":")
_HATCHES = ("", "//", "xx", "..", "\\\\", "++", "oo")
_GRID = 0.3
# With more curves than these, the ones that matter most are told apart and the others are grey.
MAX_TOLD_APART = 10
_HIGHLIGHTED = len(COLORS)
_LEGEND_WIDTH = 32
# Markers on a curve, so that few rounds and many look alike.
_NUM_MARKERS = 8
# Of bands, of which many may lie over each other.
_BAND = 0.12
_DPI = 120


@dataclasses.dataclass(frozen=True)
class Look:
    """What one of several series looks like.

    Attributes:
        color: A colour of matplotlib.
        line: A line style.
        marker: A marker.
        hatch: What fills its bars, "" for nothing.
    """

    color: str
    line: str
    marker: str
    hatch: str


def look(index: int) -> Look:
    """Returns the look of the series at a position; 77 of them differ."""
    turn = index // len(COLORS)
    return Look(
        COLORS[index % len(COLORS)],
        _LINES[turn % len(_LINES)],
        _MARKERS[index % len(_MARKERS)],
        _HATCHES[turn % len(_HATCHES)],
    )


def new_figure(width: float, height: float) -> matplotlib.figure.Figure:
    """Returns an empty figure whose parts keep out of each other's way.

    Args:
        width: Inches.
        height: Inches.
    """
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def legend_above(
    figure: matplotlib.figure.Figure, *axes: matplotlib.axes.Axes, ncols: int = 2
) -> None:
    """Puts what axes have for a legend above the figure."""
    legends = [one.get_legend_handles_labels() for one in axes]
    handles, texts = ([item for one in of for item in one] for of in zip(*legends))
    figure.legend(handles, texts, loc="outside upper center", ncols=ncols, fontsize="small")


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Gives the palette and the grid to figures that are drawn by who knows nothing of them."""
    from matplotlib.rcsetup import cycler

    with matplotlib.rc_context(
        {
            "axes.prop_cycle": cycler(color=COLORS),
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": _GRID,
        }
    ):
        yield


def draw_grid(axes: matplotlib.axes.Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draws the grid, below everything else."""
    axes.grid(alpha=_GRID, axis=axis)
    axes.set_axisbelow(True)


def plain_text(name: str) -> str:
    """Returns a name such that a figure shows it as it is: "$" starts no formula there."""
    escaped = name.replace("$", r"\$")
    # A label that starts with an underscore is left out of legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def percent_axis(axes: matplotlib.axes.Axes, unit: Unit) -> None:
    """Writes shares at the vertical axis in percent; what is drawn stays a share."""
    if unit is Unit.SHARE:
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))


def scale_axis(axes: matplotlib.axes.Axes, unit: Unit, names: str = "y") -> None:
    """Makes axes logarithmic for what falls by powers of ten.

    To be called when everything is drawn: an axis without a positive value stays as it is.

    Args:
        unit: Of what is drawn.
        names: "x", "y" or "xy".
    """
    if unit is not Unit.FACTOR:
        return
    for name in names:
        if not 0 < getattr(axes.dataLim, f"minpos{name}") < float("inf"):
            continue
        axes.set(**{f"{name}scale": "log"})
        # "57.5": between two powers of ten matplotlib itself has 5.75 times one of them.
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(matplotlib.ticker.LogFormatter())
        axis.set_minor_formatter(matplotlib.ticker.LogFormatter())


# The values of columns over the rounds, by name.
Values = Mapping[str, np.ndarray]


def figure_of(
    quantity: ReportField, columns: Sequence[Column], values: Values
) -> matplotlib.figure.Figure:
    """Returns a figure of a quantity over the rounds, with a curve for each of its columns.

    Of many domains those that are worst in the end have colours and names, or, where neither
    direction is good, those that are largest; the others are grey.

    Args:
        values: The columns of metrics.csv.
    """
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    shown = _told_apart(quantity, columns, values)
    others = [column for column in columns if column not in shown]
    for i, column in enumerate(others):
        label = f"{len(others)} others" if i == 0 else None
        style = {"color": MUTED, "linewidth": 0.8, "label": label}
        plot_known(axes, values[ROUND], values[column.name], **style)
    labels = short_names([column.domain or "" for column in shown], _LEGEND_WIDTH)
    for i, (column, label) in enumerate(zip(shown, labels)):
        text = None if column.domain is None else plain_text(label)
        plot_series(axes, values[ROUND], values[column.name], i, label=text)
    label_course(axes, quantity.label)
    scale_axis(axes, quantity.unit)
    percent_axis(axes, quantity.unit)
    draw_grid(axes)
    if quantity.per_domain:
        handles, texts = axes.get_legend_handles_labels()
        # What is grey was drawn first, to lie below, and is named last.
        order = [*range(1, len(texts)), 0] if others else range(len(texts))
        title = "domain" if not others else f"domain ({_what_is_shown(quantity)})"
        figure.legend(
            [handles[k] for k in order],
            [texts[k] for k in order],
            loc="outside right upper",
            title=title,
            fontsize="small",
        )
    return figure


def drawn_columns(quantity: ReportField, columns: Sequence[Column]) -> list[Column]:
    """Returns the columns of a quantity that become its curves.

    Beside the domains' curves, that of all examples together would be one more to tell apart.
    """
    of_it = [column for column in columns if column.quantity == quantity]
    return [column for column in of_it if (column.domain is not None) == quantity.per_domain]


def plot_series(
    axes: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, index: int, **style: Any
) -> None:
    """Plots the curve of the series at a position, in its own look; see `plot_known`."""
    own = look(index)
    known = int(np.isfinite(y).sum())
    plot_known(
        axes,
        x,
        y,
        color=own.color,
        linestyle=own.line,
        marker=own.marker,
        markersize=4,
        # Those of different curves do not all lie at the same rounds.
        markevery=(index % max(1, known // _NUM_MARKERS), max(1, known // _NUM_MARKERS)),
        **style,
    )


def plot_spread(
    axes: matplotlib.axes.Axes, x: np.ndarray, by_trial: np.ndarray, index: int, label: str
) -> None:
    """Plots the mean of a course over trials, and a band of one standard deviation around it.

    Args:
        x: Rounds, [rounds].
        by_trial: The course of each trial, [trials, rounds]; NaN where it has no value.
        index: Position of the series.
    """
    with np.errstate(invalid="ignore"):  # The spread of what is infinite, as perplexity may be.
        mean, std = by_trial.mean(axis=0), by_trial.std(axis=0, ddof=len(by_trial) > 1)
    plot_series(axes, x, mean, index, label=plain_text(label))
    known = np.isfinite(mean)
    axes.fill_between(
        x[known], (mean - std)[known], (mean + std)[known], color=look(index).color, alpha=_BAND
    )


def label_course(axes: matplotlib.axes.Axes, label: str) -> None:
    """Labels the axes of curves over the rounds, of which there are whole ones only."""
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))


def plot_known(axes: matplotlib.axes.Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Plots a curve through the points that have a finite value."""
    known = np.isfinite(y)
    axes.plot(x[known], y[known], **style)


def last_known(values: np.ndarray) -> float:
    """Returns the last finite value of a course; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _told_apart(quantity: ReportField, columns: Sequence[Column], values: Values) -> list[Column]:
    if len(columns) <= MAX_TOLD_APART:
        return list(columns)
    sign = -1.0 if quantity.higher_is_better else 1.0
    ends = {column: sign * last_known(values[column.name]) for column in columns}
    # Last the ones without a value.
    ordered = sorted(columns, key=lambda c: (np.isnan(ends[c]), -ends[c]))
    return ordered[:_HIGHLIGHTED]


def _what_is_shown(quantity: ReportField) -> str:
    return "the largest in the end" if quantity.higher_is_better is None else "the worst in the end"


def save(figure: matplotlib.figure.Figure, path: Path) -> None:
    """Writes a figure in PNG format; equal figures have equal files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    content = io.BytesIO()
    figure.set_dpi(_DPI)
    # `savefig` writes the same bytes, and draws twice for them.
    FigureCanvasAgg(figure).print_png(content, metadata={"Software": None})
    with atomic_file(path) as file:
        file.write(content.getbuffer())
