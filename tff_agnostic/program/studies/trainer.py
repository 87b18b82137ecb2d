"""Trains a study's runs in their folders; runs share loaded tasks."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.program.commands.command_line import RunArguments, session
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import tqdm
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import Task
from tff_agnostic.training.loop import Observer

# Maximum number of kept tasks, for instance one for each seed of a comparison.
_MAX_KEPT = 16


@contextlib.contextmanager
def study(
    given: RunArguments,
    name: str,
    identity: Mapping[str, Any],
    runtime: str,
    load_task: Optional[Callable[[RunSettings], Task]] = None,
) -> Iterator[tuple[RunSet[RunSettings], RunTrainer]]:
    """Context in which a command makes a study's runs in its folder; see `session` and `RunSet`."""
    with session(given, name) as at, at.running(runtime) as (entered, stop):
        trainer = RunTrainer(entered, stop, load_task)
        with RunSet(at.path, identity, trainer, given.args.resume, stop) as runs:
            yield runs, trainer


class LoadedTasks:
    """Loads the tasks of runs, and keeps the last ones.

    Reusing a task saves work: each load builds the model of a user's file again, and the runtime
    traces each model.
    """

    def __init__(self) -> None:
        self._kept: collections.deque[tuple[Any, Task]] = collections.deque(maxlen=_MAX_KEPT)

    def __call__(self, spec: RunSettings) -> Task:
        """Returns the task of a run."""
        options = spec.algorithm
        key = (
            (spec.task, spec.task_options, spec.data_dir, spec.data),
            (spec.config.seed, spec.config.precision, spec.config.max_examples),
            (spec.config.frozen_layers, spec.config.domain_input),
            options.base_predictors if isinstance(options, EnsembleOptions) else None,
        )
        for kept, task in self._kept:
            if kept == key:
                return task
        task = spec.load_task()
        self._kept.append((key, task))
        return task


class RunTrainer:
    """Trains runs in their folders; see `runset.Trainer`.

    Args:
        load_task: Returns the task of a run; `LoadedTasks` if not given.
    """

    def __init__(
        self,
        runtime: Runtime,
        stop: StopRequest,
        load_task: Optional[Callable[[RunSettings], Task]] = None,
    ) -> None:
        self.load_task = load_task or LoadedTasks()
        self.runtime = runtime
        self.stop = stop
        self._complete: dict[Path, RunSettings] = {}
        self._remarks: set[str] = set()

    def is_complete(self, settings: RunSettings, folder: Path) -> bool:
        """See `runset.Trainer`."""
        if self._complete.get(folder) == settings:
            return True
        run_folder = RunFolder(folder)
        if not run_folder.result.exists():
            # Compare only settings, as another process may be training here.
            run_folder.check(settings, resume=True)
            return False
        if not self._run(settings, folder).is_complete():
            return False
        self._complete[folder] = settings
        return True

    def train(
        self, settings: RunSettings, folder: Path, observers: Sequence[Observer]
    ) -> Sequence[str]:
        """See `runset.Trainer`."""
        run = self._run(settings, folder)
        for text in dict.fromkeys(remark.text for remark in run.parts.remarks):
            if text not in self._remarks:
                self._remarks.add(text)
                tqdm.tqdm.write(f"note: {text}")
        run.run(self.stop, show_progress=False, observers=observers)
        self._complete[folder] = settings
        return [*run.left_out, *(remark.text for remark in run.harm)]

    def _run(self, settings: RunSettings, folder: Path) -> TrainingRun:
        run_folder = RunFolder(folder)
        return TrainingRun(settings, run_folder, self.runtime, True, self.load_task)
