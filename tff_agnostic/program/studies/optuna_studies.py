"""The trials of a search, in a database that several processes share.

Whoever runs a trial has the lock of its folder. The kernel takes it away when the process ends,
however it ends: a trial that runs on paper and has no lock is one whose process died, and the next
one to look goes on with it. Trials are taken while the search's own folder is locked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import sqlite3
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.studies.search_space import Dimension

FILE = "studies.sqlite"
# Another process writes for milliseconds.
_TIMEOUT_SECONDS = 120.0
# What a trial says of itself.
SECONDS, ENDED, SAME_AS = "seconds", "ended", "same as"
# Trials that took a part of the budget; one that failed is replaced.
COUNTED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# So many draws in a row of what has been tried, or is refused, end a search without a count.
NOTHING_NEW = 20
# So many trials are drawn at random, or run whole, before others are judged by them.
NUM_AT_FIRST = 5
_BITS = 32
# (round from which on trials may end) -> a pruner.
NO_PRUNER = "none"
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
    """How trials are drawn and judged.

    Attributes:
        higher_is_better: Which direction of the objective is good.
        seed: Of the search.
        sampler: A member of `SAMPLERS`.
        pruner: A member of `PRUNERS`.
        warm_up: The step of a trial from which on it may end early.
    """

    higher_is_better: bool
    seed: int
    sampler: str
    pruner: str
    warm_up: int


class Studies:
    """The studies of a search, one for each algorithm, in one file.

    Args:
        folder: Of the search; it is there.
        method: How trials are drawn and judged.
    """

    def __init__(self, folder: Path, method: Method) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._folder = folder
        self._method = method
        self._path = folder / FILE
        # A path may hold what means something in a URL.
        connect = functools.partial(sqlite3.connect, self._path, timeout=_TIMEOUT_SECONDS)
        with folder_lock(folder, wait=True), self.errors():
            self._storage = RDBStorage(f"sqlite:///{FILE}", engine_kwargs={"creator": connect})

    def add(self, name: str, first: Mapping[str, Any]) -> None:
        """Adds what is not there of an algorithm: its study, and its first trial.

        A first trial that failed is tried again.

        Args:
            name: What the algorithm is called.
            first: Values of its first trial, by flag; others are drawn.
        """
        with folder_lock(self._folder, wait=True), self.errors():
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
        """Returns the trials of an algorithm, all or those in some states, by their numbers."""
        with self.errors():
            study = optuna.load_study(study_name=name, storage=self._storage)
            trials = study.get_trials(deepcopy=False, states=None if states is None else (*states,))
        return [t for t in trials if t.state is not TrialState.WAITING]

    def study(self, name: str) -> optuna.Study:
        """Returns the study of an algorithm, to be looked at."""
        with self.errors():
            return optuna.load_study(study_name=name, storage=self._storage)

    def taken(self, spaces: Mapping[str, Sequence[Dimension]], budget: Budget) -> Optional[Claim]:
        """Takes the next trial: one whose process died, or a new one of whose turn it is.

        Algorithms take turns, so that at any time each has had the same budget, up to one trial.

        Args:
            spaces: What is searched of each algorithm, by its name.

        Returns:
            The trial, locked until its claim is closed; None if the budget of all is used or taken.
        """
        with folder_lock(self._folder, wait=True), self.errors():
            for name in spaces:
                for trial in self.trials(name, (TrialState.RUNNING,)):
                    claim = self._claimed(name, spaces[name], trial.number)
                    if claim is not None:
                        return claim
            open_ = self.with_budget(spaces, budget)
            if not open_:
                return None
            name = min(open_, key=lambda name: budget.used(self.trials(name, COUNTED)))
            return self._claimed(name, spaces[name], self.study(name).ask().number)

    def with_budget(self, names: Collection[str], budget: Budget) -> list[str]:
        """Returns which algorithms may have another trial."""
        counted = {name: self.trials(name, COUNTED) for name in names}
        return [name for name in names if budget.is_left(counted[name], len(names))]

    def tell(self, claim: Claim, state: TrialState, value: Optional[float] = None) -> None:
        """Ends a trial; of one that was pruned the last value it reported stays."""
        with self.errors():
            claim.study.tell(claim.trial.number, value, state=state)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of the database into one line."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError) as e:
            raise UserError(
                f"{self._path}: expected a database of this search, cannot use it: "
                f"{getattr(e, 'orig', None) or e}"
            ) from e

    def _claimed(self, name: str, dimensions: Sequence[Dimension], number: int) -> Optional[Claim]:
        """Returns a running trial with its values and its lock.

        None if another process has it, or has ended it.
        """
        folder = trial_folder(self._folder, name, number)
        make_folder(folder)
        held = contextlib.ExitStack()
        if not held.enter_context(folder_lock(folder)):
            held.close()
            return None
        method = self._method
        study = optuna.load_study(
            study_name=name,
            storage=self._storage,
            sampler=SAMPLERS[method.sampler](sampler_seed(method.seed, number)),
            pruner=PRUNERS[method.pruner](method.warm_up),
        )
        # Optuna's cache knows the trials that it has read.
        found = study.get_trials(deepcopy=False)[number]
        if found.state is not TrialState.RUNNING:
            # Another process has ended it since it was looked up.
            held.close()
            return None
        study_id = self._storage.get_study_id_from_name(name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        trial = Trial(study, trial_id)
        # Also of one whose process died before it had all its values.
        for of in dimensions:
            if of.flag in found.params and of.flag not in given_values(found):
                # Draws what it drew before, for nothing: the next one draws what it would have.
                study.sampler.sample_independent(study, found, of.flag, of.distribution)
            of.draw(trial)
        return Claim(name, folder, study, trial, held)


def given_values(trial: FrozenTrial) -> Mapping[str, Any]:
    """Returns the values of a trial that were not drawn, by flag; none of most trials."""
    values: Mapping[str, Any] = trial.system_attrs.get("fixed_params", {})
    return values


@dataclasses.dataclass(frozen=True)
class Budget:
    """What each algorithm may have.

    Time is not used by trials that do not train: an algorithm that finds nothing new to train, in
    so many trials as `NOTHING_NEW` in a row, has no more of them.

    Attributes:
        trials: How many trials; any number if None.
        seconds: Of training, for all algorithms together; any time if None.
    """

    trials: Optional[int]
    seconds: Optional[float]

    def is_left(self, counted: Sequence[FrozenTrial], num_algorithms: int) -> bool:
        """Returns whether an algorithm with these trials may have another one."""
        if self.trials is not None and len(counted) >= self.trials:
            return False
        if self.seconds is None:
            return True
        return seconds_of(counted) < self.seconds / num_algorithms and not finds_nothing_new(
            counted
        )

    def used(self, counted: Sequence[FrozenTrial]) -> float:
        """Returns what an algorithm has had, to be compared with the others'."""
        return len(counted) if self.seconds is None else seconds_of(counted)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A trial that this process runs; to be closed after it was told.

    Attributes:
        name: Of the algorithm.
        folder: Of the trial.
        study: Of the algorithm, with the trial's sampler.
        trial: The trial.
        held: Holds its lock.
    """

    name: str
    folder: Path
    study: optuna.Study
    trial: Trial
    held: contextlib.ExitStack

    def reported(self) -> dict[int, float]:
        """Returns the values that the trial has reported, by step; also before it was taken."""
        trials = self.study.get_trials(deepcopy=False)
        return dict(trials[self.trial.number].intermediate_values)


def finds_nothing_new(counted: Sequence[FrozenTrial]) -> bool:
    """Returns whether the last trials did not train: others had their values, or they are refused.

    So it is where a search has as few settings as there are values of a choice.
    """
    last = counted[-NOTHING_NEW:]
    return len(last) == NOTHING_NEW and all(
        trial.state in FINISHED and SECONDS not in trial.user_attrs for trial in last
    )


def trial_folder(folder: Path, name: str, number: int) -> Path:
    """Returns the folder of a trial of an algorithm."""
    return folder / name / f"trial_{number:03d}"


def seconds_of(trials: Sequence[FrozenTrial]) -> float:
    """Returns how long trials have trained."""
    return float(sum(trial.user_attrs.get(SECONDS, 0.0) for trial in trials))


def _tpe(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        # Of the two arguments that are newer than the sampler.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=NUM_AT_FIRST,
            multivariate=True,
            # Keeps away from what other processes are trying now.
            constant_liar=True,
        )


# seed -> a sampler.
SAMPLERS: Registry[Callable[[int], BaseSampler]] = Registry(
    "sampler", {"tpe": _tpe, "random": lambda seed: RandomSampler(seed)}
)


def sampler_seed(seed: int, trial: int) -> int:
    """Returns the seed of the sampler that draws a trial's settings.

    Each trial has a sampler of its own: what it draws depends on the results so far, and not on how
    often the search was interrupted.

    Args:
        seed: Of the search.
        trial: Number of the trial, from 0.
    """
    text = f"{seed}/{trial}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[: _BITS // 8], "big")
