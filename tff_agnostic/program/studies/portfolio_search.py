"""The search of `recommend`: rows of a portfolio train, the worse are given up, the best confirmed.

1. Each row of the portfolio trains once at each of its settings; what is shown to be clearly worse
   than FedAvg gets no more settings.
2. The best setting of FedAvg, and of the two rows that look best, trains with more seeds.

How much is tried with --hours follows from the seconds of the first settings, which are kept: a
search that was killed, or that several processes share, ends alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder, write_json
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.domain_weights.excess import OWN
from tff_agnostic.models.keras import last_layer
from tff_agnostic.program.commands.command_line import GivenRun
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.baseline_files import BASELINES, FILE_NAME
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.studies.choice import Judged, attained, hopeless, judged, promising, worse
from tff_agnostic.program.studies.comparison import Comparison
from tff_agnostic.program.studies.comparison_record import COMPARE
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, Arm
from tff_agnostic.program.studies.portfolio import (
    FACTORS,
    FINALISTS,
    Run,
    Runs,
    Schedule,
    schedule_within,
    seconds_of,
    settings_of,
    timed,
)
from tff_agnostic.program.studies.recommendation import FINAL, WORSE, Found
from tff_agnostic.program.studies.rows import train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.stages import Stages, split_into_stages
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.program.studies.validation_clients import ValidationClients
from tff_agnostic.runtimes.runtime import Runtime

# Settings of each row that are tried if nobody says how many.
TRIES = 3
# In the folder of a row: how long its references took.
_SECONDS = "seconds.json"
_SEARCH = "search"
_SECONDS_PER_HOUR = 3600.0


class Budget(NamedTuple):
    """How much may be tried.

    Attributes:
        tries: Settings of each row; None for `TRIES`, or with hours as many as fit.
        trials: Of each finalist, and of the choice.
        hours: Of training, of all processes and sessions; None for no limit.
    """

    tries: Optional[int]
    trials: int
    hours: Optional[float]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The runs of the portfolio's rows.

    Attributes:
        given: What the command was given.
        arms: The rows by their names.
        clients: Who judges them.
    """

    given: GivenRun
    arms: Mapping[str, Arm]
    clients: ValidationClients

    def spec(
        self, row: str, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> RunSpec:
        """Returns a run of a row.

        Args:
            changes: What it has of its own, by flag.
            trial: From 0.
            is_final: Whether it trains on all training clients, and is evaluated on test clients.
        """
        given, seed = self.given, self.given.settings.get("seed", 0) + trial
        options = given.task_options(given.own.task)
        settings = {**self.arms[row].settings, **changes, "seed": seed}
        return given.spec_of(settings, options if is_final else self.clients.options(options))

    def stages(
        self, row: str, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> tuple[Optional[RunSpec], RunSpec]:
        """Returns a run's first stage, if it has two, and the one that is evaluated; see `spec`."""
        spec = self.spec(row, changes, trial, is_final)
        if row != LAST_LAYER:
            return None, spec
        return split_into_stages(self.spec(BASELINE, changes, trial, is_final), spec)

    def without(self, names: Collection[str]) -> Rows:
        """Returns the other rows; where none needs references, all validation clients judge."""
        arms = {row: arm for row, arm in self.arms.items() if row not in names}
        # Also a row that has them by what was given for all.
        options = [self.spec(row, {}, 0).algorithm for row in arms]
        need = any(isinstance(o, LambdaOptions) and o.lambda_.baselines == OWN for o in options)
        clients = dataclasses.replace(self.clients, is_halved=need)
        return dataclasses.replace(self, arms=arms, clients=clients)


def prepared(
    rows: Rows, folder: Path, runtime: Runtime, stop: StopRequest
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Returns what each row has at all its settings, by flag, and why others are left out."""
    fixed: dict[str, dict[str, Any]] = {}
    left_out = {}
    for row in rows.arms:
        found = _fixed(rows, row, folder, runtime, stop)
        if isinstance(found, str):
            left_out[row] = found
            print(f"note: {row} is left out: {found}")
        else:
            fixed[row] = found
    return fixed, left_out


def _fixed(
    rows: Rows, row: str, folder: Path, runtime: Runtime, stop: StopRequest
) -> Union[dict[str, Any], str]:
    """Returns what a row has at all its settings, by flag, or why it is left out."""
    spec = rows.spec(row, {}, 0)
    if row == LAST_LAYER and not last_layer(rows.clients.judging(spec).model).others:
        return "its model has one layer, with which it is almost uniform weights"
    options = spec.algorithm
    if not isinstance(options, LambdaOptions) or options.lambda_.baselines is None:
        return {}
    path = folder / row
    make_folder(path)
    # Once they are there, a session adds nothing to the time that they took.
    are_made = (path / BASELINES / FILE_NAME).exists()
    try:
        with folder_lock(path, wait=True):
            timing = contextlib.nullcontext() if are_made else timed(path / _SECONDS)
            with timing:
                (made,) = with_baselines(
                    [spec],
                    path,
                    runtime,
                    stop,
                    rows.clients.stopping,
                    show_progress=rows.given.show_progress,
                )
    except UserError as e:
        # Such as that of a task whose trivial predictors nobody knows.
        if str(e).startswith("--lambda_baselines"):
            return str(e)
        raise
    numbers = made.settings()["lambda_baselines"]
    if not any(numbers):
        return "its baselines are all 0, with which it is AgnosticFedAvg"
    return {"lambda_baselines": numbers}


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of a folder.

    Attributes:
        rows: What is tried.
        fixed: What each row has at all its settings, by flag.
        objective: What is to be good.
        folder: Where it is.
        runtime: Executes the rounds; entered by the caller.
        stop: Says when to stop.
        show_progress: Whether to show it.
        may_lose: How much of the average may be lost; see `choice.chosen`.
    """

    rows: Rows
    fixed: Mapping[str, Mapping[str, Any]]
    objective: Objective
    folder: Path
    runtime: Runtime
    stop: StopRequest
    show_progress: bool
    may_lose: Optional[float] = None

    @property
    def _runs(self) -> Runs:
        judging = self.rows.clients.judging
        return Runs(self.folder / _SEARCH, self.runtime, judging, self.stop)

    def run(self, budget: Budget, all_anew: bool = False) -> Found:
        """Makes what is missing of the search, and returns what it found.

        Args:
            all_anew: Whether every row is trained anew at the end, and not only FedAvg and the
                choice: --hours has these runs in it.
        """
        tries = {
            row: [
                {**of_row, **changes}
                for changes in settings_of(row, self.rows.spec(row, of_row, 0), len(FACTORS))
            ]
            for row, of_row in self.fixed.items()
        }
        self._make(tries, list(tries), 0, [0], "the first settings")
        schedule = self._schedule(budget, list(tries), all_anew)
        given_up: dict[str, str] = {}
        for k in range(1, schedule.tries):
            found = self._beside_fed_avg(*self._best(tries, k))
            given_up |= dict.fromkeys(hopeless(found, self.objective.unit), WORSE)
            live = [row for row in tries if row not in given_up]
            self._make(tries, live, k, [0], f"setting {k + 1} of {schedule.tries}")
        best, tried = self._best(tries, schedule.tries)
        found = self._beside_fed_avg(best, tried)
        given_up |= dict.fromkeys(worse(found), WORSE)
        others = {row: of for row, of in found.items() if row not in given_up}
        live = [BASELINE, *promising(others, FINALISTS, self.may_lose)]
        for row in live:
            k, trials = best[row], range(1, schedule.trials)
            self._make(tries, [row], k, trials, f"more trials of {row}")
        of_best = {}
        for row in live:
            name, trials = _folder(row, best[row]), range(schedule.trials)
            ends = [self._runs.ended(name, t) for t in trials if not self._runs.has(name, t)]
            if not ends:
                of_best[name] = [self.rows.spec(row, tries[row][best[row]], t) for t in trials]
            elif row == BASELINE:
                raise UserError(_nothing(ends[0]))
            else:
                given_up[row] = str(ends[0])
        for row, why in given_up.items():
            print(f"note: {row} is given up: {why}")
        confirmed = _by_row(self._runs.comparison(of_best), self.rows.arms)
        return Found(
            confirmed,
            judged(confirmed, self.objective, BASELINE),
            tried,
            {row: tries[row][k] for row, k in best.items()},
            given_up,
            schedule,
        )

    def _make(
        self,
        tries: Mapping[str, Sequence[Mapping[str, Any]]],
        rows: Sequence[str],
        setting: int,
        trials: Iterable[int],
        what: str,
    ) -> None:
        """Makes trials of some rows at one setting."""
        runs = []
        for row in rows:
            for trial in trials:
                first, spec = self.rows.stages(row, tries[row][setting], trial)
                runs.append(Run(_folder(row, setting), trial, spec, first))
        with LongWork(what, len(runs), "runs", visible=self.show_progress) as work:
            self._runs.make(runs, work)

    def _schedule(self, budget: Budget, rows: Sequence[str], all_anew: bool) -> Schedule:
        """Returns how much is tried, after the first setting of each row."""
        if budget.hours is None:
            return Schedule(budget.tries or TRIES, budget.trials)
        one = {row: self._runs.seconds(_folder(row, 0)) for row in rows}
        # References also of rows that were then left out.
        references = map(seconds_of, self.folder.glob(f"*/{_SECONDS}"))
        used = sum(one.values()) + sum(references)
        most = Schedule(budget.tries or len(FACTORS), budget.trials)
        anew = max(1, len(rows) - 1) if all_anew else 1
        return schedule_within(budget.hours * _SECONDS_PER_HOUR, used, one, most, anew)

    def _best(
        self, tries: Mapping[str, Sequence[Mapping[str, Any]]], number: int
    ) -> tuple[dict[str, int], Comparison]:
        """Returns the best setting of each row, of so many, and the first trial of all of them."""
        specs = {
            (row, k): self.rows.spec(row, changes, 0)
            for row, of_row in tries.items()
            for k, changes in enumerate(of_row[:number])
            if self._runs.has(_folder(row, k))
        }
        if not any(row == BASELINE for row, _ in specs):
            raise UserError(_nothing(self._runs.ended(_folder(BASELINE, 0))))
        tried = self._runs.comparison({_folder(*of): [spec] for of, spec in specs.items()})
        sign = 1.0 if self.objective.higher_is_better else -1.0
        values = {
            of: sign * float(attained(tried, _folder(*of), self.objective).values[0])
            for of in specs
        }
        finite = {of: value for of, value in values.items() if math.isfinite(value)}
        if not any(row == BASELINE for row, _ in finite):
            raise UserError(
                f"--objective={self.objective.name}: expected a number of FedAvg on the "
                f"{tried.split} clients that judge, found none"
            )
        return {
            row: max((k for r, k in finite if r == row), key=lambda k: finite[row, k])
            for row in dict.fromkeys(row for row, _ in finite)
        }, tried

    def _beside_fed_avg(self, best: Mapping[str, int], tried: Comparison) -> dict[str, Judged]:
        """Returns each other row beside FedAvg by one trial, each at its best setting."""
        found = judged(tried, self.objective, _folder(BASELINE, best[BASELINE]))
        return {row: found[_folder(row, k)] for row, k in best.items() if row != BASELINE}

    def seconds(self, row: str) -> float:
        """Returns how long the runs of a row took, with its references."""
        folders = (self.folder / _SEARCH).glob(f"{row}-*")
        files = [file for folder in folders for file in folder.glob("seconds_*.json")]
        return sum(map(seconds_of, [*files, self.folder / row / _SECONDS]))

    def num_tried(self, row: str) -> int:
        """Returns at how many settings a row has trained."""
        return len(list((self.folder / _SEARCH).glob(f"{row}-*")))

    def train_anew(self, rows: Iterable[str], found: Found) -> Comparison:
        """Trains rows on all training clients at their best settings; looks at the test clients."""
        stages = {
            row: Stages(
                *zip(
                    *(
                        self.rows.stages(row, found.changes[row], k, is_final=True)
                        for k in range(found.schedule.trials)
                    )
                )
            )
            for row in rows
        }
        specs = {row: list(of.second) for row, of in stages.items()}
        of_two = {row: of for row, of in stages.items() if row == LAST_LAYER}
        labels = {row: self.rows.arms[row].label for row in stages}
        path = self.folder / FINAL
        identity = {"study": "recommend"}
        trainer = RunTrainer(self.runtime, self.stop)
        with RunSet(path, identity, trainer, True, self.stop) as runs:
            comparison = train_rows(
                runs, trainer.load_task, specs, of_two, labels, "final runs", self.show_progress
            )
            write_json(path / COMPARE, comparison.to_json())
        return comparison


def _folder(row: str, setting: int) -> str:
    return f"{row}-{setting + 1}"


def _by_row(comparison: Comparison, arms: Mapping[str, Arm]) -> Comparison:
    """Returns a comparison whose rows, each at one setting, have the names of the rows."""
    trials = {name.rpartition("-")[0]: of for name, of in comparison.trials.items()}
    labels = {row: arm.label for row, arm in arms.items()}
    return dataclasses.replace(comparison, trials=trials, labels=labels)


def _nothing(why: Optional[str]) -> str:
    return f"expected FedAvg to have a result, with which others are compared, found none: {why}"
