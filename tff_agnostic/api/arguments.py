"""Arguments of functions, which are the flags of commands: whose they are, and of which type."""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.algorithms.user_algorithm import is_user_file
from tff_agnostic.errors import UserError
from tff_agnostic.run.options import (
    options_of_runs,
    options_of_runtimes,
    options_of_task,
    options_of_tasks,
)
from tff_agnostic.settings import OptionTable

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
    settings, runtime, of_tasks = (
        known_settings(algorithms),
        options_of_runtimes(),
        options_of_tasks(),
    )
    by_flag = {flag: value for flag, value in arguments.items() if value is not None}
    known = {*settings, *runtime, *of_tasks}
    for flag in by_flag:
        if flag not in known:
            raise _unknown(flag, known)

    def of(table: OptionTable) -> dict[str, Any]:
        return table.from_arguments({f: v for f, v in by_flag.items() if f in table})

    return Arguments(of(settings), options_of_task(task, of(of_tasks)), of(runtime))


def task_arguments(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a task by field; None is as if it were not given.

    Args:
        task: Name of the task.
        arguments: Values by flag.

    Raises:
        UserError: As `sorted_arguments` does, and if a flag is none of the task's.
    """
    options = options_of_tasks()
    for flag in arguments:
        if flag not in options:
            raise _unknown(flag, options)
    return options_of_task(task, options.from_arguments(arguments))


def known_settings(algorithms: Sequence[str]) -> OptionTable:
    """Returns every setting of runs by its flag, those of users' algorithms among them.

    Raises:
        UserError: If there is no such algorithm.
    """
    return options_of_runs(filter(is_user_file, algorithms))


def path_of(name: Optional[PathName]) -> Optional[Path]:
    """Returns a path, None if none is named."""
    return None if name is None else Path(name)


def _unknown(flag: str, known: Iterable[str]) -> UserError:
    nearest = difflib.get_close_matches(flag, known, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return UserError(f"unknown argument {flag!r}: {meant}`./run train --help` lists them")
