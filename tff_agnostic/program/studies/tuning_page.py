"""The results of a search, and its page."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Optional

from optuna.trial import FrozenTrial, TrialState

from tff_agnostic.base.errors import counted
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
from tff_agnostic.program.reports.run_record import number
from tff_agnostic.program.reports.run_warnings import data_caveats
from tff_agnostic.program.reports.sections import typed_blocks
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import Comparison, read_trials
from tff_agnostic.program.studies.comparison_page import gain_figure, last_sections
from tff_agnostic.program.studies.search import (
    ENDED,
    SECONDS,
    Search,
    given_values,
    trial_name,
)
from tff_agnostic.program.studies.search_space import (
    DECIMALS,
    Objective,
    shown_value,
    shown_values,
)
from tff_agnostic.program.studies.verdict import neglected, row_sentences, verdicts

_MORE_SEEDS = "--repeats"


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The finished trials of a search, by method."""

    search: Search
    trials: Mapping[str, Sequence[FrozenTrial]]

    @property
    def objective(self) -> Objective:
        """The objective of the search."""
        return self.search.objective

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """Label of each method."""
        return {name: arm.label for name, arm in self.search.arms.items()}

    @functools.cached_property
    def best(self) -> dict[str, FrozenTrial]:
        """Each method's best complete trial, if it has one; the first of equal trials."""
        trials = {name: best_trial(entry, self.objective) for name, entry in self.trials.items()}
        return {name: trial for name, trial in trials.items() if trial is not None}

    @functools.cached_property
    def given(self) -> dict[str, FrozenTrial]:
        """Each method's complete trial with the given settings, if there is such a trial."""
        return {
            name: trial
            for name in self.best
            for trial in self.trials[name]
            if trial.state is TrialState.COMPLETE
            if trial.params.keys() <= given_values(trial).keys()
        }

    @functools.cached_property
    def runs(self) -> Comparison:
        """The runs of the best trials, and of the trials with the given settings."""
        best = {name: self._run_names(name, trial) for name, trial in self.best.items()}
        given = {as_given(n): self._run_names(n, trial) for n, trial in self.given.items()}
        labels = {n: f"{self.labels[n]} with trial {t.number}" for n, t in self.best.items()}
        labels |= {
            as_given(n): f"the given settings (trial {t.number})" for n, t in self.given.items()
        }
        return read_trials(self.search.runs.folder, {**best, **given}, labels, {})

    @functools.cached_property
    def best_runs(self) -> Comparison:
        """The runs of the best trials."""
        trials = {name: self.runs.trials[name] for name in self.best}
        return dataclasses.replace(self.runs, trials=trials, labels=self.labels)

    def _run_names(self, name: str, trial: FrozenTrial) -> list[str]:
        # Only the first of the trials with equal values has runs.
        equal = (t for t in self.trials[name] if t.params == trial.params)
        first = next(t.number for t in equal if t.state is TrialState.COMPLETE)
        return [f"{trial_name(name, first)}/seed_{seed}" for seed in self.search.seeds]

    @property
    def sentences(self) -> list[str]:
        """The sentences of the verdict; the last ones state the limits of a search."""
        lines = []
        for name, trial in self.best.items():
            if name not in self.given:
                continue
            if self.given[name].number == trial.number:
                count = counted(len(self.trials[name]), "trial")
                lines.append(
                    f"{self.labels[name]}: none of {count} has a better value than the given "
                    "settings."
                )
            else:
                lines += row_sentences(self.runs, name, as_given(name), _MORE_SEEDS)
        if self.best:
            lines += verdicts(self.best_runs, _MORE_SEEDS)
        if len(self.search.seeds) == 1:
            lines.append(
                "Each trial is one run of one seed (--repeats=1): how much of a difference between "
                "trials is chance is not known, and another seed may choose other settings; "
                "--repeats=3 shows more."
            )
        better = (
            ": ./run compare shows which algorithm is better, with its best settings and new seeds"
        )
        lines.append(
            "The best of several trials looks better than it is on the validation clients that "
            f"chose it{better * (len(self.trials) > 1)}."
        )
        return list(dict.fromkeys(lines))


def as_given(name: str) -> str:
    """Returns a method's name in results of its given settings, instead of its best settings."""
    return f"{name} (as given)"


def best_trial(trials: Sequence[FrozenTrial], objective: Objective) -> Optional[FrozenTrial]:
    """Returns the best complete trial, the first of equal trials; None if none is complete."""
    sign = -1 if objective.higher_is_better else 1
    complete = {t.number: t for t in trials if t.state is TrialState.COMPLETE}
    values = {number: sign * (trial.value or 0.0) for number, trial in complete.items()}
    return complete[min(values, key=lambda n: (values[n], n))] if values else None


def tuning_page(
    result: SearchResult, specs: Mapping[str, RunSettings], command: str, title: str
) -> Page:
    """Returns the page of a search; a terminal shows only some of its sections.

    Args:
        specs: Settings of the first run of each best trial.
    """
    num_trials = counted(sum(map(len, result.trials.values())), "trial")
    sections = [
        Section("The verdict", text(*result.sentences), in_terminal=True),
        Section("Domains before and after", _figures(result) if result.best else []),
        Section(
            "All trials",
            [trial_table(result.labels[n], t, result.objective) for n, t in result.trials.items()],
            in_terminal=True,
        ),
        Section("The best settings", [_best(result)], in_terminal=True),
    ]
    if result.best:
        harm = [f"{line}." for line in neglected(result.best_runs, specs)]
        caveats = warnings([*harm, *data_caveats(result.best_runs.first)])
        sections.append(Section("What to know first", caveats, in_terminal=True))
        sections += last_sections(result.best_runs, typed_blocks(command))
    clients = f"{split_name('heldout')} clients"
    subtitle = f"{', '.join(result.labels.values())}: {num_trials}, by {result.objective.name} on "
    return Page(title, f"{subtitle}the {clients}.", sections)


def _figures(result: SearchResult) -> list[Block]:
    """Returns figures of gains: of the best over the given settings, and of methods over FedAvg."""
    baseline, best = result.best_runs.baseline, result.best
    given = [n for n, trial in result.given.items() if trial.number != best[n].number]
    pairs = [(n, as_given(n)) for n in given] + [(n, baseline) for n in best if n != baseline]
    measure = result.runs.main_measure
    return [gain_figure(result.runs, row, other, measure) for row, other in pairs]


def _best(result: SearchResult) -> Table:
    objective = result.objective
    rows: list[Sequence[Cell]] = []
    for name, label in result.labels.items():
        trial = result.best.get(name)
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


def trial_table(label: str, trials: Sequence[FrozenTrial], objective: Objective) -> Table:
    """Returns a table of a method's trials, with a mark on the best complete trial."""
    settings = list(dict.fromkeys(name for trial in trials for name in trial.params))
    best = best_trial(trials, objective)
    rows: list[Sequence[Cell]] = []
    for trial in trials:
        is_best = best is not None and trial.number == best.number
        rows.append(
            [
                f"{trial.number}{' (best)' if is_best else ''}",
                *(shown_value(trial.params.get(setting)) for setting in settings),
                Number(trial.value, objective.unit, DECIMALS, mark="best" if is_best else ""),
                ": ".join(filter(None, [trial.state.name.lower(), trial.user_attrs.get(ENDED)])),
                number(trial.last_step),
                Number(float(trial.user_attrs.get(SECONDS, 0.0)), decimals=1),
            ]
        )
    value = with_percent(objective.name, objective.unit)
    return Table(label, ["trial", *settings, value, "state", "round", SECONDS], rows)
