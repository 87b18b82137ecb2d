"""Arguments of functions, which are the flags of commands: whose they are, and of which type."""

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.errors import UserError
from tff_agnostic.run.options import RunConfig, algorithm_of_flag, settings_of_runs
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.settings import Setting, check_type, parsed, settings_in
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import option_flag

# A path that a caller names.
PathName = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a function, by whom they are for.

    Attributes:
        settings: Settings of runs, by flag.
        task_options: Options of the task, by field.
        runtime: Options of the runtime, by field.
    """

    settings: dict[str, Any]
    task_options: dict[str, Any]
    runtime: dict[str, Any]


def sorted_arguments(
    task: str, algorithms: Sequence[str], arguments: Mapping[str, Any]
) -> Arguments:
    """Returns what a caller gives for a run, or for several; None is as if it were not given.

    Args:
        task: Name of the task.
        algorithms: Names or Python files of the algorithms, which may have settings of their own.
        arguments: Values by flag.

    Raises:
        UserError: If the task or an argument is unknown, a value is of another type, or an option
            is of another task.
    """
    options = _options_of(task)
    settings = known_settings(algorithms)
    runtime = {setting.flag: setting for setting in settings_in(RuntimeOptions)}
    found = Arguments({}, {}, {})
    for flag, value in arguments.items():
        if value is None:
            continue
        if flag in settings:
            found.settings[flag] = checked(settings[flag], value)
        elif flag in runtime:
            found.runtime[flag] = checked(runtime[flag], value)
        elif flag in options:
            found.task_options[options[flag].field.name] = checked(options[flag], value)
        else:
            raise _unknown(task, flag, [*settings, *runtime, *options])
    return found


def task_arguments(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a task by field; None is as if it were not given.

    Args:
        task: Name of the task.
        arguments: Values by flag.

    Raises:
        UserError: As `sorted_arguments` does, and if a flag is none of the task's.
    """
    options = _options_of(task)
    found = {}
    for flag, value in arguments.items():
        if flag not in options:
            raise _unknown(task, flag, list(options))
        if value is not None:
            found[options[flag].field.name] = checked(options[flag], value)
    return found


def known_settings(algorithms: Sequence[str]) -> dict[str, Setting]:
    """Returns every setting of runs by its flag, those of users' algorithms among them.

    Raises:
        UserError: If there is no such algorithm.
    """
    kinds = [RunConfig, *(kind for _, _, kind in settings_of_runs())]
    kinds += [algorithm_of_flag(name).options for name in algorithms]
    return {setting.flag: setting for kind in kinds for setting in settings_in(kind)}


def checked(setting: Setting, value: Any) -> Any:
    """Returns a value in its setting's own type; a list may stand for a tuple, a path for a text.

    Raises:
        UserError: If it is of another type.
    """
    if isinstance(value, (list, tuple)):
        value = tuple(map(_plain, value))
    value = _plain(value)
    check_type(setting, value)
    return parsed(setting, value)


def path_of(name: Optional[PathName]) -> Optional[Path]:
    """Returns a path, None if none is named."""
    return None if name is None else Path(name)


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _options_of(task: str) -> dict[str, Setting]:
    _ = TASKS[task]
    return {flag: setting for name, flag, setting in _task_options() if name == task}


def _task_options() -> Iterator[tuple[str, str, Setting]]:
    for task, spec in TASKS.items():
        for setting in settings_in(spec.options):
            flag = option_flag(task, setting.field)
            yield task, flag, dataclasses.replace(setting, flag=flag)


def _unknown(task: str, flag: str, known: Sequence[str]) -> UserError:
    if any(flag == other for _, other, _ in _task_options()):
        return UserError(f"--{flag} has no effect with --task={task}")
    nearest = difflib.get_close_matches(flag, known, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return UserError(f"unknown argument {flag!r}: {meant}`./run train --help` lists them")
