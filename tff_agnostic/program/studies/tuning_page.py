"""report.html of a search, and the search read back from its folder."""

from __future__ import annotations

import dataclasses
import functools
import warnings as python_warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.formatting import UNDEFINED, with_percent
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Number,
    Page,
    Section,
    Table,
    text,
    warnings,
)
from tff_agnostic.program.reports.run_page import (
    data_blocks,
    measure_facts,
    typed_blocks,
    versions_blocks,
)
from tff_agnostic.program.reports.run_record import number, read_run
from tff_agnostic.program.reports.run_warnings import data_caveats
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import Comparison, collect
from tff_agnostic.program.studies.comparison import Trials as RowTrials
from tff_agnostic.program.studies.comparison_page import gain_figure
from tff_agnostic.program.studies.optuna_studies import (
    ENDED,
    FILE,
    FINISHED,
    SECONDS,
    Method,
    Studies,
    given_values,
    seed_folder,
)
from tff_agnostic.program.studies.runset import STUDY
from tff_agnostic.program.studies.search import SearchRecord, best, shown_values
from tff_agnostic.program.studies.search_space import DECIMALS, Objective, parse_objective
from tff_agnostic.program.studies.verdict import (
    baseline_row,
    neglected,
    row_sentences,
    verdicts,
)

RESULT = "tuned.json"
# Name of the method with the given settings.
_AS_GIVEN = "(as given)"
_MORE_SEEDS = "--repeats"
# Seed of the trees of the importance analysis, and the trials that it needs.
_SEED = 0
_MIN_TRIALS = 2
# Trials on a terminal and in a browser.
_MAX_ROWS = 200

# The trials of each algorithm by name.
Trials = Mapping[str, Sequence[FrozenTrial]]
# Fraction of the objective's variance by setting, by name of the algorithm.
Importances = Mapping[str, Optional[Mapping[str, float]]]


def default_title(search: SearchRecord) -> str:
    """Returns the title of a search's page without a given one."""
    return f"Search on {search.task}"


def tuning_page(
    search: SearchRecord,
    found: Found,
    trials: Trials,
    sentences: Sequence[str],
    shares: Importances,
    command: str,
    title: str,
) -> Page:
    """Returns the page, which a terminal shows in part.

    Args:
        found: Results of the search, whose runs exist.
        trials: The finished trials.
        sentences: The verdict.
        shares: Importance of the settings.
    """
    first = read_run(search.runs_of(*next(iter(found.best.items())))[0])
    labels = ", ".join(search.labels.values())
    return Page(
        title,
        f"{labels}: {counted(sum(map(len, trials.values())), 'trial')}, by "
        f"{search.objective.name} on the {split_name(first.split)} clients.",
        [
            Section("The verdict", text(sentences), in_terminal=True),
            Section("Domains before and after", _figures(found)),
            Section("All trials", trial_tables(search, trials, shares), in_terminal=True),
            Section("The best settings", [_best(search, found)], in_terminal=True),
            Section(
                "What to know first",
                warnings([*(f"{line}." for line in found.harm), *data_caveats(first)]),
                in_terminal=True,
            ),
            Section("The data", data_blocks(first, first.is_private), is_folded=True),
            Section("What was measured", [measure_facts(first)], is_folded=True),
            Section(
                "How to make it again",
                [*typed_blocks(command), *versions_blocks(first)],
                is_folded=True,
            ),
        ],
    )


def _figures(found: Found) -> list[Block]:
    """Returns the gains of the best settings over the given ones, and of methods over FedAvg."""
    runs = found.all_runs
    assert runs is not None
    pairs = [
        (name, as_given(name))
        for name, trial in found.best.items()
        if name in found.given and found.given[name].number != trial.number
    ]
    baseline = baseline_row({n: spec.config.algorithm for n, spec in found.specs.items()})
    pairs += [(name, baseline) for name in found.best if name != baseline]
    return [
        gain_figure(runs, row, other, runs.main_measure)
        for row, other in pairs
        if row in runs.trials and other in runs.trials
    ]


def _best(search: SearchRecord, found: Found) -> Table:
    objective = search.objective
    rows: list[Sequence[Cell]] = []
    for name, label in search.labels.items():
        trial = found.best.get(name)
        if trial is None:
            rows.append([label, UNDEFINED, UNDEFINED, UNDEFINED])
            continue
        value = Number(trial.value, objective.unit, DECIMALS)
        rows.append([label, number(trial.number), value, shown_values(trial.params)])
    heading = with_percent(objective.name, objective.unit)
    notes = ["best.flags in the folder of each algorithm has them as flags of train and compare."]
    return Table(
        "The best trial of each algorithm", ["", "trial", heading, "settings"], rows, notes
    )


def trial_tables(search: SearchRecord, trials: Trials, shares: Importances) -> list[Block]:
    """Returns a table of the trials of each algorithm, with the importance of the settings."""
    return [
        trial_table(search.labels[name], of_it, search.objective, shares[name])
        for name, of_it in trials.items()
    ]


def trial_table(
    label: str,
    trials: Sequence[FrozenTrial],
    objective: Objective,
    shares: Optional[Mapping[str, float]],
) -> Table:
    """Returns a row for each trial of an algorithm, the best complete one marked."""
    settings = list(dict.fromkeys(name for trial in trials for name in trial.params))
    best_trial = best(trials, objective)
    rows: list[Sequence[Cell]] = []
    for trial in trials:
        is_best = best_trial is not None and trial.number == best_trial.number
        rows.append(
            [
                f"{trial.number}{' (best)' if is_best else ''}",
                *(_setting(trial.params.get(setting)) for setting in settings),
                Number(trial.value, objective.unit, DECIMALS, mark="best" if is_best else ""),
                ": ".join(filter(None, [trial.state.name.lower(), trial.user_attrs.get(ENDED)])),
                number(trial.last_step),
                Number(float(trial.user_attrs.get(SECONDS, 0.0)), decimals=1),
            ]
        )
    value = with_percent(objective.name, objective.unit)
    headings = ["trial", *settings, value, "state", "round", SECONDS]
    importance = "Importance: not known without two complete trials of different values."
    if shares is not None:
        listed = ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
        importance = f"Importance (fraction of the objective's variance): {listed}."
    return Table(label, headings, rows, [importance], _MAX_ROWS)


def _setting(value: Any) -> Cell:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return UNDEFINED if value is None else f"{value:.4g}" if is_number else str(value)


def importances(study: optuna.Study) -> Optional[Mapping[str, float]]:
    """Returns the fraction of the objective's variance by setting, the largest first.

    By functional analysis of variance over the complete trials (Hutter, Hoos, Leyton-Brown 2014).
    None with fewer than two complete trials, or without differences.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _MIN_TRIALS or len({trial.value for trial in complete}) < _MIN_TRIALS:
        return None
    # It loads scikit-learn.
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", ExperimentalWarning)
        evaluator = FanovaImportanceEvaluator(seed=_SEED)
        shares = get_param_importances(study, evaluator=evaluator)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


@dataclasses.dataclass(frozen=True)
class EndedSearch:
    """A finished search.

    Attributes:
        search: The search.
        trials: The finished trials.
        content: Content of tuned.json.
    """

    search: SearchRecord
    trials: Trials
    content: Mapping[str, Any]

    def page(self, title: str) -> Page:
        """Returns the page of the search."""
        found = search_result(self.search, self.trials, self._spec)
        if found.best_runs is None:
            raise UserError(
                f"{self.search.folder}: expected the runs of the best trials, found that some are "
                "gone: a page shows them"
            )
        content, search = self.content, self.search
        shares = {name: of["importance"] for name, of in content["algorithms"].items()}
        verdict, command = content["verdict"], content["command"]
        return tuning_page(search, found, self.trials, verdict, shares, command, title)

    def _spec(self, name: str, trial: FrozenTrial) -> RunSettings:
        return RunFolder(self.search.runs_of(name, trial)[0]).spec()


def read_search(folder: Path) -> EndedSearch:
    """Returns the finished search in a folder.

    Raises:
        UserError: If the folder is not of a search, or no trial is complete.
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
    """Returns the measures and the domains of the runs of a search."""
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
    """Results of a search.

    Attributes:
        best: The best trial of each algorithm by name.
        given: The complete trial with the given settings, by name of the algorithm.
        best_runs: The runs of the best trials as a comparison; None if files of runs are missing.
        all_runs: The same runs and those of `given`, whose methods are named by `as_given`.
        specs: The first run of each best trial.
    """

    best: Mapping[str, FrozenTrial]
    given: Mapping[str, FrozenTrial]
    best_runs: Optional[Comparison]
    all_runs: Optional[Comparison]
    specs: Mapping[str, RunSettings]

    @functools.cached_property
    def harm(self) -> list[str]:
        """A line for each domain that the best trial of an algorithm neglects."""
        return [] if self.best_runs is None else neglected(self.best_runs, self.specs)

    def sentences(self, num_trials: Mapping[str, int], num_seeds: int, split: str) -> list[str]:
        """Returns the verdict, which `limits_of_search` ends.

        Args:
            num_trials: Number of trials of each algorithm.
            num_seeds: Runs of each trial.
            split: Split of the evaluated clients.
        """
        lines = []
        if self.all_runs is not None and self.best_runs is not None:
            for name in self.best:
                lines += self._against_given(self.all_runs, name, num_trials[name])
            algorithms = {name: spec.config.algorithm for name, spec in self.specs.items()}
            lines += verdicts(self.best_runs, algorithms, _MORE_SEEDS)
        return [*dict.fromkeys(lines), *limits_of_search(num_seeds, len(num_trials), split)]

    def _against_given(self, runs: Comparison, name: str, count: int) -> list[str]:
        if name not in self.given:
            return []
        if self.given[name].number == self.best[name].number:
            label = runs.labels[name]
            return [
                f"{label}: none of {counted(count, 'trial')} has a better value than the given "
                "settings."
            ]
        return row_sentences(runs, name, as_given(name), runs.main_measure, _MORE_SEEDS)


def as_given(name: str) -> str:
    """Returns the name of the method with an algorithm's given settings."""
    return f"{name} {_AS_GIVEN}"


def search_result(
    search: SearchRecord,
    trials: Trials,
    spec_of: Callable[[str, FrozenTrial], RunSettings],
) -> Found:
    """Returns the results of a search.

    Args:
        trials: The finished trials.
        spec_of: Returns the first run of a trial of an algorithm.
    """
    chosen = {name: best(of_it, search.objective) for name, of_it in trials.items()}
    complete = {name: trial for name, trial in chosen.items() if trial is not None}
    given = {n: t for n in complete if (t := _given(search, n, trials[n])) is not None}
    specs = {name: spec_of(name, trial) for name, trial in complete.items()}
    folders = {name: _folders(search, name, trial) for name, trial in complete.items()}
    if not folders or not all(folders.values()):
        # The runs are missing, but the trials are in the studies.
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
        **{as_given(n): f"the given settings (trial {t.number})" for n, t in given.items()},
    }
    of_all = dataclasses.replace(of_best, trials={**best_rows, **given_rows}, labels=both)
    return Found(complete, given, of_best, of_all, specs)


def _given(search: SearchRecord, name: str, trials: Sequence[FrozenTrial]) -> Optional[FrozenTrial]:
    """Returns the complete trial with given values only; None if there is none."""
    wanted = set(search.distributions[name])
    return next(
        (t for t in trials if wanted <= set(given_values(t)) and t.state is TrialState.COMPLETE),
        None,
    )


def _folders(search: SearchRecord, name: str, trial: FrozenTrial) -> list[RunFolder]:
    """Returns the folders of a trial's runs; empty if their files are missing."""
    folders = [RunFolder(path) for path in search.runs_of(name, trial)]
    return folders if all(folder.result.exists() for folder in folders) else []


def limits_of_search(num_seeds: int, num_algorithms: int, split: str) -> list[str]:
    """Returns sentences about what the best of several trials does not show.

    Args:
        num_seeds: Runs of each trial.
        num_algorithms: Number of searched algorithms.
        split: Split of the evaluated clients.
    """
    lines = []
    if num_seeds == 1:
        lines.append(
            "Each trial is one run of one seed (--repeats=1): how much of a difference between "
            "trials is chance is not known, and another seed may choose other settings; "
            "--repeats=3 shows more."
        )
    others = (
        ": ./run compare shows which algorithm is better, with its best settings and new seeds"
        if num_algorithms > 1
        else ""
    )
    lines.append(
        f"The best of several trials looks better than it is on the {split_name(split)} clients "
        f"that chose it{others}."
    )
    return lines
