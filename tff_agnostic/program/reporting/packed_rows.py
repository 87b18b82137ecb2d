"""Rows of metrics.csv in memory: as lines of the file, a tenth of what mappings would take."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, str]


class PackedRows(Sequence[Row]):
    """Rows of the same columns, from which a run of many rounds hardly grows.

    Args:
        names: Names of the columns.

    Attributes:
        lines: The rows as lines of a CSV file, each with its end.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self.lines: list[str] = []

    def __getitem__(self, index: Any) -> Any:
        """Returns a row by column name, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        (cells,) = csv.reader([self.lines[index]])
        return dict(zip(self._names, cells))

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.lines)

    def append(self, row: Row) -> str:
        """Adds a row; returns its line."""
        line = csv_line([row[name] for name in self._names])
        self.lines.append(line)
        return line

    def replace(self, index: int, row: Row) -> None:
        """Puts a row in the place of another."""
        self.lines[index] = csv_line([row[name] for name in self._names])


def csv_line(cells: Sequence[str]) -> str:
    """Returns cells as a line of a CSV file, with its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
