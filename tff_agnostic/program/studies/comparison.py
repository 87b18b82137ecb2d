"""A comparison: methods with several seeds each, and the results of their runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.base.files import finite_or_none
from tff_agnostic.metrics.evaluation_report import (
    ClientValues,
    client_values_from_json,
    domains_below,
)
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure, main_measure
from tff_agnostic.program.reports.run_record import RunRecord, read_run
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.studies.runset import run_folder
from tff_agnostic.tasks.task import TEST_SPLIT

# Key of the distribution over clients in JSON.
OVER_CLIENTS = "(over clients)"
# First part of the names of runs that are the first of two stages.
FIRST_STAGES = "first_stages"
# Algorithm of the method with which other methods are compared.
BASELINE = "fed_avg"
# Key of result.json that marks a run without federated training.
POOLED = "pooled"
# Maximum number of trials, as the settings of all exist before the first one runs.
MAX_TRIALS = 10_000
# Names of summaries over domains; parentheses distinguish them from names of domains.
OVERALL = "(overall)"
WORST = "(worst)"
DIFFERENCE = "(difference)"
SUMMARIES = (WORST, OVERALL, DIFFERENCE)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The results of one method.

    Attributes:
        values: values[DOMAIN][MEASURE] is one number per trial. Further keys are "(overall)",
            "(worst)" (the worst domain of each trial) and "(difference)" (between the best and the
            worst domain of each trial).
        histories: The columns of metrics.csv of each trial.
        not_counted: Domains that had too few test examples in a trial to be its worst or best.
        over_clients: over_clients[STATISTIC][MEASURE] is one number per trial, for all domains
            together; NaN if the trial's evaluation did not report it.
        client_values: The clients' values of each measure in each trial that reported them.
        privacy: (epsilon, delta) of each private trial.
        resampled: Results of each trial for resampled clients; empty unless every trial has some.
        class_counts: Number of test examples of each class in the first trial, by domain; empty if
            they were not counted.
        non_finite: Number of test clients, over all trials, with numbers that are not finite. No
            value includes these clients.
    """

    values: Mapping[str, Mapping[str, np.ndarray]]
    histories: Sequence[Mapping[str, np.ndarray]]
    not_counted: Collection[str] = ()
    over_clients: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    client_values: Mapping[str, Sequence[ClientValues]] = dataclasses.field(default_factory=dict)
    privacy: Sequence[tuple[float, float]] = ()
    resampled: Sequence[Resampled] = ()
    seeds: Sequence[int] = ()
    class_counts: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    non_finite: int = 0

    def mean(self, domain: str, measure: str) -> float:
        """Returns the mean of a domain's measure over the trials."""
        return float(np.mean(self.values[domain][measure]))

    def std(self, domain: str, measure: str) -> float:
        """Returns the sample standard deviation of a domain's measure; NaN for a single trial."""
        return trials_deviation(self.values[domain][measure])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trials of several methods on one task.

    Attributes:
        trials: The trials of each method, by its name.
        labels: Labels of methods in tables and figures; by default their names.
        split: Split of the evaluated clients: "test", or "heldout".
        worst_min_examples: Minimum number of examples of a domain that counts as the worst or best.
        remarks: Explanations of methods, by their names.
        records: The complete runs of each method.
    """

    domain_names: tuple[str, ...]
    measures: Mapping[str, Measure]
    trials: Mapping[str, Trials]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split: str = TEST_SPLIT
    worst_min_examples: int = 1
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: Mapping[str, Sequence[RunRecord]] = dataclasses.field(default_factory=dict)

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The domains that are not counted in at least one trial."""
        names = {name for trials in self.trials.values() for name in trials.not_counted}
        return tuple(name for name in self.domain_names if name in names)

    @property
    def num_trials(self) -> int:
        """Maximum number of trials of a method."""
        return max(len(trials.histories) for trials in self.trials.values())

    @property
    def main_measure(self) -> Measure:
        """The measure of verdicts: the first metric, or the loss if there are no metrics."""
        return self.measures[main_measure(self.measures)]

    @property
    def first(self) -> RunRecord:
        """The first trial of the first method."""
        return next(iter(self.records.values()))[0]

    @property
    def is_private(self) -> bool:
        """Whether any of the trials was trained with differential privacy."""
        return any(trials.privacy for trials in self.trials.values())

    @property
    def baseline(self) -> str:
        """The method with which other methods are compared: FedAvg, or the first method."""
        return next(filter(self.is_plain, self.trials), next(iter(self.trials)))

    def is_plain(self, row: str) -> bool:
        """Whether a method is federated averaging."""
        if row not in self.records:
            return row == BASELINE
        result = self.records[row][0].result
        return bool(result["algorithm"] == BASELINE and not result.get(POOLED))

    def label(self, row: str) -> str:
        """Returns the label of a method."""
        return self.labels.get(row, row)

    def to_json(self) -> dict[str, Any]:
        """Returns {METHOD: {DOMAIN: {MEASURE: {"mean", "std", "trials"}}}} as JSON values.

        Next to its domains a method has the entry "(over clients)", which is {STATISTIC: {MEASURE:
        {"mean", "std", "trials"}}}.
        """
        return {
            row: {
                **_each_to_json(trials.values),
                OVER_CLIENTS: _each_to_json(trials.over_clients),
            }
            for row, trials in self.trials.items()
        }


def _each_to_json(by_name: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    return {
        name: {
            measure: {
                "mean": finite_or_none(float(np.mean(values))),
                "std": finite_or_none(trials_deviation(values)),
                "trials": [finite_or_none(float(v)) for v in values],
            }
            for measure, values in measures.items()
        }
        for name, measures in by_name.items()
    }


def trial_name(row: str, trial: int) -> str:
    """Returns the name of a trial's run; trials are counted from 0."""
    return f"{row}/trial_{trial:02d}"


def trial_folder(folder: Path, row: str, trial: int) -> RunFolder:
    """Returns the run folder of a trial in a study's folder; trials are counted from 0."""
    return RunFolder(run_folder(folder, trial_name(row, trial)))


def read_trials(
    folder: Path,
    names: Mapping[str, Sequence[str]],
    labels: Mapping[str, str],
    remarks: Mapping[str, str],
) -> Comparison:
    """Returns the results of complete runs in the folder of a study.

    Args:
        names: Names of each method's runs, by method.
    """
    records = {
        row: [read_run(path, f"{path.relative_to(folder)}/") for path in paths]
        for row, runs in names.items()
        for paths in [[run_folder(folder, name) for name in runs]]
    }
    first = next(iter(records.values()))[0]
    least = (int(run.result["worst_min_examples"]) for runs in records.values() for run in runs)
    return Comparison(
        first.domains,
        first.measures,
        {row: collect(runs, first) for row, runs in records.items()},
        labels,
        first.split,
        max(least),
        remarks,
        records,
    )


def collect(runs: Sequence[RunRecord], like: RunRecord) -> Trials:
    """Returns the trials of one method.

    Args:
        runs: The run of each trial.
        like: A run with the domains, measures and statistics of the trials.
    """
    results, names, measures = [run.result for run in runs], like.domains, like.measures
    excluded = [
        domains_below(
            {d: r["domains"][d]["num_examples"] for d in names}, int(r["worst_min_examples"])
        )
        for r in results
    ]
    is_counted = np.array([[d not in few for d in names] for few in excluded])
    by_domain = {
        name: np.array([[run.value("domains", d, name) for d in names] for run in runs])
        for name in measures
    }
    values: dict[str, dict[str, np.ndarray]] = {
        domain: {name: by_domain[name][:, i] for name in measures} for i, domain in enumerate(names)
    }
    for summary in SUMMARIES:
        values[summary] = {}
    for name, measure in measures.items():
        defined = is_counted & ~np.isnan(by_domain[name])
        low = np.min(by_domain[name], axis=1, where=defined, initial=np.inf)
        high = np.max(by_domain[name], axis=1, where=defined, initial=-np.inf)
        low[~defined.any(axis=1)] = high[~defined.any(axis=1)] = np.nan
        values[WORST][name] = low if measure.higher_is_better else high
        values[DIFFERENCE][name] = high - low
        values[OVERALL][name] = np.array([run.value("overall", name) for run in runs])
    drawn = [run.resampled for run in runs if run.resampled is not None]
    return Trials(
        values,
        [run.columns for run in runs],
        {name for few in excluded for name in few},
        over_clients={
            s: {
                name: np.array([run.value("overall", "over_clients", name, s) for run in runs])
                for name in measures
            }
            for s in _statistics(like)
        },
        client_values={
            name: [
                client_values_from_json(values)
                for run in runs
                if (values := run.get("client_values", name)) is not None
            ]
            for name in measures
        },
        privacy=[
            # Without noise epsilon is infinite, which JSON represents by null.
            (math.inf if private["epsilon"] is None else private["epsilon"], private["delta"])
            for run in runs
            if (private := run.get("privacy"))
        ],
        resampled=drawn if len(drawn) == len(runs) else [],
        seeds=[int(r["seed"]) for r in results],
        class_counts=results[0].get("class_counts", {}),
        non_finite=sum(int(run.get("clients", "non_finite") or 0) for run in runs),
    )


def _statistics(run: RunRecord) -> list[str]:
    """Returns the statistics of distributions over clients that a run reported."""
    reported = run.result["overall"]["over_clients"].values()
    return list(dict.fromkeys(s for values in reported for s in values if s != "num_clients"))


def trials_deviation(values: np.ndarray) -> float:
    """Returns the sample standard deviation over trials; NaN for a single trial."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
