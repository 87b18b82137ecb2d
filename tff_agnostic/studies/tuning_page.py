"""report.html of a search, and the search read back from its folder."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from optuna.trial import FrozenTrial

from tff_agnostic.errors import UserError, counted
from tff_agnostic.files import read_json
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
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.gains import gains
from tff_agnostic.studies.optuna_studies import FILE, FINISHED, Method, Studies, trial_folder
from tff_agnostic.studies.search import SearchRecord, shown_values
from tff_agnostic.studies.search_space import parse_objective
from tff_agnostic.studies.searched_method import OWN_FILE
from tff_agnostic.studies.tuning_report import Trials, importance_figure, rows_of, slices
from tff_agnostic.studies.tuning_verdict import Found, as_given, found_by
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
            f": {counted(sum(map(len, trials.values())), 'trial')}, judged by "
            f"{search.objective.name} on the {first.split} clients. Numbers are those of {_FILE}.",
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


RESULT = "tuned.json"


@dataclasses.dataclass(frozen=True)
class EndedSearch:
    """What a search left.

    Attributes:
        search: What it was.
        trials: The finished trials of each algorithm, by its name.
        content: tuned.json.
    """

    search: SearchRecord
    trials: Trials
    content: Mapping[str, Any]

    def page(self, title: str) -> Page:
        """Returns its page, as `tune` made it.

        Args:
            title: Its heading.
        """
        found = found_by(self.search, self.trials, self._spec)
        if found.best_runs is None:
            raise UserError(
                f"{self.search.folder}: expected the runs of the best trials, found that some are "
                "gone: a page shows them"
            )
        content, search = self.content, self.search
        counts = {name: len(of_it) for name, of_it in self.trials.items()}
        # An earlier release wrote no sentences.
        sentences = content.get("verdict") or found.sentences(
            counts, len(search.seeds), search.split
        )
        shares = {name: of["importance"] for name, of in content["algorithms"].items()}
        return tuning_page(
            search,
            found,
            self.trials,
            sentences,
            shares,
            content["command"],
            title,
        )

    def _spec(self, name: str, trial: FrozenTrial) -> RunSpec:
        return RunFolder(self.search.runs_of(name, trial)[0]).spec()


def read_search(folder: Path) -> EndedSearch:
    """Returns what a search left in its folder.

    Raises:
        UserError: If something else is there, or no trial is complete.
    """
    content, own = read_json(folder / RESULT), read_json(folder / OWN_FILE)
    if not (folder / FILE).is_file():
        raise UserError(f"{folder / FILE}: expected the trials of the search, found no such file")
    try:
        names, seeds = list(content["algorithms"]), tuple(content["seeds"])
        method = Method(
            bool(content["higher_is_better"]),
            seeds[0],
            *(own["sampler"], own["pruner"], own["prune_after"]),
        )
        studies = Studies(folder, method)
        trials = {name: studies.trials(name, FINISHED) for name in names}
        search = SearchRecord(
            folder,
            own["task"],
            {n: str(of.get("label") or n) for n, of in content["algorithms"].items()},
            # Its measures and domains are those of its runs.
            parse_objective(content["objective"], *_measured(folder, trials, seeds[0])),
            seeds,
            str(content["split"]),
            {n: _distributions(own["search"][n], trials[n]) for n in names},
        )
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{folder / RESULT}: expected what a search found, found something else: "
            "tune --resume writes the file again"
        ) from e
    return EndedSearch(search, trials, content)


def _measured(folder: Path, trials: Trials, seed: int) -> tuple[Any, Sequence[str]]:
    """Returns what runs of a search measured, and the domains."""
    paths = (
        trial_folder(folder, name, trial.number) / f"seed_{seed}"
        for name, of_it in trials.items()
        for trial in of_it
    )
    path = next((path for path in paths if RunFolder(path).result.exists()), None)
    if path is None:
        raise UserError(
            f"{folder}: expected the runs of a complete trial, found none: a page shows them"
        )
    first = read_run(path)
    return first.measures, first.domains


def _distributions(flags: Mapping[str, str], trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    found = {flag: of for trial in trials for flag, of in trial.distributions.items()}
    return {flag: found[flag] for flag in flags if flag in found}
