"""The runs of a study in one folder, which processes can share; killing a process loses no run.

    FOLDER/study.json              identity of the study, which must be equal on resume
    FOLDER/runs/NAME/run/          a run, as `train` writes it
    FOLDER/runs/NAME/ended.json    reason of a run without a result: it diverged or was pruned
    FOLDER/runs/NAME/seconds.json  duration of the run over all processes and restarts

A run is done if it has a result or ended.json. The kernel unlocks the runs of a process that dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Generic, NamedTuple, Optional, Protocol, TypeVar

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    folder_lock,
    is_new_or_empty,
    make_folder,
    read_json,
    write_errors,
    write_json,
)
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.runs.observers import RoundsDone
from tff_agnostic.training.divergence import Diverged
from tff_agnostic.training.loop import FinishedRound, Observer

STUDY = "study.json"
_RUNS, _RUN, _ENDED, _SECONDS = "runs", "run", "ended.json", "seconds.json"
# Maximum seconds of training that seconds.json lacks after a kill, in addition to a round.
_CLOCK_SECONDS = 5.0

Settings = TypeVar("Settings")
_Settings = TypeVar("_Settings", contravariant=True)


class Pruned(Exception):
    """Raised to end a run that is not promising."""


@dataclasses.dataclass(frozen=True)
class Job(Generic[Settings]):
    """A run of a study.

    Attributes:
        name: Name of the run's folder, which may have several parts: "fed_avg/trial_00".
        after: The job to complete first, which several jobs may share; None without one.
        second_stage: Called with the settings and the folder of the first run; returns the settings
            of a run that starts from its model.
        observers: Further observers of the rounds. If one raises `Pruned`, the run ends.
    """

    name: str
    settings: Settings
    after: Optional[Job[Settings]] = None
    second_stage: Callable[[Settings, Path], Settings] = lambda settings, first: settings
    observers: Sequence[Observer] = ()


class Trainer(Protocol[_Settings]):
    """Trains runs in their folders."""

    def is_complete(self, settings: _Settings, folder: Path) -> bool:
        """Whether a folder holds the result of a run.

        Raises:
            UserError: If the folder holds another run.
        """
        ...

    def train(
        self, settings: _Settings, folder: Path, observers: Sequence[Observer]
    ) -> Sequence[str]:
        """Trains a run, or resumes it; returns warnings about its result."""
        ...


class Outcome(NamedTuple):
    """The end of a run.

    Attributes:
        reason: Reason of an end without a result; None if the run has a result.
    """

    path: Path
    reason: Optional[str]


class RunSet(Generic[Settings]):
    """The runs of a study, as a context manager.

    Args:
        identity: Facts that identify the study, such as its task.
        resume: Whether the folder may already hold runs of the study.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        trainer: Trainer[Settings],
        resume: bool,
        stop: StopRequest,
    ) -> None:
        self.folder = folder
        self._trainer = trainer
        self._stop = stop
        self._held: set[str] = set()
        self._noted: set[str] = set()
        self._had_folder = folder.exists()
        # Two processes may start at the same time: the second joins the first one's study.
        make_folder(folder)
        with folder_lock(folder, wait=True):
            self._is_new = not (folder / _RUNS).exists()
            check_study(folder, identity, resume)
            write_json(folder / STUDY, dict(identity))

    def __enter__(self) -> RunSet[Settings]:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], *error: object) -> None:
        """Removes a new study whose first run was invalid, so that another study may follow."""
        if kind is None or not issubclass(kind, UserError) or not self._is_new:
            return
        runs, others = self.folder / _RUNS, {path.name for path in self.folder.iterdir()}
        if others - {STUDY, _RUNS} or any(
            path.is_file() and path.name != _SECONDS for path in runs.rglob("*")
        ):
            return
        shutil.rmtree(runs, ignore_errors=True)
        (self.folder / STUDY).unlink()
        if not self._had_folder:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def make(self, jobs: Sequence[Job[Settings]], work: LongWork) -> list[Outcome]:
        """Makes the missing runs, and waits for those that other processes make.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        remaining = self.open(jobs)
        while remaining:
            is_idle, made = True, 0
            for k, job in enumerate(remaining):
                with self.hold(job.name) as is_ours:
                    is_idle &= not is_ours
                    if not is_ours or self.outcome(job) is not None:
                        continue
                    self._make(job, work)
                made += 1
                work.update()
                if k + 1 < len(remaining):
                    self._stop.check(job.name)
            before, remaining = len(remaining), self.open(remaining)
            work.update(before - made - len(remaining))
            if remaining and is_idle:
                work.say(f"another process makes {remaining[0].name}")
                with self.hold(remaining[0].name, wait=True):
                    pass
        return [outcome for job in jobs if (outcome := self.outcome(job)) is not None]

    def open(self, jobs: Sequence[Job[Settings]]) -> list[Job[Settings]]:
        """Returns the runs that are not done."""
        return [job for job in jobs if self.outcome(job) is None]

    def outcome(self, job: Job[Settings]) -> Optional[Outcome]:
        """Returns the outcome of a run; None if the run is not done.

        Raises:
            UserError: If the run's folder holds another run.
        """
        path, ended = self.run_folder(job), self.path(job.name) / _ENDED
        if ended.exists():
            return Outcome(path, str(read_json(ended)["reason"]))
        if job.after is not None:
            first = self.outcome(job.after)
            if first is None or first.reason is not None:
                return first and Outcome(path, first.reason)
        if not path.exists() or not self._trainer.is_complete(self._settings(job), path):
            return None
        return Outcome(path, None)

    def run_folder(self, job: Job[Settings]) -> Path:
        """Returns the folder of a run."""
        return run_folder(self.folder, job.name)

    def end(self, job: Job[Settings], reason: str) -> None:
        """Records that a run ended without a result."""
        make_folder(self.path(job.name))
        write_json(self.path(job.name) / _ENDED, {"reason": reason})

    def seconds(self, *names: str) -> float:
        """Returns the duration of runs over all processes and restarts.

        Args:
            *names: Names, or first parts of names, of runs; all runs if none is given.
        """
        folders = [self.path(name) for name in names] or [self.folder / _RUNS]
        return sum(_seconds(file) for path in folders for file in path.rglob(_SECONDS))

    def is_held(self, name: str) -> bool:
        """Whether this process has the lock of a run."""
        return name in self._held

    def timed(self, name: str) -> contextlib.AbstractContextManager[Observer]:
        """Adds the time in the context to the duration of a run; see `seconds`."""
        make_folder(self.path(name))
        return _Clock(self.path(name) / _SECONDS)

    @contextlib.contextmanager
    def hold(self, name: str, wait: bool = False) -> Iterator[bool]:
        """Locks a run against other processes in the context; contexts may be nested.

        Args:
            name: Name of a run, or any other name.
            wait: Whether to wait for a process that has the lock.

        Yields:
            Whether this process has the lock.
        """
        if name in self._held:
            yield True
            return
        make_folder(self.path(name))
        with folder_lock(self.path(name), wait=wait) as is_ours:
            if is_ours:
                self._held.add(name)
            try:
                yield is_ours
            finally:
                if is_ours:
                    self._held.discard(name)

    def _make(self, job: Job[Settings], work: LongWork) -> None:
        if job.after is not None:
            with self.hold(job.after.name, wait=True):
                if self.outcome(job.after) is None:
                    self._make(job.after, work)
            if self.outcome(job) is not None:
                return
        work.say(job.name)
        path = self.run_folder(job)
        try:
            with self.timed(job.name) as clock:
                observers = [*job.observers, RoundsDone(work), clock]
                for line in self._trainer.train(self._settings(job), path, observers):
                    self._note(f"note: {job.name}: {line}", work)
        except Pruned as e:
            self.end(job, str(e))
        except Diverged as e:
            self.end(job, f"diverged: {e}")
            self._note(f"note: {job.name} diverged: {e}", work)
        except UserError as e:
            raise UserError(f"{job.name}: {e}") from e
        # Otherwise the run would be trained again without end.
        if self.outcome(job) is None:
            raise RuntimeError(f"{job.name}: expected a complete run after training, found {path}")

    def _note(self, line: str, work: LongWork) -> None:
        if line not in self._noted:
            self._noted.add(line)
            work.note(line)

    def _settings(self, job: Job[Settings]) -> Settings:
        if job.after is None:
            return job.settings
        return job.second_stage(job.settings, self.run_folder(job.after))

    def path(self, name: str) -> Path:
        """Returns the folder runs/NAME, which contains the folder of a run with this name."""
        return self.folder / _RUNS / name


class _Clock(Observer):
    """Adds the time in the context to a file, which other processes must not write meanwhile."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds = _seconds(file)
        self._since = time.monotonic()

    def __enter__(self) -> _Clock:
        self._since = time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._write()

    def after_round(self, finished: FinishedRound) -> None:
        """Writes the time occasionally, in case the process is killed."""
        if time.monotonic() - self._since >= _CLOCK_SECONDS:
            self._write()

    def _write(self) -> None:
        now = time.monotonic()
        self._seconds += now - self._since
        self._since = now
        write_json(self._file, {"seconds": self._seconds})


def run_folder(folder: Path, name: str) -> Path:
    """Returns the folder of a run."""
    return folder / _RUNS / name / _RUN


def check_study(folder: Path, identity: Mapping[str, Any], resume: bool) -> None:
    """Checks that a study may use a folder; writes nothing."""
    file = folder / STUDY
    with write_errors(folder):
        if is_new_or_empty(folder):
            return
    if not file.exists():
        raise UserError(
            f"--output_dir: expected a new or empty folder or that of a study, found {folder} "
            "with other content"
        )
    if not (folder / _RUNS).exists():
        return
    difference = _difference(read_json(file), json.loads(json.dumps(identity)))
    if difference is not None:
        raise UserError(f"--output_dir: {folder} holds another study: {difference}")
    if not resume:
        raise UserError(
            f"--output_dir: {folder} holds this study already: add --resume to resume it or to "
            "share its runs, or choose another folder"
        )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> Optional[str]:
    """Returns the first different key with both values; None if there is no difference."""
    old, new = dict(_flat(before)), dict(_flat(now))
    key = next((k for k in {**new, **old} if old.get(k) != new.get(k)), None)
    if key is None:
        return None
    return f"{key} was {old.get(key)!r:.100} there, and is {new.get(key)!r:.100} here"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}: ")
        else:
            yield f"{prefix}{key}", value


def _seconds(file: Path) -> float:
    return float(read_json(file)["seconds"]) if file.exists() else 0.0
