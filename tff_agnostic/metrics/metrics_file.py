"""Writes and reads metrics.csv, which has a row per round of a run."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import csv_field_limit, open_file, write_errors, write_text
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.metrics.formatting import csv_text

# Maximum number of characters of a cell.
_MAX_CELL = 1 << 17
ROUND = "round"

# The cells of a row by column, as in the file.
_Cells = Mapping[str, str]
# The numbers of a round by column, without undefined numbers.
Numbers = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of metrics.csv: a quantity, overall or of one domain.

    Attributes:
        quantity: The quantity. A quantity per domain has a column for each domain, and may have one
            for all domains together.
        domain: Name of the domain; None if the column is not for one domain.
    """

    quantity: ReportField
    domain: Optional[str] = None

    @property
    def name(self) -> str:
        """Name of the column in metrics.csv."""
        name = self.quantity.name
        return name if self.domain is None else f"{name}/{self.domain}"


class History:
    """The rows of metrics.csv, appended after each round.

    Numbers are written in the shortest form that is read as the same number, so that equal runs
    have equal files. A missing value is an empty cell. `len` returns the number of rows.

    Args:
        columns: The reported columns, in the order of the file.

    Attributes:
        columns: The reported columns, then the columns that only loaded rows have.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path = path
        self._own = tuple(columns)
        self.columns = self._own
        # Keep lines of text, which need less memory than dictionaries of numbers.
        self._lines: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def load(self, completed_rounds: int) -> None:
        """Loads the rows of the completed rounds of a resumed run.

        Rows after the checkpoint and incomplete rows are dropped. If settings have changed, new
        columns are empty in loaded rows, and columns that only these rows have are kept.
        """
        rows = _read_whole_lines(self._path) if self._path.exists() else []
        rows = rows[:completed_rounds]
        rounds = [row[ROUND] for row in rows if _is_whole(row)]
        if rounds != [str(i + 1) for i in range(completed_rounds)]:
            actual = f"{len(rounds)} whole rows, {rounds[0]} to {rounds[-1]}" if rounds else "none"
            raise UserError(
                f"{self._path}: expected rows of rounds 1 to {completed_rounds}, as the checkpoint "
                f"says, found {actual}"
            )
        own_names = {ROUND, *(column.name for column in self._own)}
        further = [name for name in (rows[0] if rows else ()) if name not in own_names]
        kept = [name for name in further if any(row[name] for row in rows)]
        self.columns = (*self._own, *(Column(ReportField(name, label=name)) for name in kept))
        self._lines = []
        for row in rows:
            cells = (row.get(column.name, "") for column in self.columns)
            self._lines.append(csv_text([[row[ROUND], *cells]]))

    def write(self) -> None:
        """Writes the complete file."""
        lines = [self._header()] if self._lines else []
        write_text(self._path, "".join([*lines, *self._lines]))

    def append(self, round_num: int, values: Mapping[str, Any]) -> Numbers:
        """Adds the row of a round, and returns its numbers."""
        cells = [_format(values[column.name]) for column in self._own]
        further = [""] * (len(self.columns) - len(self._own))
        line = csv_text([[str(round_num), *cells, *further]])
        # The first row replaces a file that an earlier start left if it ended before its first
        # checkpoint.
        mode, header = ("a", "") if self._lines else ("w", self._header())
        with write_errors(self._path), open(self._path, mode, encoding="utf-8") as file:
            file.write(header + line)
        self._lines.append(line)
        return {name: float(value) for name, value in values.items() if value is not None}

    def change(self, round_num: int, values: Mapping[str, Any]) -> None:
        """Changes values of a round; `write` writes them to the file."""
        changed = {name: _format(value) for name, value in values.items()}
        cells = {**self._cells(round_num), **changed}
        self._lines[round_num - 1] = csv_text([list(cells.values())])

    def numbers(self, round_num: int) -> Numbers:
        """Returns the values of a round by column."""
        cells = self._cells(round_num).items()
        return {name: float(cell) for name, cell in cells if cell and name != ROUND}

    def sync(self) -> None:
        """Waits until all rows are on disk, before a checkpoint refers to them."""
        with write_errors(self._path), open(self._path, "rb") as file:
            os.fsync(file.fileno())

    def largest_in_file(self, name: str) -> float:
        """Returns the maximum of a column, including rows that `load` drops; 0 without rows."""
        rows = _read_whole_lines(self._path) if self._path.exists() else []
        return max((float(row.get(name) or 0) for row in rows if _is_whole(row)), default=0.0)

    def values(self) -> dict[str, np.ndarray]:
        """Returns every column as float64 [rounds] by name, NaN for missing values."""
        return _arrays(self._names() if self._lines else [], csv.reader(self._lines))

    def _names(self) -> list[str]:
        return [ROUND, *(column.name for column in self.columns)]

    def _header(self) -> str:
        return csv_text([self._names()])

    def _cells(self, round_num: int) -> _Cells:
        (cells,) = csv.reader([self._lines[round_num - 1]])
        return dict(zip(self._names(), cells))


def read_history(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a metrics.csv as float64 [rounds], NaN for empty cells."""
    rows = _read_whole_lines(path)
    for number, row in enumerate(rows, start=1):
        if not _is_whole(row):
            raise UserError(f"{path}: expected a number or nothing in every column, row {number}")
    names = list(rows[0]) if rows else []
    return _arrays(names, ([row[name] for name in names] for row in rows))


def _arrays(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, np.ndarray]:
    numbers = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows])
    return dict(zip(names, np.ascontiguousarray(numbers.T)))


def _read_whole_lines(path: Path) -> list[_Cells]:
    # After a crash any bytes may follow the last synchronised row.
    with open_file(path, "the CSV file of a run") as file:
        text = file.read().decode(errors="replace").replace("\0", "")
    # A line without its end is incomplete.
    whole = text[: text.rfind("\n") + 1]
    try:
        with csv_field_limit(_MAX_CELL):
            return list(csv.DictReader(io.StringIO(whole, newline="")))
    except csv.Error as e:
        raise UserError(f"{path}: expected CSV, found: {e}") from e


def _is_whole(row: _Cells) -> bool:
    # `csv.DictReader` has None as a value or as a name if the length of a row is wrong.
    try:
        numbers = [float(value) for value in row.values() if value != ""]
    except (TypeError, ValueError):
        return False
    return ROUND in row and bool(numbers)


def _format(value: Any) -> str:
    # NumPy scalars print in the shortest form for their own precision.
    return "" if value is None else str(value)
