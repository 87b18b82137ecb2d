"""What `recommend` tries: rows that help somewhere, each at as many settings as FedAvg.

The first setting of a row is what was given, or the task's own. The others multiply its learning
rates by fixed factors, the same of each row. Runs are kept in folders ROW-SETTING/trial_SEED, which
several processes may share: each run belongs to whoever holds the lock of its row's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder, read_json, write_json
from tff_agnostic.metrics.evaluation_report import statistic_names
from tff_agnostic.models.keras import last_layer
from tff_agnostic.models.model import measures_of
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.program.studies.comparison import (
    Comparison,
    collect,
    first_stage_folder,
    trial_folder,
)
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER
from tff_agnostic.program.studies.stages import second_stage_settings
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.divergence import Diverged

_CLIENT, _DOMAIN = "client_learning_rate", "lambda_learning_rate"
# Rows by the words of --portfolio, with the learning rates that are searched.
PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    BASELINE: (_CLIENT,),
    "uniform": (_CLIENT,),
    "frozen": (_CLIENT, _DOMAIN),
    "excess_own": (_CLIENT, _DOMAIN),
    "excess_trivial": (_CLIENT, _DOMAIN),
    LAST_LAYER: (_CLIENT,),
    "domain_input": (_CLIENT,),
}
# Whose model needs the domain wherever it is used: only where it is named.
IF_NAMED = ("domain_input",)
# By what each setting of a row with one learning rate multiplies it, and of one with two these.
_OF_ONE = (1.0, 2.0, 0.5, 4.0, 0.25, 1.4, 0.7, 8.0)
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
# Rows that get more trials beside FedAvg.
FINALISTS = 2


def settings_of(row: str, first: RunSpec, number: int) -> list[dict[str, float]]:
    """Returns what each setting of a row changes, by flag.

    Args:
        row: A member of `PORTFOLIO`.
        first: The run at its first setting.
        number: How many settings there are.
    """
    values, flags = first.settings(), PORTFOLIO[row]
    # Neighbours come first.
    tried = FACTORS if len(flags) > 1 else [(factor,) for factor in _OF_ONE]
    return [
        {flag: values[flag] * factor for flag, factor in zip(flags, factors) if factor != 1.0}
        for factors in tried[:number]
    ]


class Schedule(NamedTuple):
    """How much is tried.

    Attributes:
        tries: Settings of each row.
        trials: Of the best setting of each row, and of what is trained at the end.
    """

    tries: int
    trials: int


def schedule_within(
    seconds: float, used: float, by_row: Mapping[str, float], most: Schedule, anew: int = 1
) -> Schedule:
    """Returns as much as fits into a time.

    More trials come first, as they decide what can be shown; then more settings.

    Args:
        seconds: All there are.
        used: What the first setting of each row took, with references.
        by_row: How long one run of each row takes, one of each was made.
        most: What is wanted at most.
        anew: How many rows are trained anew at the end, beside FedAvg; the longest are assumed.

    Raises:
        UserError: If not even one trial of all fits.
    """
    every = sum(by_row.values())
    others = sorted(of for row, of in by_row.items() if row != BASELINE)
    of_best = by_row[BASELINE] + sum(others[-FINALISTS:])
    # At the end FedAvg is trained beside the choice, which may be FedAvg itself.
    of_end = by_row[BASELINE] + sum(sorted(by_row.values())[-anew:])
    for trials in range(most.trials, 0, -1):
        at_end = trials * of_end
        rest = seconds - used - (trials - 1) * of_best - at_end
        if rest >= 0:
            more = int(min(rest / every, most.tries)) if every > 0 else most.tries
            return Schedule(min(most.tries, 1 + more), trials)
    least = used + of_end
    raise UserError(
        f"--hours: expected {math.ceil(least / 36) / 100:g} or more, for one run of each of "
        f"{', '.join(by_row)} and {1 + anew} at the end, found {seconds / 3600:g}"
    )


@contextlib.contextmanager
def timed(file: Path) -> Iterator[None]:
    """Adds the seconds for which it is entered to those of a file, which nobody else writes."""
    started = time.monotonic()
    try:
        yield
    finally:
        write_json(file, {"seconds": seconds_of(file) + time.monotonic() - started})


def seconds_of(file: Path) -> float:
    """Returns the seconds of a file of `timed`, over all processes and sessions; 0 without it."""
    return float(read_json(file)["seconds"]) if file.exists() else 0.0


class Run(NamedTuple):
    """A run to be made.

    Attributes:
        row: The folder of its row at one setting.
        trial: Its number, from 0.
        spec: What to run; of two stages the second one, see `studies.stages`.
        first: The first stage; None of a run that has one.
    """

    row: str
    trial: int
    spec: RunSpec
    first: Optional[RunSpec] = None


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs of a folder, which several processes may make together.

    Attributes:
        folder: Where they are.
        runtime: Executes the rounds; entered by the caller.
        load_task: Returns the task of a run.
        stop: Says when to stop.
    """

    folder: Path
    runtime: Runtime
    load_task: Callable[[RunSpec], Task]
    stop: StopRequest

    def make(self, runs: Sequence[Run], work: LongWork) -> None:
        """Makes the runs that are not there yet, and waits for those that others make.

        Raises:
            Interrupted: If a signal asked to stop; what was done is saved.
        """
        left = list(runs)
        while left:
            held = 0
            for run in left:
                with self._lock(run) as is_ours:
                    held += is_ours
                    if is_ours and not self._is_done(run):
                        work.say(f"{run.row}, trial {run.trial + 1}")
                        self._make_one(run)
                work.update(self._is_done(run))
            left = [run for run in left if not self._is_done(run)]
            if left and not held:
                work.say(f"another process makes {left[0].row}")
                with self._lock(left[0], wait=True):
                    pass

    def _lock(self, run: Run, wait: bool = False) -> Any:
        make_folder(self.folder / run.row)
        return folder_lock(self.folder / run.row, wait=wait)

    def _is_done(self, run: Run) -> bool:
        return self.has(run.row, run.trial) or self._end(run.row, run.trial).exists()

    def _make_one(self, run: Run) -> None:
        with timed(self._time(run.row, run.trial)):
            try:
                spec = run.spec if run.first is None else self._after_first(run.first, run)
                self._train(spec, trial_folder(self.folder, run.row, run.trial))
            except Diverged as e:
                write_json(self._end(run.row, run.trial), {"why": f"diverged: {e}"})
        self.stop.check(f"{run.row}, trial {run.trial + 1}")

    def _after_first(self, first: RunSpec, run: Run) -> RunSpec:
        folder = first_stage_folder(self.folder, run.row, run.trial)
        model = self._train(first, folder).parts.task.model
        return second_stage_settings(run.spec, folder.path, last_layer(model))

    def _train(self, spec: RunSpec, folder: RunFolder) -> TrainingRun:
        training = TrainingRun(spec, folder, self.runtime, True, self.load_task, draws=False)
        if not training.is_complete():
            training.run(self.stop, show_progress=False)
        return training

    def _end(self, row: str, trial: int) -> Path:
        return self.folder / row / f"ended_{trial:02d}.json"

    def _time(self, row: str, trial: int) -> Path:
        return self.folder / row / f"seconds_{trial:02d}.json"

    def ended(self, row: str, trial: int = 0) -> Optional[str]:
        """Returns why a trial has no result; None of one that has, or was not made."""
        path = self._end(row, trial)
        return read_json(path)["why"] if path.exists() else None

    def has(self, row: str, trial: int = 0) -> bool:
        """Returns whether a trial has a result."""
        return trial_folder(self.folder, row, trial).result.exists()

    def seconds(self, row: str, trial: int = 0) -> float:
        """Returns how long a trial took."""
        return seconds_of(self._time(row, trial))

    def comparison(self, rows: Mapping[str, Sequence[RunSpec]]) -> Comparison:
        """Returns the results of rows that were made.

        Args:
            rows: The trials of each row.
        """
        first = next(iter(rows.values()))[0]
        task = self.load_task(first)
        fewest, measures = first.config.worst_min_examples, measures_of(task.model)
        trials = {
            row: collect(
                [trial_folder(self.folder, row, k) for k in range(len(specs))],
                task.domain_names,
                measures,
                [fewest] * len(specs),
                statistic_names(first.config.client_percentiles),
            )
            for row, specs in rows.items()
        }
        return Comparison(
            task.domain_names, measures, trials, split=task.test_split, worst_min_examples=fewest
        )
