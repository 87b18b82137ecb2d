"""The portfolio of `recommend`, and its search on validation clients.

Every method gets one run at each setting. The first setting has the given learning rates, or the
task's; the others multiply them by fixed factors, which all methods share. FedAvg and the methods
that look best get more seeds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.domain_weights.excess import OWN
from tff_agnostic.models.keras import last_layer
from tff_agnostic.program.commands.command_line import RunArguments
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.baseline_files import BASELINES, FILE_NAME
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.choice import (
    Standing,
    attained,
    best_looking,
    clearly_worse,
    judged,
    worse,
)
from tff_agnostic.program.studies.compare import ComparedRuns, train_comparison
from tff_agnostic.program.studies.comparison import (
    BASELINE,
    FIRST_STAGES,
    Comparison,
    read_trials,
    trial_name,
)
from tff_agnostic.program.studies.methods import LAST_LAYER, Arm
from tff_agnostic.program.studies.rows import split_into_stages, stage_job
from tff_agnostic.program.studies.runset import Job, RunSet
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.program.studies.validation_clients import ValidationClients

_CLIENT, _DOMAIN = "client_learning_rate", "lambda_learning_rate"
# Flags of the learning rates to search for each method, by its name in --portfolio.
PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    BASELINE: (_CLIENT,),
    "uniform": (_CLIENT,),
    "frozen": (_CLIENT, _DOMAIN),
    "excess_own": (_CLIENT, _DOMAIN),
    "excess_trivial": (_CLIENT, _DOMAIN),
    LAST_LAYER: (_CLIENT,),
    "domain_input": (_CLIENT,),
}
# Methods that are tried only if --portfolio names them: their models need the domain as an input.
IF_NAMED = ("domain_input",)
# Factors of each setting, for methods with one learning rate and with two.
_ONE_RATE = (1.0, 2.0, 0.5, 4.0, 0.25, 1.4, 0.7, 8.0)
FACTORS = (
    (1.0, 1.0),
    (2.0, 0.3),
    (0.5, 3.0),
    (2.0, 3.0),
    (4.0, 1.0),
    (1.0, 0.1),
    (0.25, 1.0),
    (0.5, 0.1),
)
# Number of methods, besides FedAvg, that get more trials.
FINALISTS = 2
# Number of settings per method if neither --tries nor --hours is given.
TRIES = 3
# First parts of the names of search runs and of baseline runs; folder of the final runs.
_SEARCH, _REFERENCES, FINAL = "search", "references", "final"
_SECONDS_PER_HOUR = 3600.0
# Reasons for ending a method's runs.
_WORSE, _EQUAL = "worse than FedAvg", "equal to FedAvg in one trial"


def learning_rates(row: str, first: RunSettings, number: int) -> list[dict[str, float]]:
    """Returns the learning rates that each setting of a method changes, by flag."""
    values, flags = first.settings(), PORTFOLIO[row]
    # Factors near 1 come first.
    tried = FACTORS if len(flags) > 1 else [(factor,) for factor in _ONE_RATE]
    return [
        {flag: values[flag] * factor for flag, factor in zip(flags, factors) if factor != 1.0}
        for factors in tried[:number]
    ]


class Schedule(NamedTuple):
    """The numbers of settings and trials.

    Attributes:
        tries: Number of settings to try for each method.
        trials: Number of seeds for the finalists, and for the final runs.
    """

    tries: int
    trials: int


def schedule_within(
    seconds: float, used: float, by_row: Mapping[str, float], most: Schedule
) -> Schedule:
    """Returns the largest schedule that fits into a time.

    More trials have precedence over more settings, as intervals need trials.

    Args:
        seconds: The time for all runs.
        used: Seconds of the first settings and of baseline runs.
        by_row: Seconds of one run of each method, which are part of `used`.
        most: Maximum numbers of settings and trials.

    Raises:
        UserError: If the time is too short for one trial of each method and the final runs.
    """
    every = sum(by_row.values())
    others = sorted(s for row, s in by_row.items() if row != BASELINE)
    finalist_seconds = by_row[BASELINE] + sum(others[-FINALISTS:])
    # The final runs train FedAvg and the chosen method, which may be the slowest one.
    final_seconds = by_row[BASELINE] + max(by_row.values())
    for trials in range(most.trials, 0, -1):
        at_end = trials * final_seconds
        rest = seconds - used - (trials - 1) * finalist_seconds - at_end
        if rest >= 0:
            more = int(min(rest / every, most.tries)) if every > 0 else most.tries
            return Schedule(min(most.tries, 1 + more), trials)
    least = used + final_seconds
    raise UserError(
        f"--hours: expected {math.ceil(least / 36) / 100:g} or more, for one run of each of "
        f"{', '.join(by_row)} and 2 final runs, found {seconds / 3600:g}"
    )


@dataclasses.dataclass(frozen=True)
class Rows:
    """The user's request, the methods and the validation clients, which determine all runs."""

    given: RunArguments
    arms: Mapping[str, Arm]
    clients: ValidationClients

    def spec(
        self, row: str, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> RunSettings:
        """Returns the settings of a method's run.

        Args:
            is_final: Whether the run trains on all training clients, and evaluates test clients.
        """
        given, seed = self.given, self.given.settings.get("seed", 0) + trial
        options = given.task_options(given.args.task)
        settings = {**self.arms[row].settings, **changes, "seed": seed}
        return given.resolved_spec(settings, options if is_final else self.clients.options(options))

    def stages(
        self, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> tuple[RunSettings, RunSettings]:
        """Returns the settings of both stages of a run of `LAST_LAYER`; see `spec`."""
        both = (self.spec(row, changes, trial, is_final) for row in (BASELINE, LAST_LAYER))
        return split_into_stages(*both)

    def without(self, names: Collection[str]) -> Rows:
        """Removes methods.

        If the other methods need no baseline runs, all held-out clients are validation clients.
        """
        arms = {row: arm for row, arm in self.arms.items() if row not in names}
        # Check every method: a setting that all methods share may require baseline runs.
        options = [self.spec(row, {}, 0).algorithm for row in arms]
        need = any(isinstance(o, LambdaOptions) and o.lambda_.baselines == OWN for o in options)
        clients = dataclasses.replace(self.clients, is_halved=need)
        return dataclasses.replace(self, arms=arms, clients=clients)


def fixed_settings(
    rows: Rows, row: str, runs: RunSet[RunSettings], trainer: RunTrainer
) -> Union[dict[str, Any], str]:
    """Makes a method's baseline runs; returns its fixed settings, or the reason to exclude it."""
    spec = rows.spec(row, {}, 0)
    if row == LAST_LAYER and not last_layer(rows.clients.judging(spec).model).others:
        return "its model has one layer, with which it is almost uniform weights"
    options = spec.algorithm
    if not isinstance(options, LambdaOptions) or options.lambda_.baselines is None:
        return {}
    name = f"{_REFERENCES}/{row}"
    folder, show = runs.path(name), rows.given.show_progress
    try:
        with runs.hold(name, wait=True):
            # Measure no time if the baseline runs are already complete.
            is_made = (folder / BASELINES / FILE_NAME).exists()
            with contextlib.nullcontext() if is_made else runs.timed(name):
                stopping = rows.clients.stopping
                runtime, stop = trainer.runtime, trainer.stop
                (made,) = with_baselines([spec], folder, runtime, stop, stopping, show)
    except UserError as e:
        # This is the error about a task that has no trivial predictors.
        if str(e).startswith("--lambda_baselines"):
            return str(e)
        raise
    numbers = made.settings()["lambda_baselines"]
    if not any(numbers):
        return "its baselines are all 0, with which it is AgnosticFedAvg"
    return {"lambda_baselines": numbers}


@dataclasses.dataclass(frozen=True)
class SearchResults:
    """Results of a search on the validation clients.

    Attributes:
        confirmed: Trials of FedAvg and of the best methods, each at its best setting.
        judged: Comparison of each of the best methods with FedAvg.
        tried: First trial of each method at each setting, by METHOD-SETTING.
        changes: Best setting of each method: {METHOD: {FLAG: VALUE}}.
        given_up: Reasons for ending methods' runs, by method.
        excluded: Reasons for not trying methods, by method.
    """

    confirmed: Comparison
    judged: Mapping[str, Standing]
    tried: Comparison
    changes: Mapping[str, Mapping[str, Any]]
    given_up: Mapping[str, str]
    schedule: Schedule
    excluded: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PortfolioSearch:
    """The search for a recommendation.

    Attributes:
        fixed: Settings of each method that the search does not change: {METHOD: {FLAG: VALUE}}.
        may_lose: Maximum amount by which the average may be worse than FedAvg's; see
            `choice.chosen`.
        excluded: Reasons for not trying methods, by method.
    """

    rows: Rows
    fixed: Mapping[str, Mapping[str, Any]]
    objective: Objective
    runs: RunSet[RunSettings]
    trainer: RunTrainer
    may_lose: Optional[float] = None
    excluded: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def settings(self) -> dict[str, list[dict[str, Any]]]:
        """All settings to try for each method, in order; a setting maps flags to values."""
        return {
            row: [
                {**fixed, **changes}
                for changes in learning_rates(row, self.rows.spec(row, fixed, 0), len(FACTORS))
            ]
            for row, fixed in self.fixed.items()
        }

    def run(self) -> SearchResults:
        """Makes the missing runs, and returns the results."""
        self._make([self._job(row, 0, 0) for row in self.settings], "the first settings")
        schedule = self._schedule()
        given_up: dict[str, str] = {}
        for k in range(1, schedule.tries):
            standings = self._compare_best_settings(*self._best(k))
            given_up |= dict.fromkeys(clearly_worse(standings, self.objective.unit), _WORSE)
            jobs = [self._job(row, k, 0) for row in self.settings if row not in given_up]
            self._make(jobs, f"setting {k + 1} of {schedule.tries}")
        best, tried = self._best(schedule.tries)
        standings = self._compare_best_settings(best, tried)
        given_up |= dict.fromkeys(_equal_rows(tried, best), _EQUAL)
        given_up |= dict.fromkeys(worse(standings), _WORSE)
        others = {row: entry for row, entry in standings.items() if row not in given_up}
        finalists = best_looking(others, FINALISTS, self.may_lose)
        for row in (row for row in others if row not in finalists):
            for rival in finalists:
                if others[row].gain.mean == others[rival].gain.mean:
                    given_up[row] = f"as good as {rival} in one trial, which has more trials"
        confirmed = {}
        for row in (BASELINE, *finalists):
            jobs = [self._job(row, best[row], k) for k in range(schedule.trials)]
            reason = self._make(jobs, f"more trials of {row}")
            if reason is None:
                confirmed[row] = jobs
            elif row == BASELINE:
                raise UserError(_no_baseline(reason))
            else:
                given_up[row] = reason
        for row, why in given_up.items():
            print(f"note: {row} is given up: {why}")
        comparison = self._comparison(confirmed)
        return SearchResults(
            comparison,
            judged(comparison, self.objective, BASELINE),
            tried,
            {row: self.settings[row][k] for row, k in best.items()},
            given_up,
            schedule,
            self.excluded,
        )

    def train_final(self, rows: Iterable[str], searched: SearchResults) -> ComparedRuns:
        """Trains methods at their best settings on all training clients; evaluates test clients."""
        trials = range(searched.schedule.trials)
        specs = {
            row: [self.rows.spec(row, searched.changes[row], k, is_final=True) for k in trials]
            for row in rows
        }
        stages = {}
        if LAST_LAYER in specs:
            changes = searched.changes[LAST_LAYER]
            stages[LAST_LAYER] = [self.rows.stages(changes, k, is_final=True) for k in trials]
        labels = {row: self.rows.arms[row].label for row in specs}
        path = self.runs.folder / FINAL
        trainer = RunTrainer(self.trainer.runtime, self.trainer.stop)
        with RunSet(path, {"study": FINAL}, trainer, True, trainer.stop) as runs:
            show = self.rows.given.show_progress
            return train_comparison(runs, trainer, specs, stages, labels, show)

    def _make(self, jobs: Sequence[Job[RunSettings]], what: str) -> Optional[str]:
        """Makes the missing runs; returns the reason of the first run without a result."""
        done, show = len(jobs) - len(self.runs.open(jobs)), self.rows.given.show_progress
        with LongWork(what, len(jobs), "runs", done, show) as work:
            outcomes = self.runs.make(jobs, work)
        self.trainer.stop.check(what)
        return next((o.reason for o in outcomes if o.reason is not None), None)

    def _job(self, row: str, setting: int, trial: int) -> Job[RunSettings]:
        name = f"{_SEARCH}/{trial_name(_folder(row, setting), trial)}"
        changes = self.settings[row][setting]
        if row != LAST_LAYER:
            return Job(name, self.rows.spec(row, changes, trial))
        return stage_job(name, *self.rows.stages(changes, trial), self.rows.clients.judging)

    def _comparison(self, jobs: Mapping[str, Sequence[Job[RunSettings]]]) -> Comparison:
        labels = {row: arm.label for row, arm in self.rows.arms.items()}
        names = {row: [job.name for job in row_settings] for row, row_settings in jobs.items()}
        return read_trials(self.runs.folder, names, labels, {})

    def _schedule(self) -> Schedule:
        """Returns the schedule, after measuring the time of each method's first setting."""
        args = self.rows.given.args
        if args.hours is None:
            return Schedule(args.tries or TRIES, args.trials)
        names = {row: f"{_SEARCH}/{trial_name(_folder(row, 0), 0)}" for row in self.fixed}
        one = {row: self.runs.seconds(n, f"{FIRST_STAGES}/{n}") for row, n in names.items()}
        # Include the time of excluded methods' baseline runs.
        used = sum(one.values()) + self.runs.seconds(_REFERENCES)
        most = Schedule(args.tries or len(FACTORS), args.trials)
        return schedule_within(args.hours * _SECONDS_PER_HOUR, used, one, most)

    def _best(self, number: int) -> tuple[dict[str, int], Comparison]:
        """Returns the index of each method's best setting, and the first trial of every setting.

        Args:
            number: Number of settings to compare for each method.
        """
        jobs = {
            (row, k): self._job(row, k, 0)
            for row, settings in self.settings.items()
            for k in range(min(number, len(settings)))
        }
        ends = {key: end for key, job in jobs.items() if (end := self.runs.outcome(job))}
        complete = {key: jobs[key] for key, end in ends.items() if end.reason is None}
        if not any(row == BASELINE for row, _ in complete):
            raise UserError(_no_baseline(ends[BASELINE, 0].reason))
        tried = self._comparison({_folder(*key): [job] for key, job in complete.items()})
        sign = 1.0 if self.objective.higher_is_better else -1.0
        values = {
            key: sign * float(attained(tried, _folder(*key), self.objective).values[0])
            for key in complete
        }
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if not any(row == BASELINE for row, _ in finite):
            raise UserError(
                f"--objective={self.objective.name}: expected a finite value for FedAvg on the "
                f"{tried.split} clients, found none"
            )
        return {
            row: max((k for r, k in finite if r == row), key=lambda k: finite[row, k])
            for row in dict.fromkeys(row for row, _ in finite)
        }, tried

    def _compare_best_settings(
        self, best: Mapping[str, int], tried: Comparison
    ) -> dict[str, Standing]:
        """Returns the standing of each method except FedAvg, from one trial of its best setting."""
        standings = judged(tried, self.objective, _folder(BASELINE, best[BASELINE]))
        return {row: standings[_folder(row, k)] for row, k in best.items() if row != BASELINE}


def _equal_rows(tried: Comparison, best: Mapping[str, int]) -> list[str]:
    """Returns the methods whose trial has the same numbers as FedAvg's, in all domains."""

    def numbers(row: str) -> np.ndarray:
        values = tried.trials[_folder(row, best[row])].values
        return np.array([values[d][m] for d in tried.domain_names for m in tried.measures])

    ours = numbers(BASELINE)
    others = (row for row in best if row != BASELINE)
    return [row for row in others if np.array_equal(numbers(row), ours, equal_nan=True)]


def _folder(row: str, setting: int) -> str:
    return f"{row}-{setting + 1}"


def _no_baseline(why: Optional[str]) -> str:
    return f"expected a result of FedAvg, with which other methods are compared, found none: {why}"
