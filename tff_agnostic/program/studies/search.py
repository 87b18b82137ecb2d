"""A search for settings with Optuna, whose trials are in a journal that several processes share.

The process that runs a trial has the trial's lock (see `runset.RunSet.hold`). A running trial
without a lock belongs to a dead process, and another process resumes it. A process takes one trial
at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder, read_json
from tff_agnostic.metrics.evaluation_report import EvaluationReport, domains_below
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.runset import Job, Pruned, RunSet
from tff_agnostic.program.studies.search_space import Objective, shown_values
from tff_agnostic.program.studies.searched_method import SearchedArm, check_run
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.training.loop import FinishedRound, Observer

# The journal of the trials, in the folder of the search.
JOURNAL = "trials/journal.log"
# Attributes of trials: seconds of training, and the reason of an early end.
SECONDS, ENDED = "seconds", "ended"
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# States of trials that count towards the budget; a failed trial is replaced.
COUNTED = (*FINISHED, TrialState.RUNNING)
# A search limited by --hours ends after this many trials in a row without training.
NOTHING_NEW = 20
# Number of first trials, whose settings are random, and which are not pruned.
_NUM_AT_FIRST = 5
_ASK = ".ask"


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of the number of trials per method, and of the total seconds of training.

    None means that there is no such limit.

    Methods share the seconds evenly. If the seconds are limited, a method ends after `NOTHING_NEW`
    trials in a row without new settings to train.
    """

    trials: Optional[int]
    seconds: Optional[float]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A running trial, which no other process takes until `held` is closed.

    Attributes:
        equal: The first finished trial with equal values, whose result is reused; None if the
            values are new.
    """

    name: str
    study: optuna.Study
    trial: Trial
    equal: Optional[FrozenTrial]
    held: contextlib.ExitStack

    @property
    def run_name(self) -> str:
        """First part of the names of the trial's runs."""
        return trial_name(self.name, self.trial.number)

    def reported(self) -> dict[int, float]:
        """Returns the reported values of the trial, by step, over all processes."""
        trials = self.study.get_trials(deepcopy=False)
        return dict(trials[self.trial.number].intermediate_values)


class Search:
    """A search for settings of several methods.

    Args:
        seeds: Seeds of the runs of each trial; the first one is also the seed of the search.
        warm_up: First step after which a trial may end early.
    """

    def __init__(
        self,
        arms: Mapping[str, SearchedArm],
        objective: Objective,
        seeds: Sequence[int],
        budget: Budget,
        runs: RunSet[RunSettings],
        trainer: RunTrainer,
        warm_up: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.arms, self.objective, self.seeds, self.budget = arms, objective, seeds, budget
        self.runs, self.trainer = runs, trainer
        self._pruner = MedianPruner(n_startup_trials=_NUM_AT_FIRST, n_warmup_steps=warm_up)
        path = runs.folder / JOURNAL
        make_folder(path.parent)
        try:
            self._storage = JournalStorage(JournalFileBackend(str(path), _JournalLock(path)))
        except (KeyError, TypeError, ValueError) as e:
            raise UserError(
                f"{path}: expected the journal of this search, cannot use it: {e}"
            ) from e

    def trials(self, name: str, states: Sequence[TrialState] = FINISHED) -> list[FrozenTrial]:
        """Returns the trials of a method in some states, by their numbers."""
        return self._study(name).get_trials(deepcopy=False, states=tuple(states))

    def _study(self, name: str, **options: Any) -> optuna.Study:
        return optuna.load_study(study_name=name, storage=self._storage, **options)

    def begin(self) -> None:
        """Creates missing studies; enqueues the given settings as a trial if no trial has them."""
        direction = "maximize" if self.objective.higher_is_better else "minimize"
        for name, arm in self.arms.items():
            values, outside = arm.start(self.seeds[0])
            if outside:
                listed = ", ".join(outside)
                print(f"note: {name}: no trial has exactly the given settings: {listed}")
            with self.runs.hold(_ASK, wait=True):
                study = optuna.create_study(
                    storage=self._storage, study_name=name, direction=direction, load_if_exists=True
                )
                trials = self.trials(name, (*COUNTED, TrialState.WAITING))
                if values and not any(map(given_values, trials)):
                    study.enqueue_trial(values)

    def run(self, show_progress: bool) -> None:
        """Runs trials until the budget is used, or other processes run the rest.

        Call `begin` first.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        total, unit = self.budget.seconds or 0.0, "s of training"
        if self.budget.trials is not None:
            total, unit = self.budget.trials * len(self.arms) * len(self.seeds), "runs"
        with LongWork("tune", total, unit, self._done(), show_progress) as work:
            while (claim := self.take()) is not None:
                with claim.held:
                    work.say(f"{claim.name}, trial {claim.trial.number}")
                    self._end(claim, work)
                work.reach(min(total, self._done()))
                if not self.is_complete:
                    self.trainer.stop.check(f"trial {claim.trial.number} of {claim.name}")
        for name in self.arms:
            if self.budget.seconds and finds_nothing_new(self.trials(name, COUNTED)):
                print(
                    f"note: {name}: the last {NOTHING_NEW} trials had values of earlier ones, or "
                    "were refused: there is nothing new to train, whatever --hours says"
                )

    def _done(self) -> float:
        if self.budget.trials is None:
            return sum(map(self.runs.seconds, self.arms))
        return sum(len(self.trials(name)) for name in self.arms) * len(self.seeds)

    # --- Methods for taking the next trial

    @property
    def is_complete(self) -> bool:
        """Whether every method has used its budget."""
        return all(self._used(name) >= 1 for name in self.arms)

    def _used(self, name: str) -> float:
        """Returns the used fraction of a method's budget; at 1 or more, it has no further trial."""
        trials, used = self.trials(name, COUNTED), 0.0
        if self.budget.trials is not None:
            used = len(trials) / self.budget.trials
        if self.budget.seconds is not None:
            part = self.runs.seconds(name) * len(self.arms) / self.budget.seconds
            used = max(used, part, math.inf if finds_nothing_new(trials) else 0.0)
        return used

    def take(self) -> Optional[Claim]:
        """Takes the next trial: one of a dead process, or a new one.

        Methods alternate, so that at any time their used budgets differ by at most one trial.

        Returns:
            The trial, locked until its claim is closed; None if no trial is left.
        """
        with self.runs.hold(_ASK, wait=True):
            for name in self.arms:
                for trial in self.trials(name, (TrialState.RUNNING,)):
                    if (claim := self._claim(name, trial.number)) is not None:
                        return claim
            name = min(self.arms, key=self._used)
            if self._used(name) < 1:
                return self._claim(name, self._study(name).ask().number)
        return None

    def _claim(self, name: str, number: int) -> Optional[Claim]:
        """Returns a running trial with its values and its lock.

        None if another process runs the trial, or has ended it.
        """
        with contextlib.ExitStack() as held:
            lock = trial_name(name, number)
            if self.runs.is_held(lock) or not held.enter_context(self.runs.hold(lock)):
                return None
            # Each trial has its own sampler, so that its values do not depend on restarts.
            sampler = _sampler(sampler_seed(self.seeds[0], number))
            study = self._study(name, sampler=sampler, pruner=self._pruner)
            frozen = study.get_trials(deepcopy=False)[number]
            if frozen.state is not TrialState.RUNNING:
                # Another process has ended the trial since the lookup.
                return None
            trial = Trial(study, frozen._trial_id)
            # A process may have died after it had sampled some of the values.
            for flag, dimension in self.arms[name].dimensions.items():
                if flag in frozen.params and flag not in given_values(frozen):
                    # Sample again, so that the next value is as in an uninterrupted trial.
                    sampler.sample_independent(study, frozen, flag, dimension.distribution)
                dimension.draw(trial)
            before = (t for t in self.trials(name) if t.number < number)
            equal = (t for t in before if t.params == trial.params)
            claim = Claim(name, study, trial, next(equal, None), held.pop_all())
        return claim

    # --- A trial

    def _end(self, claim: Claim, work: LongWork) -> None:
        trial, end = claim.trial, claim.study.tell
        where = f"{claim.name}, trial {trial.number} ({shown_values(trial.params)})"
        try:
            value, reason = self.outcome(claim, work)
        except UserError as e:
            end(trial.number, state=TrialState.FAIL)
            raise UserError(f"{where}: {e}") from e
        if seconds := self.runs.seconds(claim.run_name):
            trial.set_user_attr(SECONDS, seconds)
        if reason:
            trial.set_user_attr(ENDED, reason)
        # For a pruned trial without a value, Optuna keeps the last reported value.
        end(trial.number, value, TrialState.PRUNED if value is None else TrialState.COMPLETE)
        work.note(f"{where}: {described(value, reason, self.objective)}")

    def outcome(self, claim: Claim, work: LongWork) -> tuple[Optional[float], str]:
        """Makes the missing runs of a trial; returns its objective, or the reason of an early end.

        A trial with the same values as a finished trial copies its reports and its outcome.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        if (equal := claim.equal) is not None:
            for step in sorted(equal.intermediate_values.keys() - claim.reported().keys()):
                claim.trial.report(equal.intermediate_values[step], step)
            is_complete = equal.state is TrialState.COMPLETE
            return equal.value if is_complete else None, equal.user_attrs.get(ENDED, "")
        arm, load_task = self.arms[claim.name], self.trainer.load_task
        try:
            specs = [arm.spec(claim.trial.params, seed) for seed in self.seeds]
            check_run(specs[0], load_task(specs[0]))
        except UserError as e:
            # Each value is valid by itself, so the error is about incompatible values. If the given
            # settings themselves are now invalid, as with a missing file, the search ends.
            arm.check(self.seeds[0], load_task(arm.spec({}, self.seeds[0])))
            return None, f"refused: {e}"
        values: list[float] = []
        for spec in specs:
            watch = Watch(claim, self.objective, spec.config.rounds, len(specs), values)
            job = Job(f"{claim.run_name}/seed_{spec.config.seed}", spec, observers=(watch,))
            (end,) = self.runs.make([job], work)
            if end.reason is not None:
                return None, end.reason
            result = read_json(RunFolder(end.path).result)
            value = self.objective.value_in(result)
            if value is None:
                check_examples(self.objective, result)
                return None, "diverged: the objective is not finite"
            values.append(value)
        return sum(values) / len(values), ""


def check_examples(objective: Objective, result: Mapping[str, Any]) -> None:
    """Checks that the domains of an objective have enough examples for it to be defined."""
    counts = {name: int(entry["num_examples"]) for name, entry in result["domains"].items()}
    for term in objective.terms:
        domains = [*counts] if term.domain is None else [term.domain]
        least, few = 1, "no examples of"
        if term.statistic == "worst":
            least = int(result["worst_min_examples"])
            few = f"fewer than --worst_min_examples={least} examples of each of"
        if {*domains} <= {*domains_below(counts, least)}:
            raise UserError(
                f"--objective={objective.name}: expected a number that the runs report, found "
                f"none: the {result['split']} clients have {few} {', '.join(domains)}"
            )


class Watch(Observer):
    """Reports the evaluations of a trial to Optuna, and ends trials that are not promising.

    In the run of the k-th seed, counted from 0, the reported value is the mean of the evaluation
    and of `values`, the results of the earlier seeds. The reported step is k * `rounds` + round.
    """

    def __init__(
        self,
        claim: Claim,
        objective: Objective,
        rounds: int,
        num_runs: int,
        values: Sequence[float],
    ) -> None:
        self._trial, self._objective = claim.trial, objective
        self._before, self._rounds = rounds * len(values), rounds * num_runs
        # Remember the reported steps, as a resumed run repeats evaluations.
        self._reported, self._values = claim.reported(), [*values]

    def after_round(self, finished: FinishedRound) -> None:
        """Reports the evaluation of a round, if it has one."""
        if finished.evaluation is not None:
            self.report(finished.num, next(iter(finished.evaluation.values())))

    def report(self, round_num: int, report: EvaluationReport) -> None:
        """Reports an evaluation.

        Raises:
            Pruned: If the trial should end.
        """
        value, step = self._objective.value_in(report.to_json()), self._before + round_num
        if value is None:
            # An evaluation of few clients may lack examples of a domain.
            return
        if step not in self._reported:
            self._trial.report((sum(self._values) + value) / (len(self._values) + 1), step)
        if step != self._rounds and self._trial.should_prune():
            raise Pruned(f"after round {step} of {self._rounds}")


# --- Optuna


class _JournalLock:
    """The lock of a `JournalFileBackend`, which the kernel releases if the process dies.

    Args:
        path: The journal. Its folder is locked, and must contain nothing else to lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = contextlib.ExitStack()

    def acquire(self) -> bool:
        """Waits for the lock, and removes a line that a dead process did not complete."""
        self._held.enter_context(folder_lock(self._path.parent, wait=True))
        with open(self._path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._held.close()


def trial_name(name: str, number: int) -> str:
    """Returns the name of a method's trial."""
    return f"{name}/trial_{number:03d}"


def given_values(trial: FrozenTrial) -> Mapping[str, Any]:
    """Returns the values of a trial that were given instead of sampled, by flag."""
    values: Mapping[str, Any] = trial.system_attrs.get("fixed_params", {})
    return values


def described(value: Optional[float], reason: str, objective: Objective) -> str:
    """Returns the objective of a trial, or the reason of its early end."""
    if value is not None:
        return f"{objective.name} {objective.text(value)}"
    return reason if ":" in reason else f"ended early: {reason}"


def finds_nothing_new(trials: Sequence[FrozenTrial]) -> bool:
    """Whether the last trials trained nothing, as their values were repeated or invalid."""
    last = trials[-NOTHING_NEW:]
    return len(last) == NOTHING_NEW and all(
        trial.state in FINISHED and SECONDS not in trial.user_attrs for trial in last
    )


def _sampler(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        # Optuna warns that two of the arguments are experimental.
        warnings.simplefilter("ignore", ExperimentalWarning)
        # The constant liar avoids values that other processes are trying at the same time.
        return TPESampler(
            seed=seed, n_startup_trials=_NUM_AT_FIRST, multivariate=True, constant_liar=True
        )


def sampler_seed(seed: int, trial: int) -> int:
    """Returns the seed of the sampler for a trial's settings."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{trial}".encode()).digest()[:4], "big")
