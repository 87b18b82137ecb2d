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
from typing import Any, Callable, Optional

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.studies.runset import RunSet, run_folder
from tff_agnostic.program.studies.search_space import Dimension

# The journal of the trials, in the folder of the search.
FILE = "trials/journal.log"
# Attributes of trials.
SECONDS, ENDED, SAME_AS = "seconds", "ended", "same as"
# States of trials in the budget; a failed trial is replaced.
COUNTED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# A search by hours ends after this many trials in a row without training.
NOTHING_NEW = 20
# Number of trials that are drawn at random and not pruned by the median.
NUM_AT_FIRST = 5
_BITS = 32
_ASK = ".ask"
NO_PRUNER = "none"
# (first round in which trials may end) -> a pruner.
PRUNERS: Registry[Callable[[int], BasePruner]] = Registry(
    "pruner",
    {
        "median": lambda warm_up: MedianPruner(
            n_startup_trials=NUM_AT_FIRST, n_warmup_steps=warm_up
        ),
        "halving": lambda warm_up: SuccessiveHalvingPruner(min_resource=max(1, warm_up)),
        NO_PRUNER: lambda warm_up: NopPruner(),
    },
)


@dataclasses.dataclass(frozen=True)
class Method:
    """Sampler and pruner of a search.

    Attributes:
        higher_is_better: Whether larger objectives are better.
        seed: Seed of the search.
        sampler: A member of `SAMPLERS`.
        pruner: A member of `PRUNERS`.
        warm_up: First step of a trial in which it may end early.
    """

    higher_is_better: bool
    seed: int
    sampler: str
    pruner: str
    warm_up: int


class Studies:
    """The studies of a search.

    Args:
        folder: Folder of the search.
        method: Sampler and pruner.
        runs: The runs of the search; None to read finished trials.
    """

    def __init__(self, folder: Path, method: Method, runs: Optional[RunSet[Any]] = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._method = method
        self._runs = runs
        path = folder / FILE
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
            name: Name of the method.
            first: Values of its first trial, by flag; the others are drawn.
        """
        with self._hold(_ASK, wait=True):
            study = optuna.create_study(
                storage=self._storage,
                study_name=name,
                direction="maximize" if self._method.higher_is_better else "minimize",
                load_if_exists=True,
            )
            trials = study.get_trials(deepcopy=False, states=(*COUNTED, TrialState.WAITING))
            if first and not any(given_values(trial) for trial in trials):
                study.enqueue_trial(dict(first))

    def trials(self, name: str, states: Optional[Sequence[TrialState]] = None) -> list[FrozenTrial]:
        """Returns the trials of a method, all or those in some states, by their numbers."""
        trials = self.study(name).get_trials(
            deepcopy=False, states=None if states is None else (*states,)
        )
        return [t for t in trials if t.state is not TrialState.WAITING]

    def study(self, name: str) -> optuna.Study:
        """Returns the study of a method."""
        return optuna.load_study(study_name=name, storage=self._storage)

    def taken(self, spaces: Mapping[str, Sequence[Dimension]], budget: Budget) -> Optional[Claim]:
        """Takes the next trial: one of a dead process, or a new one.

        Methods take turns, so that at any time each has had the same budget, up to one trial.

        Args:
            spaces: The search space of each method, by its name.

        Returns:
            The trial, locked until its claim is closed; None if the budget is used or taken.
        """
        with self._hold(_ASK, wait=True):
            for name in spaces:
                for trial in self.trials(name, (TrialState.RUNNING,)):
                    claim = self._claimed(name, spaces[name], trial.number)
                    if claim is not None:
                        return claim
            open_ = self.with_budget(spaces, budget)
            if not open_:
                return None
            name = min(open_, key=lambda name: self._used(name, budget))
            return self._claimed(name, spaces[name], self.study(name).ask().number)

    def with_budget(self, names: Collection[str], budget: Budget) -> list[str]:
        """Returns the methods that may have another trial."""
        return [name for name in names if self._is_left(name, budget, len(names))]

    def tell(self, claim: Claim, state: TrialState, value: Optional[float] = None) -> None:
        """Ends a trial; the last reported value of a pruned one stays."""
        claim.study.tell(claim.trial.number, value, state=state)

    def seconds(self, name: str) -> float:
        """Returns the training time of a method's trials."""
        return 0.0 if self._runs is None else self._runs.seconds(name)

    def _used(self, name: str, budget: Budget) -> float:
        return len(self.trials(name, COUNTED)) if budget.seconds is None else self.seconds(name)

    def _is_left(self, name: str, budget: Budget, num_methods: int) -> bool:
        counted = self.trials(name, COUNTED)
        if budget.trials is not None and len(counted) >= budget.trials:
            return False
        if budget.seconds is None:
            return True
        is_in_time = self.seconds(name) < budget.seconds / num_methods
        return is_in_time and not finds_nothing_new(counted)

    def _hold(self, name: str, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
        assert self._runs is not None
        return self._runs.hold(name, wait)

    def _claimed(self, name: str, dimensions: Sequence[Dimension], number: int) -> Optional[Claim]:
        """Returns a running trial with its values and its lock.

        None if another process has it, or has ended it.
        """
        held, lock = contextlib.ExitStack(), trial_name(name, number)
        assert self._runs is not None
        if self._runs.is_held(lock) or not held.enter_context(self._hold(lock)):
            held.close()
            return None
        method = self._method
        study = optuna.load_study(
            study_name=name,
            storage=self._storage,
            sampler=SAMPLERS[method.sampler](sampler_seed(method.seed, number)),
            pruner=PRUNERS[method.pruner](method.warm_up),
        )
        found = study.get_trials(deepcopy=False)[number]
        if found.state is not TrialState.RUNNING:
            # Another process has ended it since it was looked up.
            held.close()
            return None
        study_id = self._storage.get_study_id_from_name(name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        trial = Trial(study, trial_id)
        # The process may have died between two draws.
        for dimension in dimensions:
            if dimension.flag in found.params and dimension.flag not in given_values(found):
                # Repeat the draw, so that the next one equals that of a trial without a break.
                study.sampler.sample_independent(
                    study, found, dimension.flag, dimension.distribution
                )
            dimension.draw(trial)
        return Claim(name, study, trial, held)


class _JournalLock:
    """The lock of a journal, which the kernel takes from a dead process; see `JournalFileBackend`.

    Args:
        path: The journal, in a folder of its own.
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
    """Returns the values of a trial that were not drawn, by flag; none of most trials."""
    values: Mapping[str, Any] = trial.system_attrs.get("fixed_params", {})
    return values


@dataclasses.dataclass(frozen=True)
class Budget:
    """The budget of a search.

    A method that finds nothing new to train, in `NOTHING_NEW` trials in a row, has no more trials
    by time.

    Attributes:
        trials: Number of trials of each method; None for any number.
        seconds: Seconds of training of all methods together; None for any time.
    """

    trials: Optional[int]
    seconds: Optional[float]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A trial that this process runs; closed after `Studies.tell`.

    Attributes:
        name: Name of the method.
        study: Study of the method, with the trial's sampler.
        trial: The trial.
        held: Holds the lock of the trial.
    """

    name: str
    study: optuna.Study
    trial: Trial
    held: contextlib.ExitStack

    @property
    def run_name(self) -> str:
        """First part of the names of the trial's runs."""
        return trial_name(self.name, self.trial.number)

    def reported(self) -> dict[int, float]:
        """Returns the reported values of the trial, by step, over all processes."""
        trials = self.study.get_trials(deepcopy=False)
        return dict(trials[self.trial.number].intermediate_values)


def finds_nothing_new(counted: Sequence[FrozenTrial]) -> bool:
    """Whether the last trials did not train: they had values of earlier ones, or were refused."""
    last = counted[-NOTHING_NEW:]
    return len(last) == NOTHING_NEW and all(
        trial.state in FINISHED and SECONDS not in trial.user_attrs for trial in last
    )


def trial_name(name: str, number: int) -> str:
    """Returns the first part of the names of a trial's runs."""
    return f"{name}/trial_{number:03d}"


def seed_folder(folder: Path, name: str, number: int, seed: int) -> Path:
    """Returns the run folder of a trial's seed, in the folder of a search."""
    return run_folder(folder, f"{trial_name(name, number)}/seed_{seed}")


def _tpe(seed: int) -> BaseSampler:
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


# seed -> a sampler.
SAMPLERS: Registry[Callable[[int], BaseSampler]] = Registry(
    "sampler", {"tpe": _tpe, "random": lambda seed: RandomSampler(seed)}
)


def sampler_seed(seed: int, trial: int) -> int:
    """Returns the seed of the sampler that draws a trial's settings.

    Each trial has its own sampler, so that its draws do not depend on restarts of the search.

    Args:
        seed: Seed of the search.
        trial: Number of the trial, from 0.
    """
    text = f"{seed}/{trial}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[: _BITS // 8], "big")
