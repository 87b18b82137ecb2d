"""metrics.csv: a row per round, from which plots and TensorBoard curves are drawn again."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.files import write_errors, write_text

Row = Mapping[str, str]


class History:
    """The rows of metrics.csv, appended as rounds end.

    Values are written in the shortest form that reads back to the same number, so that equal runs
    have equal files. A value that a round does not have is an empty cell. The columns are those of
    the first row.

    Args:
        path: The file.

    Attributes:
        rows: The rows, by column name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []

    def load(self, completed_rounds: int) -> None:
        """Takes over the rows of `completed_rounds` rounds of an earlier part of the run.

        What was written after the checkpoint from which the run goes on, or only half, is dropped.

        Raises:
            UserError: If one of those rows is missing or damaged.
        """
        rows = _read_whole_lines(self._path) if self._path.exists() else []
        self.rows = rows[:completed_rounds]
        rounds = [row["round"] for row in self.rows if _is_whole(row)]
        if rounds != [str(i + 1) for i in range(completed_rounds)]:
            raise UserError(
                f"{self._path}: expected rows of rounds 1 to {completed_rounds}, as the checkpoint "
                f"says, found {_described(rounds)}"
            )

    def write(self) -> None:
        """Writes all rows anew.

        Raises:
            UserError: If that is not possible; the file stays as it was.
        """
        lines = [_line(list(self.rows[0])) if self.rows else ""]
        lines += [_line(list(row.values())) for row in self.rows]
        write_text(self._path, "".join(lines))

    def append(self, round_num: int, values: Mapping[str, Any]) -> Row:
        """Adds and returns the row of a round.

        Raises:
            UserError: If it cannot be written, or its columns are not those of the rows before.
        """
        row = {"round": str(round_num), **{name: _format(v) for name, v in values.items()}}
        if self.rows and list(self.rows[0]) != list(row):
            raise UserError(f"{self._path}: its columns are those of another run")
        header = "" if self.rows else _line(list(row))
        with write_errors(self._path), open(self._path, "a", encoding="utf-8") as file:
            file.write(header + _line(list(row.values())))
        self.rows.append(row)
        return row

    def sync(self) -> None:
        """Waits until all rows are on disk; called before a checkpoint counts on them."""
        with write_errors(self._path), open(self._path, "rb") as file:
            os.fsync(file.fileno())

    def columns(self) -> dict[str, np.ndarray]:
        """Returns every column as float64 [rounds], NaN where a round has no value."""
        return columns_of(self.rows)


def columns_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the columns of rows as float64 arrays, NaN for empty cells."""
    return {
        name: np.array([float(row[name]) if row[name] else np.nan for row in rows])
        for name in (rows[0] if rows else ())
    }


def read_history(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a metrics.csv.

    Raises:
        UserError: If the file cannot be read, or a row is damaged.
    """
    rows = _read_whole_lines(path)
    for number, row in enumerate(rows, start=1):
        if not _is_whole(row):
            raise UserError(f"{path}: expected a number or nothing in every column, row {number}")
    return columns_of(rows)


def _read_whole_lines(path: Path) -> list[Row]:
    # A crash may leave anything after the last row that was waited for: it must not be in the way.
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            text = file.read().replace("\0", "")
    except OSError as e:
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e
    # A line without its end was cut off in the middle of a write.
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole, newline="")))


def _is_whole(row: Row) -> bool:
    # Where a row is too short or too long, csv.DictReader has a value or a name of None.
    try:
        numbers = [float(value) for value in row.values() if value != ""]
    except (TypeError, ValueError):
        return False
    return "round" in row and bool(numbers)


def _described(rounds: Sequence[str]) -> str:
    return f"{len(rounds)} whole rows, {rounds[0]} to {rounds[-1]}" if rounds else "none"


def _format(value: Any) -> str:
    # NumPy scalars print in the shortest form for their own precision.
    return "" if value is None else str(value)


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
