"""Reports of runs and studies, written again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.options import Options
from tff_agnostic.program.commands.command import Command
from tff_agnostic.program.commands.command_line import compare_command, train_command
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.reports.html import chosen_title, write_page
from tff_agnostic.program.reports.run_page import run_page, write_run_report
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.studies import frontier_page, tuning_page
from tff_agnostic.program.studies.comparison import first_stage_folder, trial_folder
from tff_agnostic.program.studies.comparison_page import comparison_page, default_title
from tff_agnostic.program.studies.comparison_record import COMPARE, read_comparison
from tff_agnostic.program.studies.frontier_page import (
    FRONTIER,
    read_frontier,
    write_frontier_page,
)
from tff_agnostic.program.studies.methods import LAST_LAYER, WORDS
from tff_agnostic.program.studies.recommendation import FILE, FINAL, recommendation_page
from tff_agnostic.program.studies.stages import joined
from tff_agnostic.program.studies.tuning_page import RESULT as SEARCH
from tff_agnostic.program.studies.tuning_page import read_search
from tff_agnostic.program.studies.verdict import neglected


def write_comparison_report(folder: Path, title: Optional[str] = None) -> Path:
    """Writes the report of the comparison in a folder, and one for each of its runs.

    Returns:
        Its path.
    """
    record = read_comparison(folder)
    specs = {
        row: [trial_folder(folder, row, k).spec() for k in range(len(runs))]
        for row, runs in record.runs.items()
    }
    warned = neglected(record.comparison, {row: runs[0] for row, runs in specs.items()})
    words = {}
    for row, runs in specs.items():
        first = first_stage_folder(folder, row, 0)
        if first.config.exists():
            specs[row] = [joined(first.spec(), run) for run in runs]
            words[row] = (LAST_LAYER, WORDS[LAST_LAYER].settings)
    heading = chosen_title(folder, title, default_title(record))
    command = compare_command(specs, words)
    path = write_page(folder, comparison_page(record, command, warned, heading))
    count = sum(map(len, record.runs.values()))
    with LongWork("report", count, "pages of runs") as work:
        for row, of_row in record.runs.items():
            for k, run in enumerate(of_row):
                trial = trial_folder(folder, row, k).path
                write_page(trial, run_page(dataclasses.replace(run, where=""), _command(trial)))
                work.update()
    return path


def write_recommendation_report(folder: Path, title: Optional[str] = None) -> Path:
    """Writes the reports of a recommendation and of its last runs; returns the former's path."""
    write_comparison_report(folder / FINAL)
    content = read_json(folder / FILE)
    heading = chosen_title(folder, title, f"Recommendation for {content['task']}")
    return write_page(folder, recommendation_page(content, heading))


def write_frontier_report_again(folder: Path, title: Optional[str]) -> Path:
    """Writes the report of a frontier, and returns its path; see `write_comparison_report`."""
    content, frontier = read_frontier(folder)
    specs = {row: trial_folder(folder, row, 0).spec() for row in frontier.comparison.trials}
    heading = chosen_title(folder, title, frontier_page.default_title(content["task"]))
    warned = neglected(frontier.comparison, specs)
    path, _ = write_frontier_page(frontier, folder, heading, content["command"], warned)
    return path


def write_search_report(folder: Path, title: Optional[str]) -> Path:
    """Writes the report of a search, and returns its path; see `write_comparison_report`."""
    ended = read_search(folder)
    heading = chosen_title(folder, title, tuning_page.default_title(ended.search))
    return write_page(folder, ended.page(heading))


# Keyed by a file of the study; the first existing file decides.
_WRITERS: Mapping[str, Callable[[Path, Optional[str]], Path]] = {
    FILE: write_recommendation_report,
    FRONTIER: write_frontier_report_again,
    SEARCH: write_search_report,
    COMPARE: write_comparison_report,
}


def write_report_again(folder: Path, title: Optional[str] = None) -> Path:
    """Writes the report of what is in a folder, complete, and returns its path.

    That is a run, a comparison, a frontier, a search or a recommendation.
    """
    for file, write in _WRITERS.items():
        if (folder / file).exists():
            return write(folder, title)
    return write_run_report(folder, _command(folder), title)


def _command(folder: Path) -> Optional[list[str]]:
    """Returns the command of a run; None if the user's algorithm has moved."""
    try:
        return train_command(RunFolder(folder).spec())
    except UserError:
        return None


@dataclasses.dataclass(frozen=True)
class ReportOptions(Options):
    """The flags of `report`.

    Attributes:
        run: Folder of a complete run, comparison, frontier, search or recommendation.
        title: Heading of report.html. [that of the page that is replaced, or what was run]
    """

    run: Path = dataclasses.field(kw_only=True)
    title: Optional[str] = None


REPORT = Command(
    "report",
    ReportOptions,
    run=lambda given: write_report_again(given.own.run, given.own.title),
    show=lambda page: print(f"report: {page}"),
)
