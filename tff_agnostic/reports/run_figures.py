"""The .png files of a run."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tff_agnostic.files import make_folder
from tff_agnostic.later import matplotlib
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.report_fields import ReportField
from tff_agnostic.reports.distributions import client_figure
from tff_agnostic.reports.figures import (
    Values,
    drawn_columns,
    figure_of,
    house_style,
    save,
)
from tff_agnostic.tasks.task import Task


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
        columns: The columns of metrics.csv.
        values: Their values.
        further: What draws further figures, by what they are of.
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
            name,
            main.measures[name].unit,
            {model: [report.client_values[name]] for model, report in reports.items()},
            main.split,
        )
        for name in main.client_values
    }
