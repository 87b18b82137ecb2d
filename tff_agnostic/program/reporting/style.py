"""How all figures look: one palette, one grid, and what tells curves and bars apart.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which people who confuse
red and green tell apart, without the yellow, which is too light for lines on white. Where they are
used up, lines, markers and hatches differ as well: in a print without colours, too.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import LogFormatter, PercentFormatter

from tff_agnostic.quantities import Unit

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


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure whose parts keep out of each other's way.

    Args:
        width: Inches.
        height: Inches.
    """
    return Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Gives the palette and the grid to figures that are drawn by who knows nothing of them."""
    with matplotlib.rc_context(
        {
            "axes.prop_cycle": cycler(color=COLORS),
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": _GRID,
        }
    ):
        yield


def draw_grid(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draws the grid, below everything else."""
    axes.grid(alpha=_GRID, axis=axis)
    axes.set_axisbelow(True)


def plain_text(name: str) -> str:
    """Returns a name such that a figure shows it as it is: "$" starts no formula there."""
    escaped = name.replace("$", r"\$")
    # A label that starts with an underscore is left out of legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def percent_axis(axes: Axes, unit: Unit) -> None:
    """Writes shares at the vertical axis in percent; what is drawn stays a share."""
    if unit is Unit.SHARE:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def scale_axis(axes: Axes, unit: Unit, names: str = "y") -> None:
    """Makes axes logarithmic for what falls by powers of ten.

    To be called when everything is drawn: an axis without a positive value stays as it is.

    Args:
        axes: Where.
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
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())
