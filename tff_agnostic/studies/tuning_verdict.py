"""What a search found, in sentences: against what was given, and one algorithm against another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from optuna.trial import FrozenTrial, TrialState

from tff_agnostic.errors import counted
from tff_agnostic.files import read_json
from tff_agnostic.reports.run_record import read_run
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.comparison import Comparison, Trials, collect
from tff_agnostic.studies.harmed import harmed
from tff_agnostic.studies.methods import BASELINE
from tff_agnostic.studies.optuna_studies import given_values
from tff_agnostic.studies.search import SearchRecord, best
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
            return [
                f"{label}: none of {counted(count, 'trial')} has a better value than the given "
                "settings."
            ]
        return of_row(runs, name, as_given(name), main_measure(runs), _MORE_SEEDS)


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
        search: The search.
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

    def runs(of: Sequence[RunFolder]) -> Trials:
        fewest = [int(read_json(folder.result).get("worst_min_examples", 1)) for folder in of]
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
