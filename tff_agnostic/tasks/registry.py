"""Every task by name, and how one is loaded."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.tasks import adult, client_files, digits, toy_regression
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec

TASKS: Registry[TaskSpec] = Registry(
    "task",
    {
        "digits": digits.TASK,
        "toy_regression": toy_regression.TASK,
        "adult": adult.TASK,
        "client_files": client_files.TASK,
    },
)


def load_task(name: str, options: Mapping[str, Any], context: TaskContext) -> Task:
    """Loads a task.

    Args:
        name: Its name in the registry.
        options: Fields of the task's options that differ from their defaults.
        context: What every task is given.

    Raises:
        UserError: If the task or an option is unknown, the data folder is missing or not wanted, or
            the data is malformed.
    """
    spec = TASKS[name]
    if spec.reads_data_dir and context.data_dir is None:
        raise UserError(f"--task={name} reads files: give their folder with --data_dir")
    if context.data_dir is not None:
        if not spec.reads_data_dir:
            raise UserError(f"--data_dir has no effect with --task={name}, which reads no files")
        if not context.data_dir.is_dir():
            raise UserError(f"--data_dir: expected a folder, found none at {context.data_dir}")
    known = Registry(f"option of {name}", {f.name: f for f in dataclasses.fields(spec.options)})
    for option in options:
        _ = known[option]
    return spec.load(spec.options(**options), context)
