"""report.html of a search."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Optional

from tff_agnostic.metrics.formatting import UNDEFINED, with_percent
from tff_agnostic.reports.page import (
    Block,
    Bullets,
    Line,
    Name,
    Page,
    Picture,
    Section,
    Table,
    Warnings,
    in_line,
)
from tff_agnostic.reports.run_page import (
    data_section,
    measure_facts,
    typed_blocks,
    use_section,
    versions_blocks,
)
from tff_agnostic.reports.run_record import data_caveats, read_run
from tff_agnostic.studies.gains import gains
from tff_agnostic.studies.search import SearchRecord, shown_values
from tff_agnostic.studies.tuning_report import Trials, importance_figure, rows_of, slices
from tff_agnostic.studies.tuning_verdict import Found, as_given
from tff_agnostic.studies.verdict import baseline_row, main_measure
from tff_agnostic.studies.verdict_figure import verdict_figure

_FILE = "trials.csv"


def usual_title(search: SearchRecord) -> str:
    """Returns the heading of the page where none was given."""
    return f"Search on {search.task}"


def tuning_page(
    search: SearchRecord,
    found: Found,
    trials: Trials,
    sentences: Sequence[str],
    shares: Mapping[str, Optional[Mapping[str, float]]],
    command: str,
    title: str,
) -> Page:
    """Returns the page.

    Args:
        search: The search.
        found: What it found; the runs are there.
        trials: The finished trials of each algorithm, by its name.
        sentences: The verdict.
        shares: What each setting has in the variance of the objective, by algorithm.
        command: What made it.
        title: Its heading.
    """
    first = read_run(search.runs_of(*next(iter(found.best.items())))[0])
    verdict: list[Block] = [Bullets(sentences)]
    verdict += [Warnings([f"{line}." for line in found.harm])] if found.harm else []
    caveats = data_caveats(first)
    return Page(
        title,
        [
            *in_line([*search.labels.values()]),
            f": {sum(map(len, trials.values()))} trials, judged by {search.objective.name} on the "
            f"{first.split} clients. Numbers are those of {_FILE}.",
        ],
        [
            Section("verdict", "The verdict", [*verdict, *_pictures(found)]),
            Section("best", "The best settings", [_best(search, found)]),
            Section("caveats", "What to know first", [Warnings(caveats)] if caveats else []),
            Section("trials", "All trials", _trials(search, trials, shares)),
            data_section(first, first.is_private),
            Section("measures", "What was measured", [measure_facts(first)]),
            Section(
                "again", "How to make it again", [*typed_blocks(command), *versions_blocks(first)]
            ),
            use_section(first.domains),
        ],
    )


def _pictures(found: Found) -> list[Block]:
    """Returns each domain before and after, of the best settings and of the algorithms."""
    assert found.all_runs is not None
    pairs = [
        (name, as_given(name))
        for name, trial in found.best.items()
        if name in found.given and found.given[name].number != trial.number
    ]
    baseline = baseline_row({n: spec.config.algorithm for n, spec in found.specs.items()})
    pairs += [(name, baseline) for name in found.best if name != baseline]
    runs, measure = found.all_runs, main_measure(found.all_runs)
    return [
        Picture(
            functools.partial(
                verdict_figure, runs, row, other, measure, gains(runs, row, other, measure)
            ),
            f"{measure.name} of {runs.label(other)} and of {runs.label(row)} in each domain, and "
            "what is gained there; error bars are 95% intervals",
        )
        for row, other in pairs
        if row in runs.trials and other in runs.trials
    ]


def _best(search: SearchRecord, found: Found) -> Table:
    objective = search.objective
    rows: list[Sequence[Line]] = []
    for name, label in search.labels.items():
        trial = found.best.get(name)
        if trial is None:
            rows.append([Name(label), UNDEFINED, UNDEFINED, UNDEFINED])
            continue
        value = objective.text(float(trial.value or 0.0))
        rows.append([Name(label), str(trial.number), value, shown_values(trial.params)])
    heading = with_percent(objective.name, objective.unit)
    notes = ["best.flags in the folder of each algorithm holds them as flags of train and compare."]
    return Table(
        "The best trial of each algorithm", ["", "trial", heading, "settings"], rows, notes
    )


def _trials(
    search: SearchRecord, trials: Trials, shares: Mapping[str, Optional[Mapping[str, float]]]
) -> list[Block]:
    objective = search.objective
    blocks: list[Block] = []
    for name, of_it in trials.items():
        label = search.labels[name]
        headings, rows = rows_of(name, of_it, objective)
        blocks.append(Table([Name(label)], headings, rows))
        draw = functools.partial(slices, label, search.distributions[name], of_it, objective)
        text = "the objective of the trials against each setting; later trials are brighter"
        blocks.append(Picture(draw, f"{label}: {text}, the best is a star"))
        of_setting = shares[name]
        if of_setting is not None:
            blocks.append(
                Picture(
                    functools.partial(importance_figure, label, of_setting),
                    f"{label}: the share of each setting in the variance of the objective",
                )
            )
    return blocks
