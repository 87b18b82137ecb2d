"""The .png files of a run.

How a measure is spread over clients, as a figure: by value, and by the size of the client.

The two panels are those of figures 4 and 5 of Laguel et al. 2021, of sums over clients: where the
paper has a dot for each client, there is the mean of the clients of about one size.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.computations.evaluation import grid_of
from tff_agnostic.computations.histograms import LogGrid
from tff_agnostic.files import make_folder
from tff_agnostic.later import matplotlib
from tff_agnostic.metrics.evaluation_report import ClientValues, EvaluationReport, values_of
from tff_agnostic.metrics.formatting import short_names
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.model import Measure
from tff_agnostic.report_fields import ReportField, Unit
from tff_agnostic.reports.figures import (
    Look,
    Values,
    draw_grid,
    drawn_columns,
    figure_of,
    house_style,
    look,
    new_figure,
    plain_text,
    save,
    scale_axis,
)
from tff_agnostic.tasks.task import Task

# Bins of the grid are put together until there are no more bars than this.
_MAX_BARS = 30
# Of bars, where those of several rows lie over each other.
_ALPHA = 0.25
_LABEL_WIDTH = 40


def draw_run(
    folder: Path,
    task: Task,
    columns: Sequence[Column],
    values: Values,
    further: Mapping[str, Callable[[], matplotlib.figure.Figure]] = types.MappingProxyType({}),
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
        save(
            figure_of(quantity, drawn_columns(quantity, columns), values),
            folder / f"{_file_name(quantity)}.png",
        )
    for name, draw_further in further.items():
        save(draw_further(), folder / f"{_as_file_name(name)}.png")
    with house_style():
        for file_name, draw in task.figures.items():
            save(draw(task, values), folder / f"{file_name}.png")


def _file_name(quantity: ReportField) -> str:
    return quantity.file_name or _as_file_name(quantity.name)


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)


def client_figure(
    measure: Measure, rows: Mapping[str, Sequence[ClientValues]], split: str
) -> matplotlib.figure.Figure:
    """Returns the figure of a measure, with a colour for each row.

    On the left is a histogram of the clients, in percent of all clients of a row's trials. On the
    right is the clients' mean against their number of examples: the mean and, where there are
    several trials, the standard deviation over those with clients of the size.

    Args:
        measure: What was measured.
        rows: The trials of each row by its label; a single row has no legend.
        split: Whose clients they are.
    """
    figure = new_figure(12, 4.5)
    histogram, by_size = figure.subplots(1, 2)
    edges = bar_edges(measure, [v for trials in rows.values() for of in trials for v in of.values])
    labels = map(plain_text, short_names(list(rows), _LABEL_WIDTH))
    for i, (label, trials) in enumerate(zip(labels, rows.values())):
        _draw_histogram(histogram, edges, trials, look(i), label)
        _draw_by_size(by_size, trials, look(i), label)
    label = f"{measure.name} on a {split} client"
    histogram.set(xlabel=label, ylabel=f"{split} clients, %", title="Clients by value")
    if measure.unit is Unit.FACTOR or isinstance(grid_of(measure.metric), LogGrid):
        histogram.set_xscale("log")
        histogram.xaxis.set_major_formatter(matplotlib.ticker.LogFormatter())
    by_size.set(
        xlabel="examples of the client", ylabel=label, title="Mean of the clients by their size"
    )
    by_size.set_xscale("log", base=2)
    by_size.xaxis.set_major_formatter(matplotlib.ticker.LogFormatter(base=2))
    scale_axis(by_size, measure.unit)
    for axes in (histogram, by_size):
        draw_grid(axes)
    if len(rows) > 1:
        by_size.legend(fontsize="small")
    return figure


def client_figures(
    reports: Mapping[str, EvaluationReport],
) -> dict[str, Callable[[], matplotlib.figure.Figure]]:
    """Returns what draws the clients for each measure of a run, by a name for the figure.

    Args:
        reports: The evaluation of each of its models, by name; several lie over each other.
    """
    main = next(iter(reports.values()))
    return {
        f"{main.split} clients {name}": functools.partial(
            client_figure,
            main.measures[name],
            {model: [report.client_values[name]] for model, report in reports.items()},
            main.split,
        )
        for name in main.client_values
    }


def bar_edges(measure: Measure, values: Sequence[float]) -> np.ndarray:
    """Returns where the bars of a histogram begin and end, float64 [bars + 1].

    Each bar is a whole number of the measure's bins, the same for all: otherwise neighbouring bars
    would differ because one has a bin more.

    Args:
        measure: The measure.
        values: Centres of bins, in the measure's own values; those that are not finite are left
            out.
    """
    grid = grid_of(measure.metric)
    edges = _edges(measure, np.arange(grid.num_bins + 1))
    # Bins that are all infinite have no place on an axis.
    edges = edges[np.isfinite(edges)]
    known = np.array([v for v in values if np.isfinite(v)] or edges[:1])
    first = np.searchsorted(edges, known.min(), "right") - 1
    first = int(np.clip(first, 0, len(edges) - 2))
    last = int(np.clip(np.searchsorted(edges, known.max(), "left"), first + 1, len(edges) - 1))
    merged = -(-(last - first) // _MAX_BARS)
    bars = -(-(last - first) // merged)
    return np.nan_to_num(_edges(measure, first + merged * np.arange(bars + 1)))


def _edges(measure: Measure, positions: np.ndarray) -> np.ndarray:
    ratios = grid_of(measure.metric).edge(positions)
    if measure.metric is not None and measure.metric.transform is not None:
        # The first bin begins below 0, where a transform need not have a value.
        ratios = np.maximum(ratios, 0)
    return values_of(measure.metric, ratios)


def _draw_histogram(
    axes: matplotlib.axes.Axes,
    edges: np.ndarray,
    trials: Sequence[ClientValues],
    own: Look,
    label: str,
) -> None:
    values = np.concatenate([np.asarray(of.values, np.float64) for of in trials])
    clients = np.concatenate([np.asarray(of.clients, np.float64) for of in trials])
    known = np.isfinite(values)
    # What an earlier release measured on another grid joins the ends.
    inside = np.clip(values[known], edges[0], edges[-1])
    counts, _ = np.histogram(inside, edges, weights=clients[known])
    percent = 100 * counts / max(clients.sum(), 1)
    axes.stairs(percent, edges, fill=True, color=own.color, alpha=_ALPHA)
    axes.stairs(percent, edges, color=own.color, linestyle=own.line, label=label)


def _draw_by_size(
    axes: matplotlib.axes.Axes, trials: Sequence[ClientValues], own: Look, label: str
) -> None:
    by_size: dict[int, list[float]] = {}
    for of in trials:
        for size, mean in zip(of.sizes, of.size_means):
            by_size.setdefault(size, []).append(mean)
    sizes = sorted(by_size)
    means = np.array([np.mean(by_size[size]) for size in sizes])
    with np.errstate(invalid="ignore"):  # The spread of what is infinite.
        spreads = [np.std(by_size[s], ddof=1) if len(by_size[s]) > 1 else 0.0 for s in sizes]
    known = np.isfinite(means)
    # In the middle of a bin, on an axis of powers of two.
    x = np.array(sizes)[known] * 2**0.5
    style: dict[str, Any] = {"linestyle": own.line, "marker": own.marker, "label": label}
    axes.errorbar(x, means[known], np.array(spreads)[known], color=own.color, **style)
