"""Every task by name, and how one is loaded."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.setting_flags import check_type, settings_in
from tff_agnostic.settings import check_values
from tff_agnostic.tasks import (
    adult,
    client_files,
    custom,
    digits,
    emnist,
    fashion_mnist,
    next_word,
    spanish_keyboard,
    stackoverflow,
    text_classifier,
    toy_regression,
    two_domain_lm,
    unigram,
)
from tff_agnostic.tasks.divided import divided
from tff_agnostic.tasks.stored import TRAIN_SPLIT, SplitOptions
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use, option_flag

_TRAINED_ON = "train_clients"

TASKS: Registry[TaskSpec] = Registry(
    "task",
    {
        "digits": digits.TASK,
        "toy_regression": toy_regression.TASK,
        "adult": adult.TASK,
        "client_files": client_files.TASK,
        "custom": custom.TASK,
        "next_word": next_word.TASK,
        "text_classifier": text_classifier.TASK,
        "emnist": emnist.TASK,
        "stackoverflow": stackoverflow.TASK,
        "spanish_keyboard": spanish_keyboard.TASK,
        "fashion_mnist": fashion_mnist.TASK,
        "two_domain_lm": two_domain_lm.TASK,
        "unigram": unigram.TASK,
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
    _check_path(name, "data_dir", "folder", spec.data_dir, context.data_dir, Path.is_dir)
    _check_path(name, "data", "client store", spec.data, context.data, Path.is_file)
    known = Registry(f"option of {name}", {f.name: f for f in dataclasses.fields(spec.options)})
    for option in options:
        _ = known[option]
    chosen = spec.options(**options)
    check_values(chosen, functools.partial(option_flag, name))
    task = spec.load(chosen, context)
    # What tasks on stores have in common: who trains, and who is evaluated.
    if isinstance(chosen, SplitOptions):
        # Columns of the cohort are called "train": those of an evaluation on the same clients, as
        # of an estimate of their own distribution, have another name.
        name_of_split = _TRAINED_ON if chosen.test_split == TRAIN_SPLIT else chosen.test_split
        task = dataclasses.replace(task, test_split=name_of_split)
        task = divided(task, name, chosen, context.seed)
    return task


def option_flags(task: str) -> dict[str, str]:
    """Returns the names of a task's options by flag."""
    return {option_flag(task, f): f.name for f in dataclasses.fields(TASKS[task].options)}


def task_of_flags(flags: Mapping[str, Any], is_of_now: bool) -> tuple[str, dict[str, Any]]:
    """Returns the name of a run's task and all its options, from what config.json holds.

    Args:
        flags: The flags of the run.
        is_of_now: Whether this release wrote them; what another one lacks takes its default.

    Raises:
        UserError: If the task is unknown, or an option of another type.
        KeyError: If a flag is missing that this release writes.
    """
    task = flags["task"]
    options = {}
    for setting in settings_in(TASKS[task].options):
        flag, field = option_flag(task, setting.field), setting.field
        value = flags[flag] if is_of_now else flags.get(flag, field.default)
        value = tuple(value) if isinstance(value, list) else value
        check_type(dataclasses.replace(setting, flag=flag), value)
        options[field.name] = value
    return task, options


def _check_path(
    task: str,
    flag: str,
    what: str,
    use: Use,
    path: Optional[Path],
    is_there: Callable[[Path], bool],
) -> None:
    if path is None:
        if use is Use.REQUIRED:
            raise UserError(f"--task={task} reads a {what}: name it with --{flag}")
    elif use is Use.NO:
        raise UserError(f"--{flag} has no effect with --task={task}, which reads no {what}")
    elif not is_there(path):
        raise UserError(f"--{flag}: expected a {what}, found none at {path}")
