"""What a run is, as flags: a task with its options, and a configuration."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.data.clients import FirstExamples
from tff_agnostic.models.precision import computing_in
from tff_agnostic.program.config import RunConfig
from tff_agnostic.tasks.registry import TASKS, load_task
from tff_agnostic.tasks.task import Task, TaskContext, option_flag

_CONFIG_FIELDS = tuple(field.name for field in dataclasses.fields(RunConfig))


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """A run, resolved: no value is left to a default.

    Attributes:
        task: Name of the task.
        task_options: Every option of the task.
        data_dir: Folder with the task's files, absolute.
        data: The client store, absolute.
        config: Everything else.
    """

    task: str
    task_options: Mapping[str, Any]
    data_dir: Optional[str]
    data: Optional[str]
    config: RunConfig

    def flags(self) -> dict[str, Any]:
        """Returns every flag and its value; what config.json holds."""
        options = {
            option_flag(self.task, field): self.task_options[field.name]
            for field in dataclasses.fields(TASKS[self.task].options)
        }
        flags = {"task": self.task, "data_dir": self.data_dir, "data": self.data, **options}
        for name, value in dataclasses.asdict(self.config).items():
            flags[name] = list(value) if isinstance(value, tuple) else value
        return flags

    def load_task(self) -> Task:
        """Loads the task; see `tasks.registry.load_task`."""
        context = TaskContext(self.config.seed, _path(self.data_dir), _path(self.data))
        with computing_in(self.config.precision):
            task = load_task(self.task, self.task_options, context)
        if self.config.max_examples is None:
            return task
        return dataclasses.replace(task, train=FirstExamples(task.train, self.config.max_examples))


def resolve(
    task: str,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path] = None,
    data: Optional[Path] = None,
) -> RunSpec:
    """Fills what was not given: first from the task's defaults, then from `RunConfig`'s.

    Args:
        task: Name of the task.
        given: Fields of `RunConfig` that were given.
        task_options: Options of the task that were given.
        data_dir: Folder with the task's files.
        data: The client store.

    Raises:
        UserError: If a name is unknown or a value is out of range.
    """
    spec = TASKS[task]
    algorithm = given.get("algorithm", spec.defaults.get("algorithm", RunConfig.algorithm))
    config = RunConfig(**{**spec.defaults, **spec.algorithm_defaults.get(algorithm, {}), **given})
    options = dataclasses.asdict(spec.options(**task_options))
    for field in dataclasses.fields(spec.options):
        if field.metadata["is_path"]:
            options[field.name] = _absolute(_path(options[field.name]))
    return RunSpec(task, options, _absolute(data_dir), _absolute(data), config)


def from_flags(flags: Mapping[str, Any]) -> RunSpec:
    """Returns the spec whose `flags()` these are.

    Raises:
        UserError: If the task is unknown or a value is out of range.
        KeyError: If a flag is missing.
    """
    task = flags["task"]
    options = {
        field.name: flags[option_flag(task, field)]
        for field in dataclasses.fields(TASKS[task].options)
    }
    values = {name: flags[name] for name in _CONFIG_FIELDS}
    config = RunConfig(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    )
    return RunSpec(task, options, flags["data_dir"], flags["data"], config)


def _path(text: Optional[str]) -> Optional[Path]:
    return Path(text) if text is not None else None


def _absolute(path: Optional[Path]) -> Optional[str]:
    # Resolved: however a file is named, it is the same run.
    return str(path.resolve()) if path is not None else None
