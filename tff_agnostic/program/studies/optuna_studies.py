"""Optuna's studies of a search, one per method, in a journal that several processes share.

The process that runs a trial has its lock (see `runset.RunSet.hold`): a running trial without a
lock belongs to a dead process, and the next process resumes it. Trials are taken one at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
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
from tff_agnostic.base.files import folder_lock, make_folder
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.search_space import Dimension

# The journal of the trials, in the folder of the search.
FILE = "trials/journal.log"
# Attributes of trials: seconds of training, the reason of an early end, and the number of the trial
# whose runs it uses.
SECONDS, ENDED, RUNS_OF = "seconds", "ended", "runs of trial"
# States of trials in the budget; a failed trial is replaced.
COUNTED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# A search by hours ends after this many trials in a row without training.
NOTHING_NEW = 20
# Number of trials that are drawn at random and not pruned.
NUM_AT_FIRST = 5
_ASK = ".ask"


@dataclasses.dataclass(frozen=True)
class Budget:
    """The trials of each method, and the seconds of training of all together; None for any number.

    A method that finds nothing new to train, in `NOTHING_NEW` trials in a row, has no more trials
    by time.
    """

    trials: Optional[int]
    seconds: Optional[float]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A trial that this process runs; closed after `Studies.end`.

    Attributes:
        runs_of: Number of the trial whose runs it uses: an earlier one with equal values that had
            finished when this one was claimed, as a run is a function of its settings, or itself.
        held: Holds the lock of the trial.
    """

    name: str
    study: optuna.Study
    trial: Trial
    runs_of: int
    held: contextlib.ExitStack

    @property
    def run_name(self) -> str:
        """First part of the names of the trial's runs."""
        return trial_name(self.name, self.runs_of)

    @property
    def is_new(self) -> bool:
        """Whether no finished trial had the same values."""
        return self.runs_of == self.trial.number

    def repeat(self) -> FrozenTrial:
        """Reports the values of the trial whose runs this one uses; returns that trial."""
        earlier = self.study.get_trials(deepcopy=False)[self.runs_of]
        reported = self.reported()
        for step, value in earlier.intermediate_values.items():
            if step not in reported:
                self.trial.report(value, step)
        return earlier

    def reported(self) -> dict[int, float]:
        """Returns the reported values of the trial, by step, over all processes."""
        trials = self.study.get_trials(deepcopy=False)
        return dict(trials[self.trial.number].intermediate_values)


class Studies:
    """The studies of a search.

    Args:
        seed: Seed of the search.
        warm_up: First step of a trial in which it may end early.
    """

    def __init__(self, runs: RunSet[Any], higher_is_better: bool, seed: int, warm_up: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._runs = runs
        self._direction = "maximize" if higher_is_better else "minimize"
        self._seed = seed
        self._pruner = MedianPruner(n_startup_trials=NUM_AT_FIRST, n_warmup_steps=warm_up)
        path = runs.folder / FILE
        make_folder(path.parent)
        try:
            self._storage = JournalStorage(JournalFileBackend(str(path), _JournalLock(path)))
        except (KeyError, TypeError, ValueError) as e:
            raise UserError(
                f"{path}: expected the journal of this search, cannot use it: {e}"
            ) from e

    def add(self, name: str, first: Mapping[str, Any]) -> None:
        """Adds the study of a method and its first trial, if they are missing or failed.

        Args:
            first: Values of its first trial, by flag; the others are drawn.
        """
        with self._runs.hold(_ASK, wait=True):
            study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                direction=self._direction,
                load_if_exists=True,
            )
            trials = study.get_trials(deepcopy=False, states=(*COUNTED, TrialState.WAITING))
            if first and not any(given_values(trial) for trial in trials):
                study.enqueue_trial(dict(first))

    def trials(self, name: str, states: Sequence[TrialState]) -> list[FrozenTrial]:
        """Returns the trials of a method in some states, by their numbers."""
        study = optuna.load_study(study_name=name, storage=self._storage)
        return study.get_trials(deepcopy=False, states=tuple(states))

    def take(self, spaces: Mapping[str, Sequence[Dimension]], budget: Budget) -> Optional[Claim]:
        """Takes the next trial: one of a dead process, or a new one.

        Methods take turns, so that at any time each has had the same budget, up to one trial.

        Args:
            spaces: The search space of each method, by its name.

        Returns:
            The trial, locked until its claim is closed; None if the budget is used or taken.
        """
        with self._runs.hold(_ASK, wait=True):
            for name in spaces:
                for trial in self.trials(name, (TrialState.RUNNING,)):
                    claim = self._claimed(name, spaces[name], trial.number)
                    if claim is not None:
                        return claim
            open_ = self.with_budget(spaces, budget)
            if not open_:
                return None
            name = min(open_, key=lambda name: self._used(name, budget))
            study = optuna.load_study(study_name=name, storage=self._storage)
            return self._claimed(name, spaces[name], study.ask().number)

    def with_budget(self, names: Collection[str], budget: Budget) -> list[str]:
        """Returns the methods that may have another trial."""
        return [name for name in names if self._has_budget(name, budget, len(names))]

    def end(self, claim: Claim, state: TrialState, value: Optional[float] = None) -> None:
        """Ends a trial; the last reported value of a pruned one stays."""
        claim.study.tell(claim.trial.number, value, state=state)

    def _used(self, name: str, budget: Budget) -> float:
        if budget.seconds is None:
            return len(self.trials(name, COUNTED))
        return self._runs.seconds(name)

    def _has_budget(self, name: str, budget: Budget, num_methods: int) -> bool:
        trials = self.trials(name, COUNTED)
        if budget.trials is not None and len(trials) >= budget.trials:
            return False
        if budget.seconds is None:
            return True
        is_in_time = self._runs.seconds(name) < budget.seconds / num_methods
        return is_in_time and not finds_nothing_new(trials)

    def _claimed(self, name: str, dimensions: Sequence[Dimension], number: int) -> Optional[Claim]:
        """Returns a running trial with its values and its lock.

        None if another process has it, or has ended it.
        """
        held, lock = contextlib.ExitStack(), trial_name(name, number)
        if self._runs.is_held(lock) or not held.enter_context(self._runs.hold(lock)):
            held.close()
            return None
        study = optuna.load_study(
            study_name=name,
            storage=self._storage,
            sampler=_sampler(sampler_seed(self._seed, number)),
            pruner=self._pruner,
        )
        frozen = study.get_trials(deepcopy=False)[number]
        if frozen.state is not TrialState.RUNNING:
            # Another process has ended the trial since the lookup.
            held.close()
            return None
        trial = Trial(study, frozen._trial_id)
        # The process may have died between two draws.
        for dimension in dimensions:
            if dimension.flag in frozen.params and dimension.flag not in given_values(frozen):
                # Repeat the draw, so that the next one equals that of a trial without a break.
                study.sampler.sample_independent(
                    study, frozen, dimension.flag, dimension.distribution
                )
            dimension.draw(trial)
        if RUNS_OF not in trial.user_attrs:
            finished = study.get_trials(deepcopy=False, states=FINISHED)
            equal = [t.number for t in finished if t.params == trial.params]
            trial.set_user_attr(RUNS_OF, min([*equal, number]))
        return Claim(name, study, trial, trial.user_attrs[RUNS_OF], held)


class _JournalLock:
    """The lock of a journal, which the kernel takes from a dead process; see `JournalFileBackend`.

    Args:
        path: The journal, in a separate folder.
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
        """Releases the lock."""
        self._held.close()


def given_values(trial: FrozenTrial) -> Mapping[str, Any]:
    """Returns the values of a trial that were not drawn, by flag; empty for most trials."""
    values: Mapping[str, Any] = trial.system_attrs.get("fixed_params", {})
    return values


def finds_nothing_new(trials: Sequence[FrozenTrial]) -> bool:
    """Whether the last trials did not train: they had values of earlier ones, or were refused."""
    last = trials[-NOTHING_NEW:]
    return len(last) == NOTHING_NEW and all(
        trial.state in FINISHED and SECONDS not in trial.user_attrs for trial in last
    )


def trial_name(name: str, number: int) -> str:
    """Returns the name of a method's trial."""
    return f"{name}/trial_{number:03d}"


def _sampler(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        # Two arguments are experimental.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=NUM_AT_FIRST,
            multivariate=True,
            # Avoid the values that other processes try now.
            constant_liar=True,
        )


def sampler_seed(seed: int, trial: int) -> int:
    """Returns the seed of the sampler that draws a trial's settings.

    Each trial has its own sampler, so that its draws do not depend on restarts of the search.
    """
    text = f"{seed}/{trial}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
