"""Options of tasks, on the command line and in the files of runs."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import FlagTable, flags_in_errors, hints_with_flags
from tff_agnostic.program.options.flags import build, checked, option_values
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

# Format version of config.json, and of the settings in an export's manifest.
FORMAT = 1


def check_format(place: object, stated: Any) -> None:
    """Checks the format version of the flags that a run has stored.

    Args:
        place: The file that contains the flags, for the message.
        stated: Format version in the file; None if it has none.
    """
    if stated != FORMAT:
        raise UserError(
            f"{place}: expected format {FORMAT} of this version, found {stated or 'none'}"
        )


@functools.cache
def task_flags() -> FlagTable:
    """Returns the options of all tasks by flag."""
    return FlagTable.join(("task", name, entry.spec.options) for name, entry in DEFAULTS.items())


def check_task_options(task: str, names: Iterable[str]) -> None:
    """Rejects options, by flag, that a task does not have."""
    task_flags().check_used(names, "task", task)


def task_in(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the task's name and the values of its options by flag, from all values of a run."""
    kind = DEFAULTS[values["task"]].spec.options
    return values["task"], option_values(build(kind, checked(kind, values)))


def task_options(task: str, values: Mapping[str, Any]) -> Any:
    """Returns the options of a task.

    Args:
        values: Values by flag that differ from the task's defaults.
    """
    entry = DEFAULTS[task]
    return build(entry.spec.options, values, entry.spec.options(**entry.options))


def load_run_task(task: str, values: Mapping[str, Any], context: TaskContext) -> Task:
    """Loads the task of a run; errors name flags.

    Args:
        values: Values by flag that differ from the task's defaults.
        context: Seed of the run, and paths of the data.
    """
    options = task_options(task, values)
    # This context has no paths, so errors about data files name only the file.
    with flags_in_errors(options, TaskContext(context.seed)):
        loaded = load_task(DEFAULTS[task].task, options, context)

    def remarks() -> list[Remark]:
        return [
            dataclasses.replace(remark, text=hints_with_flags(remark.text, type(options)))
            for remark in loaded.remarks()
        ]

    return dataclasses.replace(loaded, remarks=remarks)
