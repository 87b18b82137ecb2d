"""report.html of a frontier, and the frontier read back from its folder."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError, counted
from tff_agnostic.files import read_json, write_text
from tff_agnostic.metrics.formatting import with_percent
from tff_agnostic.reports.page import (
    Block,
    Bullets,
    Line,
    Name,
    Page,
    Paragraph,
    Part,
    Picture,
    Section,
    Source,
    Table,
    Warnings,
    in_line,
    rendered,
)
from tff_agnostic.reports.run_page import (
    REPORT,
    data_section,
    measure_facts,
    typed_blocks,
    use_section,
    versions_blocks,
)
from tff_agnostic.reports.run_record import RunRecord, data_caveats, read_run
from tff_agnostic.studies import frontier_report
from tff_agnostic.studies.comparison import DIFFERENCE, OVERALL, WORST, trial_folder
from tff_agnostic.studies.comparison_record import read_rows
from tff_agnostic.studies.comparison_report import notes
from tff_agnostic.studies.frontier import TRAINING_MIXTURE, Frontier, Mixture

_SUMMARIES = {OVERALL: "all examples", DIFFERENCE: "best - worst"}


def usual_title(task: str) -> str:
    """Returns the heading of the page where none was given."""
    return f"What is attainable on {task}"


def frontier_page(
    frontier: Frontier, first: RunRecord, title: str, command: str, given_up: Sequence[str] = ()
) -> Page:
    """Returns the page.

    Args:
        frontier: What is shown.
        first: A run of it, which says what all have in common.
        title: Its heading.
        command: What made it.
        given_up: A line for each domain that a row gave up; see `harmed`.
    """
    comparison = frontier.comparison
    count = len(first.result["domains"])
    caveats: list[Line] = [f"{line[0].upper()}{line[1:]}." for line in notes(comparison)]
    caveats += data_caveats(first)
    verdict: list[Block] = [Bullets(frontier.sentences)]
    verdict += [Warnings([f"{line}." for line in given_up])] if given_up else []
    is_private = any(trials.privacy for trials in comparison.trials.values())
    return Page(
        title,
        [
            f"{counted(len(frontier.mixtures), 'mixture')} of {count} domains, and ",
            *in_line([comparison.label(row) for row in frontier.algorithms]),
            f". Numbers are those of {FRONTIER}: means over "
            f"{counted(frontier_report.num_trials(frontier), 'seed')} and, in parentheses, "
            "standard deviations.",
        ],
        [
            Section("verdict", "The verdict", [*verdict, _picture(frontier)]),
            Section("rule", "What the verdict means", [Paragraph(_rule(frontier))]),
            Section("caveats", "What to know first", [Warnings(caveats)] if caveats else []),
            Section("rows", "Every mixture and every algorithm", [_table(frontier, command)]),
            data_section(first, is_private),
            Section("measures", "What was measured", [measure_facts(first)]),
            Section(
                "again", "How to make it again", [*typed_blocks(command), *versions_blocks(first)]
            ),
            use_section(comparison.domain_names),
        ],
    )


def _picture(frontier: Frontier) -> Picture:
    measure = frontier.measure.name
    if len(frontier.comparison.domain_names) == 2:
        text = f"{measure} of one domain against that of the other, for every mixture"
    else:
        text = (
            f"{measure} of the worst domain, and of each domain by itself, on the way from the "
            "training mixture; of many domains those that are worst with that mixture"
        )
    return Picture(functools.partial(frontier_report.figure, frontier), text)


def _rule(frontier: Frontier) -> str:
    return f"{frontier_report.RULE} {frontier_report.chosen_on(frontier)}"


def _table(frontier: Frontier, command: str) -> Table:
    comparison, measure = frontier.comparison, frontier.measure
    source = Source(FRONTIER, frontier_report.to_json(frontier, command))
    has_all = len(comparison.domain_names) <= frontier_report.MAX_DOMAIN_COLUMNS
    domains = comparison.domain_names if has_all else ()

    def number(row: str, name: str) -> list[Part]:
        found = source.below("results", row, name, measure.name)
        mean, std = (found.number(key, unit=measure.unit) for key in ("mean", "std"))
        return [mean] if std.value is None else [mean, " (", std, ")"]

    rows: list[Sequence[Line]] = []
    for row in comparison.trials:
        mark = " (best)" if row == frontier.best.name else ""
        worst: list[Line] = [number(row, WORST)]
        if not has_all:
            worst.append(Name(frontier_report.worst_domain(frontier, row) or "-"))
        names = (*domains, *_SUMMARIES)
        cells = [number(row, name) for name in names]
        rows.append([[Name(comparison.label(row)), mark], *worst, *cells])
    headings: list[Line] = ["trained with", "worst", *([] if has_all else ["worst domain"])]
    headings += [*(Name(name) for name in domains), *_SUMMARIES.values()]
    better = "higher" if measure.higher_is_better else "lower"
    caption = f"{with_percent(measure.name, measure.unit)} on the {comparison.split} clients"
    return Table(f"{caption} ({better} is better)", headings, rows)


def write_frontier_report(
    frontier: Frontier, folder: Path, title: str, command: str, given_up: Sequence[str]
) -> Path:
    """Writes the report of a frontier into its folder; see `frontier_page`."""
    first = read_run(trial_folder(folder, frontier.training_mixture.name, 0).path)
    path = folder / REPORT
    write_text(path, rendered(frontier_page(frontier, first, title, command, given_up)))
    return path


FRONTIER = "frontier.json"


def read_frontier(folder: Path) -> tuple[Mapping[str, Any], Frontier]:
    """Returns what a frontier left in its folder: frontier.json with the task, and what it shows.

    The lines on which mixtures lie are those of the file; of a release that wrote none, panels have
    the weight of the domain as their axis.
    """
    path = folder / FRONTIER
    content = read_json(path)
    try:
        rows, measure, command = content["results"], content["measure"], str(content["command"])
        found = {name: (of["label"], of["lambda"], of) for name, of in content["mixtures"].items()}
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{path}: expected a frontier, found something else: frontier --resume writes the file "
            "again"
        ) from e
    record = read_rows(path, rows, "frontier")
    comparison, names = record.comparison, record.comparison.domain_names
    try:
        mixtures = [
            Mixture(
                name,
                str(label),
                tuple(float(lambda_[domain]) for domain in names),
                names.index(of["line"]) if of.get("line") is not None else None,
                float(of.get("way", 0.0)),
            )
            for name, (label, lambda_, of) in found.items()
        ]
        frontier = Frontier(comparison, mixtures, comparison.measures[measure])
        known = TRAINING_MIXTURE in found and {*found} <= {*comparison.trials}
    except (LookupError, TypeError, ValueError):
        known = False
    if not known:
        raise UserError(f"{path}: expected mixtures of {', '.join(names)}, found something else")
    return {**content, "command": command, "task": record.first.result["task"]}, frontier
