"""report.html of a search, and the search read back from its folder.

Its verdict says in sentences what the search found: against what was given, and one algorithm
against another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from optuna.trial import FrozenTrial, TrialState

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.formatting import UNDEFINED, with_percent
from tff_agnostic.program.reports.page import (
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
from tff_agnostic.program.reports.run_page import (
    data_section,
    measure_facts,
    typed_blocks,
    use_section,
    versions_blocks,
)
from tff_agnostic.program.reports.run_record import data_caveats, read_run
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.studies.comparison import Comparison, collect
from tff_agnostic.program.studies.comparison import Trials as RowTrials
from tff_agnostic.program.studies.gains import gains
from tff_agnostic.program.studies.optuna_studies import (
    FILE,
    FINISHED,
    Method,
    Studies,
    given_values,
    seed_folder,
)
from tff_agnostic.program.studies.runset import STUDY
from tff_agnostic.program.studies.search import SearchRecord, best, shown_values
from tff_agnostic.program.studies.search_space import parse_objective
from tff_agnostic.program.studies.tuning_report import Trials, importance_figure, rows_of, slices
from tff_agnostic.program.studies.verdict import (
    baseline_row,
    harmed,
    of_row,
    verdict_figure,
    verdicts,
)

RESULT, _FILE = "tuned.json", "trials.csv"
# The rows of what was given, beside those of the best trials.
_AS_GIVEN = "(as given)"
_MORE_SEEDS = "--repeats"


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
        found: What it found; the runs are there.
        trials: The finished trials of each algorithm, by its name.
        sentences: The verdict.
        shares: What each setting has in the variance of the objective, by algorithm.
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
    runs, measure = found.all_runs, found.all_runs.main_measure
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
        """Returns its page, as `tune` made it."""
        found = found_by(self.search, self.trials, self._spec)
        if found.best_runs is None:
            raise UserError(
                f"{self.search.folder}: expected the runs of the best trials, found that some are "
                "gone: a page shows them"
            )
        content, search = self.content, self.search
        shares = {name: of["importance"] for name, of in content["algorithms"].items()}
        verdict, command = content["verdict"], content["command"]
        return tuning_page(search, found, self.trials, verdict, shares, command, title)

    def _spec(self, name: str, trial: FrozenTrial) -> RunSpec:
        return RunFolder(self.search.runs_of(name, trial)[0]).spec()


def read_search(folder: Path) -> EndedSearch:
    """Returns what a search left in its folder.

    Raises:
        UserError: If something else is there, or no trial is complete.
    """
    content, own = read_json(folder / RESULT), read_json(folder / STUDY)
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
        seed_folder(folder, name, trial.number, seed)
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


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: The best trial of each algorithm, by its name.
        given: Its trial with the settings that were given, where there is one that is complete.
        best_runs: The runs of the best trials as a comparison; None if files of runs are gone.
        all_runs: The same and those of `given`, whose rows are named by `as_given`.
        specs: The first run of each best trial.
    """

    best: Mapping[str, FrozenTrial]
    given: Mapping[str, FrozenTrial]
    best_runs: Optional[Comparison]
    all_runs: Optional[Comparison]
    specs: Mapping[str, RunSpec]

    @functools.cached_property
    def harm(self) -> list[str]:
        """A line for each domain that the best trial of an algorithm gave up."""
        return [] if self.best_runs is None else harmed(self.best_runs, self.specs)

    def sentences(self, num_trials: Mapping[str, int], num_seeds: int, split: str) -> list[str]:
        """Returns the verdict; see `what_it_proves` for its end.

        Args:
            num_trials: How many trials each algorithm has had.
            num_seeds: Runs of each trial.
            split: Whose clients were evaluated.
        """
        lines = []
        if self.all_runs is not None and self.best_runs is not None:
            for name in self.best:
                lines += self._against_given(self.all_runs, name, num_trials[name])
            algorithms = {name: spec.config.algorithm for name, spec in self.specs.items()}
            lines += verdicts(self.best_runs, algorithms, _MORE_SEEDS)
        return [*dict.fromkeys(lines), *what_it_proves(num_seeds, len(num_trials), split)]

    def _against_given(self, runs: Comparison, name: str, count: int) -> list[str]:
        if name not in self.given:
            return []
        if self.given[name].number == self.best[name].number:
            label = runs.labels[name]
            return [
                f"{label}: none of {counted(count, 'trial')} has a better value than the given "
                "settings."
            ]
        return of_row(runs, name, as_given(name), runs.main_measure, _MORE_SEEDS)


def as_given(name: str) -> str:
    """Returns what the row of an algorithm's given settings is called."""
    return f"{name} {_AS_GIVEN}"


def found_by(
    search: SearchRecord,
    trials: Mapping[str, Sequence[FrozenTrial]],
    spec_of: Callable[[str, FrozenTrial], RunSpec],
) -> Found:
    """Returns what a search found.

    Args:
        trials: The finished trials of each algorithm, by its name.
        spec_of: Returns the first run of a trial of an algorithm.
    """
    chosen = {name: best(of_it, search.objective) for name, of_it in trials.items()}
    complete = {name: trial for name, trial in chosen.items() if trial is not None}
    given = {n: t for n in complete if (t := _given(search, n, trials[n])) is not None}
    specs = {name: spec_of(name, trial) for name, trial in complete.items()}
    folders = {name: _folders(search, name, trial) for name, trial in complete.items()}
    if not folders or not all(folders.values()):
        # Somebody took the runs away; the trials are in the studies.
        return Found(complete, given, None, None, specs)
    first = read_run(next(iter(folders.values()))[0].path)

    def runs(of: Sequence[RunFolder]) -> RowTrials:
        fewest = [int(read_json(folder.result)["worst_min_examples"]) for folder in of]
        return collect(of, first.domains, first.measures, fewest)

    best_rows = {name: runs(of) for name, of in folders.items()}
    given_rows = {
        as_given(name): runs(of)
        for name, trial in given.items()
        if (of := _folders(search, name, trial))
    }
    labels = {name: search.labels[name] for name in best_rows}
    of_best = Comparison(first.domains, first.measures, best_rows, labels, search.split)
    both = {
        **{name: f"{label} with trial {complete[name].number}" for name, label in labels.items()},
        **{as_given(n): f"what was given (trial {t.number})" for n, t in given.items()},
    }
    of_all = dataclasses.replace(of_best, trials={**best_rows, **given_rows}, labels=both)
    return Found(complete, given, of_best, of_all, specs)


def _given(search: SearchRecord, name: str, trials: Sequence[FrozenTrial]) -> Optional[FrozenTrial]:
    """Returns the complete trial all of whose values were given; None if there is none."""
    wanted = set(search.distributions[name])
    return next(
        (t for t in trials if wanted <= set(given_values(t)) and t.state is TrialState.COMPLETE),
        None,
    )


def _folders(search: SearchRecord, name: str, trial: FrozenTrial) -> list[RunFolder]:
    """Returns the folders of a trial's runs; none if their files are gone."""
    folders = [RunFolder(path) for path in search.runs_of(name, trial)]
    return folders if all(folder.result.exists() for folder in folders) else []


def what_it_proves(num_seeds: int, num_algorithms: int, split: str) -> list[str]:
    """Returns sentences that say what the best of several trials does not prove.

    Args:
        num_seeds: Runs of each trial.
        num_algorithms: How many were searched.
        split: Whose clients were evaluated.
    """
    lines = []
    if num_seeds == 1:
        lines.append(
            "Each trial is one run of one seed (--repeats=1): how much of a difference between "
            "trials is chance is not known, and another seed may choose other settings; "
            "--repeats=3 tells more."
        )
    lines.append(
        f"The best of several trials looks better than it is, on the {split} clients that it was "
        "chosen on"
        + (
            ": which algorithm is better is for ./run compare to tell, with its best settings and "
            "new seeds."
            if num_algorithms > 1
            else "."
        )
    )
    return lines
