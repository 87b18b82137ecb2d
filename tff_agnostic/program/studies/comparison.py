"""A comparison: methods with several seeds each, their folder and results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import finite_or_none, read_json
from tff_agnostic.metrics.by_group import ByGroup
from tff_agnostic.metrics.evaluation_report import (
    ClientValues,
    client_values_from_json,
    domains_below,
)
from tff_agnostic.metrics.intervals import Resampled, read_resampled
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.models.model import Measure, main_measure
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.studies.runset import run_folder
from tff_agnostic.tasks.task import TEST_SPLIT

# Key of the distribution over clients in JSON.
OVER_CLIENTS = "(over clients)"
# File with the labels and remarks of the rows.
COMPARISON_FILE = "comparison.json"
LABELS = "labels"
REMARKS = "remarks"
# First part of the names of first stages.
FIRST_STAGES = "first_stages"
# All settings exist before the first trial runs.
MAX_TRIALS = 10_000
# Summaries of domains; parentheses distinguish them from domains' names.
OVERALL = "(overall)"
WORST = "(worst)"
DIFFERENCE = "(difference)"
SUMMARIES = (WORST, OVERALL, DIFFERENCE)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The results of one row.

    Attributes:
        values: values[DOMAIN][MEASURE] is one number per trial. Further keys are "(overall)",
            "(worst)" (the worst domain of each trial) and "(difference)" (between the best and the
            worst domain of each trial).
        histories: The columns of metrics.csv of each trial.
        not_counted: Domains that had too few test examples in a trial to be its worst or best.
        over_clients: over_clients[STATISTIC][MEASURE] is one number per trial, of all domains
            together; NaN of a trial whose evaluation did not report it. See `statistic_names`.
        client_values: The clients' values of each measure in each trial that reported them.
        privacy: (epsilon, delta) of each private trial.
        resampled: The values of each trial with other samples of clients; empty if one has none.
        num_clients: Evaluated clients of each domain in the first trial; empty if unknown.
        seeds: Seeds of the trials.
        class_counts: Test examples of each class in each domain of the first trial; empty if they
            were not counted.
        non_finite: Number of test clients of all trials with numbers that are not finite; no value
            includes them.
    """

    values: Mapping[str, Mapping[str, np.ndarray]]
    histories: Sequence[Mapping[str, np.ndarray]]
    not_counted: Collection[str] = ()
    over_clients: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    client_values: Mapping[str, Sequence[ClientValues]] = dataclasses.field(default_factory=dict)
    privacy: Sequence[tuple[float, float]] = ()
    resampled: Sequence[Resampled] = ()
    num_clients: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seeds: Sequence[int] = ()
    class_counts: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    non_finite: int = 0

    def mean(self, domain: str, measure: str) -> float:
        """Returns the mean over the trials."""
        return mean_of(self.values[domain][measure])

    def std(self, domain: str, measure: str) -> float:
        """Returns the sample standard deviation over the trials; NaN for a single trial."""
        return std_of(self.values[domain][measure])


class _Rows(Mapping[str, Trials]):
    """The trials of rows, by their names and, where they are looked up, by their labels.

    Args:
        trials: Trials by name.
        labels: Labels of the rows.
    """

    def __init__(self, trials: Mapping[str, Trials], labels: Mapping[str, str]) -> None:
        self.labels = labels
        self._trials = trials.unlabelled if isinstance(trials, _Rows) else trials

    @property
    def unlabelled(self) -> Mapping[str, Trials]:
        """The trials by name alone."""
        return self._trials

    def __getitem__(self, name: str) -> Trials:
        found = [name] if name in self._trials else []
        found += [row for row in self._trials if self.labels.get(row) == name and not found]
        if len(found) == 1:
            return self._trials[found[0]]
        known = [self.labels.get(row, row) for row in self._trials]
        raise KeyError(f"expected one of {', '.join(known)}, found {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trials of several rows on one task.

    Attributes:
        domain_names: Names of the domains.
        measures: The measures by name.
        trials: The trials of each row, by its name; `trials[...]` also takes its label.
        labels: Labels of rows in tables and figures; by default their names.
        split: Split of the evaluated clients: "test", or "heldout".
        worst_min_examples: Minimum number of examples of a domain that counts as the worst or best.
        remarks: Explanations of rows, by their names.
    """

    domain_names: tuple[str, ...]
    measures: Mapping[str, Measure]
    trials: Mapping[str, Trials]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    split: str = TEST_SPLIT
    worst_min_examples: int = 1
    remarks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The domains that are not counted in at least one trial."""
        found = {name for trials in self.trials.values() for name in trials.not_counted}
        return tuple(name for name in self.domain_names if name in found)

    @property
    def num_trials(self) -> int:
        """Number of trials of each row."""
        return len(next(iter(self.trials.values())).histories)

    @property
    def main_measure(self) -> Measure:
        """The measure of verdicts: the first metric, or the loss without one."""
        return self.measures[main_measure(self.measures)]

    def __post_init__(self) -> None:
        """Lets rows be found by their labels."""
        if not isinstance(self.trials, _Rows) or self.trials.labels != self.labels:
            object.__setattr__(self, "trials", _Rows(self.trials, self.labels))

    def label(self, row: str) -> str:
        """Returns the label of a row."""
        return self.labels.get(row, row)

    def by_group(self) -> dict[str, ByGroup]:
        """Returns the means over the trials of each row, by its label."""
        return {
            self.label(row): ByGroup(
                overall={name: of.mean(OVERALL, name) for name in self.measures},
                by_group={
                    name: {domain: of.mean(domain, name) for domain in self.domain_names}
                    for name in self.measures
                },
                higher_is_better={n: m.higher_is_better for n, m in self.measures.items()},
                not_counted=tuple(of.not_counted),
            )
            for row, of in self.trials.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Returns {ROW: {DOMAIN: {MEASURE: {"mean", "std", "trials"}}}}.

        In addition to the domains a row has "(over clients)": {STATISTIC: {MEASURE: the same}}.
        """
        return {
            row: {
                **_each_to_json(trials.values),
                **(
                    {OVER_CLIENTS: _each_to_json(trials.over_clients)}
                    if trials.over_clients
                    else {}
                ),
            }
            for row, trials in self.trials.items()
        }


def _each_to_json(by_name: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    return {
        name: {
            measure: {
                "mean": finite_or_none(mean_of(values)),
                "std": finite_or_none(std_of(values)),
                "trials": [finite_or_none(float(v)) for v in values],
            }
            for measure, values in measures.items()
        }
        for name, measures in by_name.items()
    }


def trial_name(row: str, trial: int) -> str:
    """Returns the name of the run of a trial, counted from 0."""
    return f"{row}/trial_{trial:02d}"


def trial_folder(folder: Path, row: str, trial: int) -> RunFolder:
    """Returns the run folder of a trial, counted from 0, in the folder of a study."""
    return RunFolder(run_folder(folder, trial_name(row, trial)))


def first_stage_folder(folder: Path, row: str, trial: int) -> RunFolder:
    """Returns the run folder of a trial's first stage."""
    return trial_folder(folder, f"{FIRST_STAGES}/{row}", trial)


def collect(
    folders: Sequence[RunFolder],
    domain_names: Sequence[str],
    measures: Mapping[str, Measure],
    worst_min_examples: Sequence[int],
    statistics: Sequence[str] = (),
) -> Trials:
    """Returns the trials of one row from the files of its runs.

    Args:
        folders: The folder of each trial.
        measures: The measures by name.
        worst_min_examples: Minimum of each trial; see `Comparison`.
        statistics: Statistics of distributions over clients; see `statistic_names`.
    """
    results = [
        _read_result(folder.result, domain_names, measures, statistics) for folder in folders
    ]
    left_out = [
        domains_below({d: r["domains"][d]["num_examples"] for d in domain_names}, fewest)
        for r, fewest in zip(results, worst_min_examples)
    ]
    is_counted = np.array([[d not in names for d in domain_names] for names in left_out])
    by_domain = {
        name: np.array([[_number(r["domains"][d][name]) for d in domain_names] for r in results])
        for name in measures
    }
    values: dict[str, dict[str, np.ndarray]] = {
        domain: {name: by_domain[name][:, i] for name in measures}
        for i, domain in enumerate(domain_names)
    }
    for summary in SUMMARIES:
        values[summary] = {}
    for name, measure in measures.items():
        known = is_counted & ~np.isnan(by_domain[name])
        low = np.min(by_domain[name], axis=1, where=known, initial=np.inf)
        high = np.max(by_domain[name], axis=1, where=known, initial=-np.inf)
        low[~known.any(axis=1)] = high[~known.any(axis=1)] = np.nan
        values[WORST][name] = low if measure.higher_is_better else high
        values[DIFFERENCE][name] = high - low
        values[OVERALL][name] = np.array([_number(r["overall"][name]) for r in results])
    histories = [read_history(folder.metrics) for folder in folders]
    drawn = {name: [_client_values(r, name) for r in results] for name in measures}
    return Trials(
        values,
        histories,
        {name for names in left_out for name in names},
        over_clients={
            statistic: {
                name: np.array([_statistic(r, name, statistic) for r in results])
                for name in measures
            }
            for statistic in statistics
        },
        client_values={
            name: [of for of in by_trial if of is not None] for name, by_trial in drawn.items()
        },
        privacy=[
            (_epsilon(r["privacy"]["epsilon"]), r["privacy"]["delta"])
            for r in results
            if "privacy" in r
        ],
        resampled=read_resampled([folder.resampled for folder in folders]),
        seeds=[int(r.get("seed", k)) for k, r in enumerate(results)],
        class_counts=results[0].get("class_counts", {}),
        non_finite=sum(map(_non_finite, results)),
        num_clients={
            name: int(count)
            for name, of in results[0]["domains"].items()
            if not math.isnan(count := _statistic({"overall": of}, "loss", "num_clients"))
        },
    )


def _read_result(
    path: Path, domain_names: Sequence[str], measures: Iterable[str], statistics: Sequence[str]
) -> Mapping[str, Any]:
    found = read_json(path)
    try:
        domains = [found["domains"][name] for name in domain_names]
        values = [part[name] for part in (found["overall"], *domains) for name in measures]
        values += [
            _statistic(found, name, statistic) for name in measures for statistic in statistics
        ]
        for name in measures:
            _client_values(found, name)
        counts = [domain["num_examples"] for domain in domains]
        _non_finite(found)
        is_result = all(isinstance(_number(value), (int, float)) for value in (*values, *counts))
    except (AttributeError, LookupError, TypeError, ValueError):
        is_result = False
    if not is_result or None in counts:
        raise UserError(
            f"{path}: expected the result of a run with {', '.join(measures)} of "
            f"{', '.join(domain_names)}, found a result without them"
        )
    return found


def _statistic(result: Mapping[str, Any], measure: str, statistic: str) -> float:
    """Returns a statistic of a distribution over clients; NaN if it was not reported."""
    over_clients = result["overall"].get("over_clients", {})
    return _number(over_clients.get(measure, {}).get(statistic))


def _non_finite(result: Mapping[str, Any]) -> int:
    """Returns the number of clients with numbers that are not finite; 0 if not counted."""
    return int(result.get("clients", {}).get("non_finite", 0))


def _client_values(result: Mapping[str, Any], measure: str) -> Optional[ClientValues]:
    """Returns the clients' values of a measure; None if they were not reported."""
    found = result.get("client_values", {}).get(measure)
    return None if found is None else client_values_from_json(found)


def mean_of(values: np.ndarray) -> float:
    """Returns the mean over trials."""
    return float(np.mean(values))


def std_of(values: np.ndarray) -> float:
    """Returns the sample standard deviation over trials; NaN for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else value


def _epsilon(value: Optional[float]) -> float:
    # JSON has no infinity, which is the epsilon of no noise.
    return math.inf if value is None else value
