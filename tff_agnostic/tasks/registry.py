"""Registry of the tasks; loads a task by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.base.options import OptionError, Options, Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.tasks import adult, emnist, image_classes, own_data, text_tasks, toy_regression
from tff_agnostic.tasks.stored import SplitOptions, with_split
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

TASKS: Registry[TaskSpec] = Registry(
    "task",
    {
        "digits": image_classes.DIGITS,
        "toy_regression": toy_regression.TASK,
        "adult": adult.TASK,
        "custom": own_data.CUSTOM,
        "next_word": text_tasks.NEXT_WORD,
        "text_classifier": text_tasks.TEXT_CLASSIFIER,
        "emnist": emnist.TASK,
        "stackoverflow": text_tasks.STACKOVERFLOW,
        "fashion_mnist": image_classes.FASHION_MNIST,
        "unigram": text_tasks.UNIGRAM,
    },
)


def load_task(name: str, options: Union[Options, Mapping[str, Any]], context: TaskContext) -> Task:
    """Returns a loaded task.

    Args:
        options: Options of the task, or a mapping of the options that differ from the defaults.
        context: Seed, and paths to the data.
    """
    spec = TASKS[name]
    _check_place("data_dir", "folder", spec.data_dir, context.data_dir, Path.is_dir)
    _check_place("data", "client store", spec.data, context.data, Path.exists)
    if not isinstance(options, Options):
        options = spec.make_options(name, options)
    task = spec.load(options, context)
    return with_split(task, options, context.seed) if isinstance(options, SplitOptions) else task


def _check_place(
    field: str, noun: str, use: Use, path: Optional[Path], exists: Callable[[Path], bool]
) -> None:
    if path is None:
        if use is Use.REQUIRED:
            raise OptionError(field, f"a {noun}, which this task reads", Verbatim("none"))
    elif use is Use.NO:
        raise OptionError(field, f"no value, as this task reads no {noun}", path)
    elif not exists(path):
        raise OptionError(field, f"a {noun}", Verbatim(f"none at {path}"))
