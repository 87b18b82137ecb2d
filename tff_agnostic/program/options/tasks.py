"""Options of tasks on the command line and in files of runs."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.program.options.flag_table import FlagTable
from tff_agnostic.program.options.flags import build, checked, values_of
from tff_agnostic.tasks.registry import TASKS


@functools.cache
def options_of_tasks() -> FlagTable:
    """Returns the options of all tasks by flag."""
    return FlagTable.join(("task", name, spec.options) for name, spec in TASKS.items())


def check_task_options(task: str, names: Iterable[str]) -> None:
    """Refuses options of tasks, by their flags, that a task does not have."""
    for name in names:
        if name not in TASKS[task].option_names:
            users = [user for _, user in options_of_tasks()[name].users]
            raise UserError(
                f"--{name} has no effect with --task={task}: it needs --task={' or '.join(users)}"
            )


def task_in(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the name of a run's task and the values of its options, from the values of a run."""
    kind = TASKS[values["task"]].options
    return values["task"], values_of(build(kind, checked(kind, values)))


def task_options(task: str, values: Mapping[str, Any]) -> Any:
    """Returns the options of a task.

    Args:
        task: Name of the task.
        values: Values by flag that differ from the task's defaults.
    """
    spec = TASKS[task]
    return build(spec.options, values, spec.make_options())
