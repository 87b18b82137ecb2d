"""The figures of a run, drawn from the columns of metrics.csv."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tff_agnostic.files import atomic_file, make_folder
from tff_agnostic.tasks.task import Task

Columns = Mapping[str, np.ndarray]
# Beyond this many domains a legend hides the curves.
_MAX_LEGEND = 20
_DPI = 120
# Measures that fall by powers of ten, which on a linear axis hide where they end.
_ON_LOG_AXES = ("perplexity",)


def draw_run(folder: Path, task: Task, columns: Columns) -> None:
    """Draws lambda, every measure per domain, and the task's own figures, as .png files.

    Raises:
        UserError: If the folder cannot be written.
    """
    make_folder(folder)
    measures = ["loss", *(metric.name for metric in task.model.metrics)]
    names = [("domain_weights", "lambda", "domain weight lambda")]
    names += [(f"train_{m}", f"train/{m}", f"{m} on the cohort, before training") for m in measures]
    names += [(f"test_{m}", f"test/{m}", f"{m} on the test clients") for m in measures]
    for file_name, prefix, label in names:
        save(
            per_domain_figure(task.domain_names, columns, prefix, label),
            folder / f"{file_name}.png",
        )
    for file_name, draw in task.figures.items():
        save(draw(task, columns), folder / f"{file_name}.png")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in PNG format; equal figures have equal files."""
    content = io.BytesIO()
    figure.set_dpi(_DPI)
    # `savefig` writes the same bytes, and draws twice for them.
    FigureCanvasAgg(figure).print_png(content, metadata={"Software": None})
    with atomic_file(path) as file:
        file.write(content.getbuffer())


def per_domain_figure(
    domain_names: Sequence[str], columns: Columns, prefix: str, label: str
) -> Figure:
    """Returns a figure with one curve per domain: the columns PREFIX/DOMAIN over rounds."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    colors = domain_colors(len(domain_names))
    for name, color in zip(domain_names, colors):
        y = columns[f"{prefix}/{name}"]
        plot_known(axes, columns["round"], y, color=color, label=plain_text(name))
    axes.set(xlabel="round", ylabel=label)
    scale_axis(axes, prefix.rpartition("/")[2])
    axes.grid(alpha=0.3)
    if len(domain_names) <= _MAX_LEGEND:
        figure.legend(loc="outside right upper", title="domain")
    return figure


def plot_known(axes: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Plots a curve through the points that have a finite value."""
    known = np.isfinite(y)
    axes.plot(x[known], y[known], **style)


def scale_axis(axes: Axes, measure: str) -> None:
    """Makes the vertical axis logarithmic where a measure needs it."""
    if measure in _ON_LOG_AXES:
        axes.set_yscale("log")


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
