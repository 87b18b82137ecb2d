"""A report as data: a page of sections with tables, sentences and figures.

A page is built once, and rendered in three forms: by `to_terminal` as text, by `to_json` as a
record with exact numbers, and by `reports.html` for browsers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Optional, Union

from tabulate import tabulate

from tff_agnostic.base.errors import agreeing, counted, some_of
from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.base.terminal import printable
from tff_agnostic.metrics.formatting import cell, signed

# Digits after the decimal point of a number without a unit.
DECIMALS = 4
# Format version of page.json.
FORMAT = 1
# Mark of a number that does not differ significantly from the best one.
_TIED = " ~"


@dataclasses.dataclass(frozen=True)
class Number:
    """A number with its spread and interval. All forms of a page round it, except `to_json`.

    Attributes:
        value: The exact number; None if it is undefined.
        unit: Unit of the number; renderers show shares in percent.
        decimals: Digits after the decimal point; shares, shown in percent, have two fewer.
        spread: Standard deviation over trials; None without one.
        interval: Confidence interval; None without one.
        mark: "best" in its group, or "tied" if it does not differ significantly from the best.
        is_difference: Whether to show a plus sign before a positive number.
    """

    value: Optional[float]
    unit: Unit = Unit.NONE
    decimals: int = DECIMALS
    spread: Optional[float] = None
    interval: Optional[tuple[float, float]] = None
    mark: Literal["", "best", "tied"] = ""
    is_difference: bool = False

    @property
    def text(self) -> str:
        """The rounded number, such as "81.3 (0.5) [80.1, 82.4] ~"."""
        if self.value is None:
            return "-"
        parts = [self._rounded(self.value)]
        if self.spread is not None and not math.isnan(self.spread):
            parts.append(f"({cell(self.spread, self.unit, self.decimals)})")
        if self.interval is not None:
            parts.append(f"[{', '.join(map(self._rounded, self.interval))}]")
        return " ".join(parts) + _TIED * (self.mark == "tied")

    def _rounded(self, value: float) -> str:
        if isinstance(value, int) and self.unit is Unit.NONE:
            return str(value)
        rounded = signed if self.is_difference else cell
        return rounded(value, self.unit, self.decimals)


Cell = Union[str, Number]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell names the row.

    Attributes:
        caption: Subject of the table.
        columns: Headings; empty for a list of terms with their values.
        notes: Sentences below the table.
        max_rows: Maximum number of rows on a terminal and in a browser; the record has all rows.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    max_rows: int = 60

    @property
    def all_notes(self) -> list[str]:
        """The notes, and the number of rows beyond `max_rows`."""
        hidden = len(self.rows) - self.max_rows
        where = f"{counted(hidden, 'more row')} {agreeing(hidden, 'is', 'are')} in page.json."
        return [*self.notes, *([where] if hidden > 0 else [])]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Lines of text.

    Attributes:
        kind: "warning" for important lines, "command" for command lines.
    """

    lines: Sequence[str]
    kind: Literal["text", "warning", "command"] = "text"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        caption: Subject of the figure, for readers who cannot see it.
        draw: Called without arguments; returns the drawn figure.
    """

    caption: str
    draw: Callable[[], matplotlib.figure.Figure]


Block = Union[Table, Sentences, Figure]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page; without blocks it is not shown.

    Attributes:
        in_terminal: Whether a terminal shows the section.
        is_folded: Whether a browser shows only the heading until a reader opens the section.
    """

    title: str
    blocks: Sequence[Block]
    in_terminal: bool = False
    is_folded: bool = False

    @property
    def anchor(self) -> str:
        """Target of links to the section."""
        return "-".join(self.title.lower().split())


@dataclasses.dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    sections: Sequence[Section]

    @property
    def shown(self) -> list[Section]:
        """The sections with content."""
        return [section for section in self.sections if section.blocks]


def warnings(lines: Sequence[str]) -> list[Block]:
    """Returns a block of warnings; no block if there are no lines."""
    return [Sentences(lines, "warning")] if lines else []


def text(*lines: str) -> list[Block]:
    """Returns a block of sentences; no block if there are no lines."""
    return [Sentences(lines)] if lines else []


def names(all_names: Sequence[str], limit: int) -> str:
    """Returns at most `limit` names as a list in one line, with the number of further names."""
    return some_of([" ".join(name.split()) for name in all_names], limit)


def cell_text(value: Cell) -> str:
    """Returns a cell as text in one line."""
    if isinstance(value, str):
        return printable(" ".join(value.split()))
    return value.text


def to_terminal(page: Page) -> str:
    """Returns the sections of a page that a terminal shows."""
    shown = [block for section in page.shown if section.in_terminal for block in section.blocks]
    return "\n\n".join(block_text(block) for block in shown if not isinstance(block, Figure))


def block_text(block: Union[Table, Sentences]) -> str:
    """Returns a table or sentences as text."""
    if isinstance(block, Sentences):
        mark = "note: " if block.kind == "warning" else ""
        return "\n\n".join(printable(f"{mark}{line}") for line in block.lines)
    return "\n".join(filter(None, [printable(block.caption), table_text(block)]))


def table_text(table: Table) -> str:
    """Returns a table with its notes, without its caption."""
    rows = [list(map(cell_text, row)) for row in table.rows[: table.max_rows]]
    columns = list(map(cell_text, table.columns))
    lines = tabulate(rows, headers=columns, tablefmt="simple", disable_numparse=True)
    return "\n".join([lines, *map(printable, table.all_notes)])


def to_json(page: Page, drawing: Callable[[Figure], str]) -> dict[str, Any]:
    """Returns the record of a page: all rows and exact numbers.

    Args:
        drawing: Called with a figure; returns it as SVG.
    """

    def cell_json(value: Cell) -> Any:
        return value if isinstance(value, str) else _number_json(value)

    def block_json(block: Block) -> dict[str, Any]:
        if isinstance(block, Figure):
            return {"figure": block.caption, "svg": drawing(block)}
        if isinstance(block, Sentences):
            return {"sentences": list(block.lines), "kind": block.kind}
        return {
            "table": block.caption,
            "columns": list(block.columns),
            "rows": [[cell_json(value) for value in row] for row in block.rows],
            "notes": list(block.notes),
        }

    return {
        "format": FORMAT,
        "title": page.title,
        "subtitle": page.subtitle,
        "sections": [
            {
                "title": section.title,
                "is_folded": section.is_folded,
                "blocks": [block_json(block) for block in section.blocks],
            }
            for section in page.shown
        ],
    }


def _number_json(number: Number) -> dict[str, Any]:
    """Returns a number's exact value, its text, and its other fields if they are set."""
    fields: Mapping[str, Any] = {
        "unit": number.unit.name.lower() if number.unit is not Unit.NONE else None,
        "spread": None if number.spread is None else finite_or_none(number.spread),
        "interval": None if number.interval is None else list(map(finite_or_none, number.interval)),
        "mark": number.mark or None,
    }
    value = None if number.value is None else finite_or_none(number.value)
    required = {"value": value, "text": number.text}
    return {**required, **{name: field for name, field in fields.items() if field is not None}}
