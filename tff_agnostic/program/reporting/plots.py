"""The figures of a run, most of them drawn from the columns of metrics.csv."""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from tff_agnostic.files import make_folder
from tff_agnostic.program.reporting.columns import ROUND, Column
from tff_agnostic.program.reporting.image import save as save
from tff_agnostic.quantities import Quantity, Unit
from tff_agnostic.tasks.task import Task

# The values of columns over the rounds, by name.
Values = Mapping[str, np.ndarray]
# Up to so many domains have a legend beside the curves, and up to so many one below them.
_MAX_BESIDE = 20
_MAX_LEGEND = 120
_LEGEND_COLUMNS = 6
_INCHES_PER_ROW = 0.17


def draw_run(
    folder: Path,
    task: Task,
    columns: Sequence[Column],
    values: Values,
    further: Mapping[str, Callable[[], Figure]] = types.MappingProxyType({}),
) -> None:
    """Draws every quantity that is to be drawn, and the task's own figures, as .png files.

    Args:
        folder: Where to.
        task: The task.
        columns: The columns of metrics.csv.
        values: Their values.
        further: What draws further figures, by what they are of.

    Raises:
        UserError: If the folder cannot be written.
    """
    make_folder(folder)
    for quantity in dict.fromkeys(c.quantity for c in columns if c.quantity.is_drawn):
        of_it = [c for c in columns if c.quantity == quantity]
        # Beside the domains' curves, that of all examples together would be one more to tell apart.
        curves = [c for c in of_it if (c.domain is not None) == quantity.per_domain]
        save(figure_of(quantity, curves, values), folder / f"{_file_name(quantity)}.png")
    for name, draw_further in further.items():
        save(draw_further(), folder / f"{_as_file_name(name)}.png")
    for file_name, draw in task.figures.items():
        save(draw(task, values), folder / f"{file_name}.png")


def figure_of(quantity: Quantity, columns: Sequence[Column], values: Values) -> Figure:
    """Returns a figure of a quantity over the rounds, with a curve for each of its columns."""
    is_below = quantity.per_domain and _MAX_BESIDE < len(columns) <= _MAX_LEGEND
    rows = -(-len(columns) // _LEGEND_COLUMNS) if is_below else 0
    figure = Figure(figsize=(8, 4.5 + _INCHES_PER_ROW * rows), layout="constrained")
    axes = figure.subplots()
    for column, color in zip(columns, domain_colors(len(columns))):
        label = None if column.domain is None else plain_text(column.domain)
        plot_known(axes, values[ROUND], values[column.name], color=color, label=label)
    axes.set(xlabel="round", ylabel=quantity.label)
    scale_axis(axes, quantity.unit)
    axes.grid(alpha=0.3)
    if is_below:
        figure.legend(loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize="x-small")
    elif quantity.per_domain and len(columns) <= _MAX_BESIDE:
        figure.legend(loc="outside right upper", title="domain")
    return figure


def plot_known(axes: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Plots a curve through the points that have a finite value."""
    known = np.isfinite(y)
    axes.plot(x[known], y[known], **style)


def scale_axis(axes: Axes, unit: Unit, both: bool = False) -> None:
    """Makes the vertical axis, or both, logarithmic for what falls by powers of ten.

    To be called when everything is drawn: an axis without a positive value stays as it is.
    """
    if unit is not Unit.FACTOR:
        return
    for name in ("x", "y") if both else ("y",):
        if not np.isfinite(getattr(axes.dataLim, f"minpos{name}")):
            continue
        axes.set(**{f"{name}scale": "log"})
        # "57.5": between two powers of ten matplotlib itself has 5.75 times one of them.
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())


def plain_text(name: str) -> str:
    """Returns a name such that a figure shows it as it is: "$" starts no formula there."""
    escaped = name.replace("$", r"\$")
    # A label that starts with an underscore is left out of legends.
    return f" {escaped}" if escaped.startswith("_") else escaped


def domain_colors(count: int) -> list:
    """Returns a colour per domain: a qualitative map while it lasts, a continuous one beyond."""
    if count <= 10:
        return [colormaps["tab10"](i) for i in range(count)]
    return [colormaps["viridis"](i / (count - 1)) for i in range(count)]


def _file_name(quantity: Quantity) -> str:
    return quantity.file_name or _as_file_name(quantity.name)


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)
