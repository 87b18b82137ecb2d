"""A search: its trials run, are watched, and report to Optuna."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from optuna.trial import FrozenTrial, Trial, TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.heldout import check_heldout
from tff_agnostic.program.runs.spec import RunSettings
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
    seed_folder,
)
from tff_agnostic.program.studies.runset import Job, Pruned, RunSet
from tff_agnostic.program.studies.search_space import Distribution, Objective
from tff_agnostic.program.studies.searched_method import SearchedArm, check_run
from tff_agnostic.program.studies.stages import stage_job
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.loop import FinishedRound, Observer


@dataclasses.dataclass(frozen=True)
class TrialEnd:
    """The end of a trial.

    Attributes:
        state: COMPLETE, or PRUNED of a trial that ended early for any reason.
        value: Objective of a complete trial.
        text: Reason of an early end; empty for a complete trial.
    """

    state: TrialState
    value: Optional[float] = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class TrialRunner:
    """Runs trials.

    Attributes:
        objective: The objective.
        seeds: Seeds of the runs of each trial, whose mean counts.
        load_task: Returns the task of a run.
        runs: The runs of the search.
    """

    objective: Objective
    seeds: tuple[int, ...]
    load_task: Callable[[RunSettings], Task]
    runs: RunSet[RunSettings]

    def __call__(self, arm: SearchedArm, claim: Claim, work: LongWork) -> TrialEnd:
        """Makes the missing runs of a trial.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        same = _same_trial(claim)
        if same is not None:
            return _taken_over(claim, same)
        try:
            specs = [arm.spec(claim.trial.params, seed) for seed in self.seeds]
            task = self.load_task(specs[0])
            check_run(specs[0], task)
        except UserError as e:
            # Each value is allowed by itself: these values are incompatible. If the given settings
            # are refused by now, as for a missing file, the search ends.
            arm.check(self.seeds[0], self.load_task(arm.spec({}, self.seeds[0])))
            return TrialEnd(TrialState.PRUNED, text=f"refused: {e}")
        check_heldout(task, specs[0].task)
        values: list[float] = []
        for spec in specs:
            job = self._job(arm, claim, spec, values)
            (outcome,) = self.runs.make([job], work)
            if outcome.reason is not None:
                return TrialEnd(TrialState.PRUNED, text=outcome.reason)
            result = read_json(RunFolder(outcome.path).result)
            value = self.objective.of_result(result)
            if value is None:
                check_defined(self.objective, result, task.test_split)
                return TrialEnd(TrialState.PRUNED, text="diverged: the objective is not finite")
            values.append(value)
        return TrialEnd(TrialState.COMPLETE, sum(values) / len(values))

    def _job(
        self, arm: SearchedArm, claim: Claim, spec: RunSettings, values: Sequence[float]
    ) -> Job[RunSettings]:
        first, second = arm.stages(spec)
        seed = spec.config.seed
        name = f"{claim.run_name}/seed_{seed}"
        watch = Watch(claim, self.objective, second.config.rounds, len(self.seeds), values)
        job = Job(name, second)
        if first is not None:
            # The trials of a seed share the first stage.
            first_name = f"{FIRST_STAGES}/{arm.name}/seed_{seed}"
            job = stage_job(name, first_name, first, second, self.load_task)
        return dataclasses.replace(job, observers=(watch,))


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """A search as its folder has it.

    Attributes:
        folder: Folder of the search.
        task: Name of the task.
        labels: Labels of the methods, by their names.
        objective: The objective.
        seeds: Seeds of the runs of each trial.
        split: Split of the evaluated clients.
        distributions: Search space of each setting, by method and flag.
    """

    folder: Path
    task: str
    labels: Mapping[str, str]
    objective: Objective
    seeds: Sequence[int]
    split: str
    distributions: Mapping[str, Mapping[str, Distribution]]

    def runs_of(self, name: str, trial: FrozenTrial) -> list[Path]:
        """Returns the folders of a trial's runs; trials with equal settings share them."""
        number = int(trial.user_attrs.get(SAME_AS, trial.number))
        return [seed_folder(self.folder, name, number, seed) for seed in self.seeds]


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for settings of several methods.

    Attributes:
        arms: The methods, by their names.
        studies: The studies of the methods.
        runner: Runs a trial.
        budget: The budget.
        folder: Folder of the search.
    """

    arms: Mapping[str, SearchedArm]
    studies: Studies
    runner: TrialRunner
    budget: Budget
    folder: Path

    def record(self, split: str) -> SearchRecord:
        """Returns the record of the search.

        Args:
            split: Split of the evaluated clients.
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
        """Runs trials until the budget is used, or taken by other processes.

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
                    self._run_one(claim, work)
                work.note(self._line(claim))
                work.reach(min(total, self._done()))
                if self.studies.with_budget(spaces, self.budget):
                    stop.check(f"trial {claim.trial.number} of {claim.name}")
        if self.budget.seconds is not None:
            self._say_where_nothing_is_new()

    def begin(self, seed: int) -> None:
        """Adds missing studies, with the given settings as the first trial of each.

        Args:
            seed: Seed of the first run of each trial.
        """
        for name, arm in self.arms.items():
            values, outside = arm.start(seed)
            if outside:
                print(
                    f"note: {name}: no trial has exactly the given settings: {', '.join(outside)}"
                )
            self.studies.add(name, values)

    def num_elsewhere(self) -> int:
        """Returns the number of running trials, which other processes run or ran."""
        return sum(len(self.studies.trials(name, (TrialState.RUNNING,))) for name in self.arms)

    def _whole(self) -> tuple[float, str]:
        """Returns the budget of all methods, and its unit."""
        if self.budget.trials is not None:
            return self.budget.trials * len(self.arms) * len(self.runner.seeds), "runs"
        return self.budget.seconds or 0.0, "s of training"

    def _done(self) -> float:
        """Returns the used part of the budget, over all processes."""
        if self.budget.trials is None:
            return sum(map(self.studies.seconds, self.arms))
        finished = [self.studies.trials(name, FINISHED) for name in self.arms]
        return sum(map(len, finished)) * len(self.runner.seeds)

    def _run_one(self, claim: Claim, work: LongWork) -> None:
        try:
            end = self.runner(self.arms[claim.name], claim, work)
        except UserError as e:
            self.studies.tell(claim, TrialState.FAIL)
            values = shown_values(claim.trial.params)
            raise UserError(f"{claim.name}, trial {claim.trial.number} ({values}): {e}") from e
        seconds = self.runner.runs.seconds(claim.run_name)
        if seconds:
            claim.trial.set_user_attr(SECONDS, seconds)
        if end.text:
            claim.trial.set_user_attr(ENDED, end.text)
        self.studies.tell(claim, end.state, end.value)

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


def best(trials: Sequence[FrozenTrial], objective: Objective) -> Optional[FrozenTrial]:
    """Returns the best complete trial, the first of equal ones; None if there is none."""
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    sign = -1 if objective.higher_is_better else 1
    if not complete:
        return None
    return min(complete, key=lambda t: (sign * _known(t.value), t.number))


def described(trial: FrozenTrial, objective: Objective) -> str:
    """Returns the objective of a trial, or the reason of its early end."""
    same = f", as trial {trial.user_attrs[SAME_AS]}" if SAME_AS in trial.user_attrs else ""
    if trial.state is TrialState.COMPLETE:
        return f"{_value(trial.value, objective)}{same}"
    if trial.state is TrialState.PRUNED:
        ended = trial.user_attrs.get(ENDED, "")
        return f"ended early{same}: {ended}" if ":" not in ended else f"{ended}{same}"
    return trial.state.name.lower()


def shown_values(params: Mapping[str, object]) -> str:
    """Returns drawn values as a string: "client_learning_rate=0.1234, window=5"."""
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _value(value: Optional[float], objective: Objective) -> str:
    return f"{objective.name} {objective.text(_known(value))}"


def _known(value: Optional[float]) -> float:
    assert value is not None
    return value


class Watch(Observer):
    """Reports the evaluations of a trial to Optuna, and ends trials that are not promising.

    In the run of the k-th seed, counted from 0, a reported value is the mean of that evaluation and
    of the results of earlier seeds. Its step is k times the rounds of a run, plus the round.

    Args:
        claim: The trial.
        objective: The objective.
        rounds: Rounds of a run.
        num_runs: Number of runs of the trial.
        values: Results of the earlier seeds.
    """

    def __init__(
        self,
        claim: Claim,
        objective: Objective,
        rounds: int,
        num_runs: int,
        values: Sequence[float],
    ) -> None:
        self._trial: Trial = claim.trial
        self._objective = objective
        self._before = rounds * len(values)
        self._rounds = rounds * num_runs
        self._reported = claim.reported()
        self._values = [*values]

    def after_round(self, finished: FinishedRound) -> None:
        """Reports the evaluation of a round, if it has one."""
        if finished.evaluation is not None:
            self.report(finished.num, next(iter(finished.evaluation.values())))

    def report(self, round_num: int, report: EvaluationReport) -> None:
        """Reports an evaluation.

        Raises:
            Pruned: If the trial is to end.
        """
        value, step = self._objective(report), self._before + round_num
        if not math.isfinite(value):
            # An evaluation of some clients may have no examples of a domain.
            return
        if step not in self._reported:
            self._trial.report((sum(self._values) + value) / (len(self._values) + 1), step)
        if step != self._rounds and self._trial.should_prune():
            raise Pruned(f"after round {step} of {self._rounds}")


def check_defined(objective: Objective, result: Mapping[str, Any], split: str) -> None:
    """Checks that a run without a finite objective has diverged, and could have had one.

    Args:
        result: Content of result.json.
        split: Split of the evaluated clients.
    """
    counts = {name: int(of["num_examples"]) for name, of in result["domains"].items()}
    least = int(result["worst_min_examples"])
    for term in objective.terms:
        if term.of_result(result) is not None:
            continue
        reason = None
        if term.domain is not None and not counts[term.domain]:
            reason = f"the {split} clients have no examples of {term.domain}"
        elif term.statistic == "worst" and max(counts.values()) < least:
            few = ", ".join(counts)
            reason = (
                f"of the {split} clients' domains {few} have fewer than "
                f"--worst_min_examples={least} examples"
            )
        elif term.measure.name not in result["overall"]["over_clients"]:
            reason = f"the {split} clients have no such measure"
        if reason is not None:
            raise UserError(
                f"--objective={objective.name}: expected a number that the runs report, found "
                f"none: {reason}"
            )


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


def _taken_over(claim: Claim, same: FrozenTrial) -> TrialEnd:
    reported = claim.reported()
    for step, value in same.intermediate_values.items():
        if step not in reported:
            claim.trial.report(value, step)
    claim.trial.set_user_attr(SAME_AS, same.number)
    value = same.value if same.state is TrialState.COMPLETE else None
    return TrialEnd(same.state, value, same.user_attrs.get(ENDED, ""))
