"""The figures of a run, most of them drawn from the columns of metrics.csv."""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tff_agnostic.files import make_folder
from tff_agnostic.program.reporting.column import Column
from tff_agnostic.program.reporting.curves import Values, drawn_columns, figure_of
from tff_agnostic.program.reporting.image import save
from tff_agnostic.program.reporting.style import house_style
from tff_agnostic.quantities import Quantity
from tff_agnostic.tasks.task import Task


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
        save(
            figure_of(quantity, drawn_columns(quantity, columns), values),
            folder / f"{_file_name(quantity)}.png",
        )
    for name, draw_further in further.items():
        save(draw_further(), folder / f"{_as_file_name(name)}.png")
    with house_style():
        for file_name, draw in task.figures.items():
            save(draw(task, values), folder / f"{file_name}.png")


def _file_name(quantity: Quantity) -> str:
    return quantity.file_name or _as_file_name(quantity.name)


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)
