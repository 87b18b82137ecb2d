"""A search: trials that are run, watched, and told to Optuna."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from optuna.trial import FrozenTrial, Trial, TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.models.keras import last_layer
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.heldout import check_heldout
from tff_agnostic.program.runs.observers import AfterRound, RoundCount
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.program.studies.comparison import FIRST_STAGES
from tff_agnostic.program.studies.optuna_studies import (
    COUNTED,
    ENDED,
    FINISHED,
    NOTHING_NEW,
    SAME_AS,
    SECONDS,
    Budget,
    Claim,
    Studies,
    finds_nothing_new,
    seconds_of,
    trial_folder,
)
from tff_agnostic.program.studies.search_space import Distribution, Objective
from tff_agnostic.program.studies.searched_method import SearchedArm, check_run
from tff_agnostic.program.studies.stages import second_stage_settings
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.divergence import Diverged
from tff_agnostic.training.loop import FinishedRound, Observer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        state: COMPLETE, or PRUNED of one that ended early, whatever the reason.
        value: The objective of a complete one.
        text: The reason of an early end; nothing of a complete trial.
    """

    state: TrialState
    value: Optional[float] = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class TrialRunner:
    """Runs trials.

    Attributes:
        objective: What is to be good.
        seeds: Of the runs of each trial, of which the mean counts.
        runtime: Executes the rounds; entered by the caller.
        load_task: Returns the task of a run.
        folder: Of the search, which has the first stages of trials with two.
    """

    objective: Objective
    seeds: tuple[int, ...]
    runtime: Runtime
    load_task: Callable[[RunSpec], Task]
    folder: Path

    def __call__(
        self, arm: SearchedArm, claim: Claim, stop: StopRequest, after_round: AfterRound
    ) -> Outcome:
        """Runs a trial to its end, or what is left of it.

        Args:
            after_round: Is told the rounds that are done, those of all seeds, and how many there
                are.

        Raises:
            Interrupted: If a signal asked to stop; the run was saved.
        """
        same = _same_trial(claim)
        if same is not None:
            return _taken_over(claim, same)
        try:
            specs = [arm.spec(claim.trial.params, seed) for seed in self.seeds]
            check_run(specs[0], self.load_task(specs[0]))
        except UserError as e:
            # Each value is allowed by itself, as was checked before: these do not go together. If
            # not even that is so any more, as where a file is gone, the search ends.
            arm.check(self.seeds[0], self.load_task(arm.spec({}, self.seeds[0])))
            return Outcome(TrialState.PRUNED, text=f"refused: {e}")
        stages = list(map(arm.stages, specs))
        watch = Watch(claim, self.objective, stages[0][1].config.rounds, len(specs))
        try:
            for k, (first, spec) in enumerate(stages):
                if first is not None:
                    spec = self._after_first(arm, first, spec, stop)
                folder = RunFolder(claim.folder / f"seed_{spec.config.seed}")
                of_all = _of_all(after_round, k, len(specs))
                run = TrainingRun(spec, folder, self.runtime, True, self.load_task)
                task = run.parts.task
                check_heldout(task, spec.task)
                report = run.run(stop, False, [watch, RoundCount(of_all)])
                watch.end_run(report, task.test_split)
        except Pruned as e:
            return Outcome(TrialState.PRUNED, text=str(e))
        except Diverged as e:
            return Outcome(TrialState.PRUNED, text=f"diverged: {e}")
        finally:
            watch.note_time()
        return Outcome(TrialState.COMPLETE, watch.mean())

    def _after_first(
        self, arm: SearchedArm, first: RunSpec, second: RunSpec, stop: StopRequest
    ) -> RunSpec:
        """Returns a second stage; the trials of a seed share the first one, in all processes."""
        path = self.folder / FIRST_STAGES / arm.name / f"seed_{first.config.seed}"
        make_folder(path)
        with folder_lock(path, wait=True):
            folder = RunFolder(path / "run")
            run = TrainingRun(first, folder, self.runtime, True, self.load_task)
            if not run.is_complete():
                run.run(stop, show_progress=False)
            return second_stage_settings(second, folder.path, last_layer(run.parts.task.model))


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """What a search was, as its folder has it.

    Attributes:
        folder: Where its trials' runs are.
        task: Its task.
        labels: What tables call its algorithms, by their names.
        objective: What was to be good.
        seeds: Of the runs of each trial.
        split: Whose clients were evaluated.
        distributions: Where each setting was searched, by algorithm and flag.
    """

    folder: Path
    task: str
    labels: Mapping[str, str]
    objective: Objective
    seeds: Sequence[int]
    split: str
    distributions: Mapping[str, Mapping[str, Distribution]]

    def runs_of(self, name: str, trial: FrozenTrial) -> list[Path]:
        """Returns the folders of a trial's runs; one with equal settings has those of another."""
        number = int(trial.user_attrs.get(SAME_AS, trial.number))
        return [trial_folder(self.folder, name, number) / f"seed_{seed}" for seed in self.seeds]


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for settings of several algorithms.

    Attributes:
        arms: The algorithms, by their names.
        studies: Their trials.
        runner: Runs one.
        budget: How much each algorithm may have.
        folder: Where the trials' runs are.
    """

    arms: Mapping[str, SearchedArm]
    studies: Studies
    runner: TrialRunner
    budget: Budget
    folder: Path

    def record(self, split: str) -> SearchRecord:
        """Returns what its folder is read back as.

        Args:
            split: Whose clients are evaluated.
        """
        arms = self.arms
        return SearchRecord(
            self.folder,
            next(iter(arms.values())).task,
            {name: arm.label for name, arm in arms.items()},
            self.runner.objective,
            self.runner.seeds,
            split,
            {n: {f: of.distribution for f, of in a.dimensions.items()} for n, a in arms.items()},
        )

    def run(self, stop: StopRequest, show_progress: bool) -> None:
        """Runs trials until the budget is used, or other processes run what is left of it.

        After `begin`.

        Raises:
            Interrupted: If a signal asked to stop; what was done is saved.
        """
        spaces = {name: tuple(arm.dimensions.values()) for name, arm in self.arms.items()}
        total, unit = self._whole()
        with LongWork("tune", total, unit, self._done(), show_progress) as work:
            while (claim := self.studies.taken(spaces, self.budget)) is not None:
                with claim.held:
                    work.say(f"{claim.name}, trial {claim.trial.number}")
                    self._run_one(claim, stop, work)
                work.note(self._line(claim))
                work.reach(min(total, self._done()))
                if self.studies.with_budget(spaces, self.budget):
                    stop.check(f"trial {claim.trial.number} of {claim.name}")
        if self.budget.seconds is not None:
            self._say_where_nothing_is_new()

    def begin(self, seed: int) -> None:
        """Adds what is not there yet: the studies, with what is given as the first trial of each.

        Args:
            seed: Of the first run of each trial.
        """
        for name, arm in self.arms.items():
            values, outside = arm.start(seed)
            if outside:
                print(
                    f"note: {name}: no trial has exactly the given settings: {', '.join(outside)}"
                )
            self.studies.add(name, values)

    def num_elsewhere(self) -> int:
        """Returns how many trials have not ended: other processes run them, or did."""
        return sum(len(self.studies.trials(name, (TrialState.RUNNING,))) for name in self.arms)

    def _whole(self) -> tuple[float, str]:
        """Returns the budget of all algorithms, and in what it is."""
        if self.budget.trials is not None:
            return self.budget.trials * len(self.arms), "trials"
        return self.budget.seconds or 0.0, "s of training"

    def _done(self) -> float:
        """Returns what is used of it; by other processes, too."""
        finished = [self.studies.trials(name, FINISHED) for name in self.arms]
        if self.budget.trials is not None:
            return sum(map(len, finished))
        return sum(map(seconds_of, finished))

    def _run_one(self, claim: Claim, stop: StopRequest, work: LongWork) -> None:
        after_round: AfterRound = work.within
        if self.budget.trials is None:
            # How long a trial takes is not known before it ends.
            after_round = _passing(work, self._done(), self._whole()[0])
        try:
            with self.studies.errors():
                outcome = self.runner(self.arms[claim.name], claim, stop, after_round)
        except UserError as e:
            self.studies.tell(claim, TrialState.FAIL)
            raise UserError(
                f"{claim.name}, trial {claim.trial.number} ({shown_values(claim.trial.params)}): "
                f"{e}"
            ) from e
        with self.studies.errors():
            if outcome.text:
                claim.trial.set_user_attr(ENDED, outcome.text)
        self.studies.tell(claim, outcome.state, outcome.value)

    def _line(self, claim: Claim) -> str:
        finished = self.studies.trials(claim.name, FINISHED)
        trial = next(t for t in finished if t.number == claim.trial.number)
        objective = self.runner.objective
        found = best(finished, objective)
        known = f"; best so far: {_value(found.value, objective)}" if found is not None else ""
        return (
            f"{claim.name}, trial {trial.number} ({shown_values(trial.params)}): "
            f"{described(trial, objective)}{known}"
        )

    def _say_where_nothing_is_new(self) -> None:
        for name in self.arms:
            if finds_nothing_new(self.studies.trials(name, COUNTED)):
                print(
                    f"note: {name}: the last {NOTHING_NEW} trials had values of earlier ones, or "
                    "were refused: there is nothing new to train, whatever --hours says"
                )


def _of_all(after_round: AfterRound, before: int, num_runs: int) -> AfterRound:
    """Returns what counts the rounds of several runs that are alike, so many of them before."""
    return lambda done, rounds: after_round(before * rounds + done, num_runs * rounds)


def _passing(work: LongWork, used: float, budget: float) -> AfterRound:
    """Returns what counts the seconds of a trial."""
    started = time.monotonic()
    return lambda done, rounds: work.reach(min(budget, used + time.monotonic() - started))


def best(trials: Sequence[FrozenTrial], objective: Objective) -> Optional[FrozenTrial]:
    """Returns the best complete trial, of several that are alike the first; None without any."""
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    sign = -1 if objective.higher_is_better else 1
    if not complete:
        return None
    return min(complete, key=lambda t: (sign * _known(t.value), t.number))


def described(trial: FrozenTrial, objective: Objective) -> str:
    """Returns how a trial ended: its objective, or why it has none."""
    same = f", as trial {trial.user_attrs[SAME_AS]}" if SAME_AS in trial.user_attrs else ""
    if trial.state is TrialState.COMPLETE:
        return f"{_value(trial.value, objective)}{same}"
    if trial.state is TrialState.PRUNED:
        ended = trial.user_attrs.get(ENDED, "")
        return f"ended early{same}: {ended}" if ":" not in ended else f"{ended}{same}"
    return trial.state.name.lower()


def shown_values(params: Mapping[str, object]) -> str:
    """Returns drawn values as a text: "client_learning_rate=0.1234, window=5"."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _value(value: Optional[float], objective: Objective) -> str:
    return f"{objective.name} {objective.text(_known(value))}"


def _known(value: Optional[float]) -> float:
    assert value is not None
    return value


class Pruned(Exception):
    """A trial is not worth more rounds."""


class Watch(Observer):
    """Reports the evaluations of a trial to the search, and ends trials that are not promising.

    Of the run of the k-th seed, counted from 0, the value after a round is the mean of that
    evaluation and the results of the earlier seeds; its step is k times the rounds of a run, plus
    the round. So trials are compared that have seen the same.

    Args:
        claim: The trial.
        objective: What is reported.
        rounds: Of a run.
        num_runs: Of the trial.
    """

    def __init__(self, claim: Claim, objective: Objective, rounds: int, num_runs: int) -> None:
        self._trial: Trial = claim.trial
        self._objective = objective
        self._rounds = rounds
        self._num_runs = num_runs
        self._reported = claim.reported()
        self._results: list[float] = []
        self._seconds = float(claim.trial.user_attrs.get(SECONDS, 0.0))
        self._since = time.monotonic()

    def after_round(self, finished: FinishedRound) -> None:
        """Reports the evaluation of a round, if it has one."""
        if finished.evaluation is not None:
            self.report(finished.num, next(iter(finished.evaluation.values())))

    def report(self, round_num: int, report: EvaluationReport) -> None:
        """Reports an evaluation.

        Raises:
            Pruned: If the trial is to end.
        """
        self.note_time()
        value = self._objective(report)
        step = len(self._results) * self._rounds + round_num
        if not math.isfinite(value):
            # Of some test clients: none of them may have examples of a domain, say.
            return
        if step not in self._reported:
            self._trial.report((sum(self._results) + value) / (len(self._results) + 1), step)
        is_last = step == self._num_runs * self._rounds
        if not is_last and self._trial.should_prune():
            raise Pruned(f"after round {step} of {self._num_runs * self._rounds}")

    def end_run(self, report: EvaluationReport, split: str) -> None:
        """Takes the result of a run."""
        value = self._objective(report)
        if math.isnan(value):
            raise UserError(
                f"--objective={self._objective.name}: expected a number that the runs report, "
                f"found none: {_why_undefined(self._objective, report, split)}"
            )
        if math.isinf(value):
            raise Pruned("diverged: the objective is infinite")
        self._results.append(value)

    def mean(self) -> float:
        """Returns the mean of the results."""
        return sum(self._results) / len(self._results)

    def note_time(self) -> None:
        """Adds the time that has passed to the trial's, which counts over all sessions."""
        now = time.monotonic()
        self._seconds += now - self._since
        self._since = now
        self._trial.set_user_attr(SECONDS, self._seconds)


def _why_undefined(objective: Objective, report: EvaluationReport, split: str) -> str:
    asked = [term.domain for term in objective.terms if term.domain is not None]
    absent = [name for name in asked if not report.domains[name].num_examples]
    if absent:
        return f"the {split} clients have no examples of {', '.join(absent)}"
    few = report.not_counted
    if few:
        return (
            f"of the {split} clients' domains {', '.join(few)} have fewer than "
            f"--worst_min_examples={report.worst_min_examples} examples"
        )
    return f"the {split} clients have no such measure"


def _same_trial(claim: Claim) -> Optional[FrozenTrial]:
    """Returns a finished trial with the same values: a run is a function of its settings."""
    return next(
        (
            t
            for t in claim.study.get_trials(deepcopy=False, states=FINISHED)
            if t.params == claim.trial.params and t.number != claim.trial.number
        ),
        None,
    )


def _taken_over(claim: Claim, same: FrozenTrial) -> Outcome:
    reported = claim.reported()
    for step, value in same.intermediate_values.items():
        if step not in reported:
            claim.trial.report(value, step)
    claim.trial.set_user_attr(SAME_AS, same.number)
    value = same.value if same.state is TrialState.COMPLETE else None
    return Outcome(same.state, value, same.user_attrs.get(ENDED, ""))
