"""The command `report`: rewrites the reports of runs and studies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json, write_json, write_text
from tff_agnostic.base.options import Options
from tff_agnostic.program.commands.command import Command
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Figure,
    Number,
    Page,
    Section,
    Sentences,
    Table,
)
from tff_agnostic.program.reports.html import PAGE, REPORT, to_html
from tff_agnostic.program.reports.run_page import write_run_report
from tff_agnostic.program.studies.compare import run_command_line
from tff_agnostic.program.studies.runset import STUDY


def write_report_again(folder: Path, title: Optional[str] = None) -> Path:
    """Writes the report of a run from its files, or of a study from page.json; returns its path."""
    if not (folder / STUDY).exists():
        return write_run_report(folder, run_command_line(folder), title)
    record = read_json(folder / PAGE)
    record["title"] = title or record.get("title")
    try:
        page = page_from_json(record)
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{folder / PAGE}: expected the page of a study, found invalid content: the study's "
            "command writes it again with --resume"
        ) from e
    write_text(folder / REPORT, to_html(page, lambda drawn: drawn.draw()))
    write_json(folder / PAGE, record)
    return folder / REPORT


def page_from_json(record: Mapping[str, Any]) -> Page:
    """Returns the page that `document.to_json` recorded; its figures draw the recorded SVG."""
    sections = [
        Section(
            part["title"],
            [_block(block) for block in part["blocks"]],
            is_folded=bool(part.get("is_folded")),
        )
        for part in record["sections"]
    ]
    return Page(record["title"], record["subtitle"], sections)


def _block(block: Mapping[str, Any]) -> Block:
    if "figure" in block:
        draw: Any = functools.partial(str, block["svg"])
        return Figure(block["figure"], draw)
    if "sentences" in block:
        return Sentences(block["sentences"], block["kind"])
    rows = [[_cell(value) for value in row] for row in block["rows"]]
    return Table(block["table"], block["columns"], rows, block["notes"])


@dataclasses.dataclass(frozen=True)
class _RecordedNumber(Number):
    recorded: str = ""

    @property
    def text(self) -> str:
        """The recorded text."""
        return self.recorded


def _cell(value: Any) -> Cell:
    if isinstance(value, str):
        return value
    return _RecordedNumber(value["value"], mark=value.get("mark", ""), recorded=value["text"])


@dataclasses.dataclass(frozen=True)
class ReportOptions(Options):
    """The flags of `report`.

    Attributes:
        run: Folder of a complete run, comparison, frontier, search or recommendation.
        title: Heading of report.html. [the previous heading]
    """

    run: Path = dataclasses.field(kw_only=True)
    title: Optional[str] = None


REPORT_COMMAND = Command(
    "report",
    ReportOptions,
    run=lambda given: write_report_again(given.args.run, given.args.title),
    show=lambda page: print(f"report: {page}"),
)
