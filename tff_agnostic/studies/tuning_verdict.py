"""What a search found, in sentences: against what was given, and one algorithm against another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Optional

from optuna.trial import FrozenTrial, TrialState

from tff_agnostic.models.model import measures_of
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.arms import BASELINE
from tff_agnostic.studies.comparison import Comparison, Trials, collect
from tff_agnostic.studies.harmed import harmed
from tff_agnostic.studies.optuna_studies import SAME_AS, given_values, trial_folder
from tff_agnostic.studies.search import Search, best
from tff_agnostic.studies.verdict import main_measure, of_row, verdicts

# The rows of what was given, beside those of the best trials.
_AS_GIVEN = "(as given)"
_MORE_SEEDS = "--repeats"


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
        has_plain = any(spec.config.algorithm == BASELINE for spec in self.specs.values())
        return harmed(self.best_runs, self.specs) if has_plain and self.best_runs else []

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
            return [f"{label}: none of {count} trials is better than the settings that were given."]
        return of_row(runs, name, as_given(name), main_measure(runs), _MORE_SEEDS)


def as_given(name: str) -> str:
    """Returns what the row of an algorithm's given settings is called."""
    return f"{name} {_AS_GIVEN}"


def found_by(search: Search, trials: Mapping[str, Sequence[FrozenTrial]], split: str) -> Found:
    """Returns what a search found.

    Args:
        search: The search.
        trials: The finished trials of each algorithm, by its name.
        split: Whose clients were evaluated.
    """
    chosen = {name: best(of_it, search.runner.objective) for name, of_it in trials.items()}
    complete = {name: trial for name, trial in chosen.items() if trial is not None}
    given = {n: t for n in complete if (t := _given(search, n, trials[n])) is not None}
    seeds = search.runner.seeds
    specs = {name: search.arms[name].spec(t.params, seeds[0]) for name, t in complete.items()}
    rows = {name: _runs(search, name, trial) for name, trial in complete.items()}
    if not rows or any(trials is None for trials in rows.values()):
        # Somebody took the runs away; the trials are in the studies.
        return Found(complete, given, None, None, specs)
    best_rows = {name: trials for name, trials in rows.items() if trials is not None}
    given_rows = {
        as_given(name): runs
        for name, trial in given.items()
        if (runs := _runs(search, name, trial)) is not None
    }
    task = search.runner.load_task(next(iter(specs.values())))
    labels = {name: search.arms[name].label for name in best_rows}
    of_best = Comparison(task.domain_names, measures_of(task.model), best_rows, labels, split)
    both = {
        **{name: f"{label} with trial {complete[name].number}" for name, label in labels.items()},
        **{as_given(n): f"what was given (trial {t.number})" for n, t in given.items()},
    }
    of_all = dataclasses.replace(of_best, trials={**best_rows, **given_rows}, labels=both)
    return Found(complete, given, of_best, of_all, specs)


def _given(search: Search, name: str, trials: Sequence[FrozenTrial]) -> Optional[FrozenTrial]:
    """Returns the complete trial all of whose values were given; None if there is none."""
    wanted = set(search.arms[name].dimensions)
    return next(
        (t for t in trials if wanted <= set(given_values(t)) and t.state is TrialState.COMPLETE),
        None,
    )


def _runs(search: Search, name: str, trial: FrozenTrial) -> Optional[Trials]:
    """Returns the runs of a trial; None if their files are gone."""
    seeds = search.runner.seeds
    spec = search.arms[name].spec(trial.params, seeds[0])
    task = search.runner.load_task(spec)
    number = int(trial.user_attrs.get(SAME_AS, trial.number))
    path = trial_folder(search.folder, name, number)
    folders = [RunFolder(path / f"seed_{seed}") for seed in seeds]
    if not all(folder.result.exists() for folder in folders):
        return None
    fewest = [spec.config.worst_min_examples] * len(seeds)
    return collect(folders, task.domain_names, measures_of(task.model), fewest)


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
