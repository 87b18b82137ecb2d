"""Every task by name, how a task is loaded, and which split it is evaluated on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np

from tff_agnostic.base.options import Options
from tff_agnostic.data.clients import SelectedClients
from tff_agnostic.data.store import Store
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.tasks import adult, emnist, image_classes, own_data, text_tasks, toy_regression
from tff_agnostic.tasks.stored import TRAIN_SPLIT, SplitOptions
from tff_agnostic.tasks.task import (
    HELDOUT_SPLIT,
    TEST_SPLIT,
    Task,
    TaskContext,
    TaskSpec,
    Use,
)

# Format of config.json, and of the settings in the manifest of an export.
FORMAT = 1
_TRAINED_ON = "train_clients"
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
        "spanish_keyboard": text_tasks.SPANISH_KEYBOARD,
        "fashion_mnist": image_classes.FASHION_MNIST,
        "two_domain_lm": text_tasks.TWO_DOMAIN_LM,
        "unigram": text_tasks.UNIGRAM,
    },
)
_OF_STORES = {"test_split": HELDOUT_SPLIT}
# Divides the training clients, so that the other splits stay unseen.
_DIVISION = "train_share"
# Keeps this draw apart from others that use the run's seed.
_STREAM = 12


def load_task(name: str, options: Union[Options, Mapping[str, Any]], context: TaskContext) -> Task:
    """Loads a task.

    Args:
        name: Name of the task.
        options: Options of the task, or those that differ from its defaults, by name.
        context: Seed and places of the data.
    """
    spec = TASKS[name]
    _check_path(name, "data_dir", "folder", spec.data_dir, context.data_dir, Path.is_dir)
    _check_path(name, "data", "client store", spec.data, context.data, Path.is_file)
    if isinstance(options, Options):
        chosen = options
    else:
        known = Registry(f"option of {name}", dict.fromkeys(spec.option_names))
        for option in options:
            _ = known[option]
        chosen = spec.make_options(options)
    task = spec.load(chosen, context)
    # All tasks on stores share these options: which clients train, and which are evaluated.
    if isinstance(chosen, SplitOptions):
        # Columns of the cohort are called "train": those of an evaluation on the same clients, as
        # of an estimate of their own distribution, have another name.
        name_of_split = _TRAINED_ON if chosen.test_split == TRAIN_SPLIT else chosen.test_split
        task = dataclasses.replace(task, test_split=name_of_split)
        task = divided(task, chosen, context.seed)
    return task


def check_format(place: object, stated: Any) -> None:
    """Checks the format of the stored flags of a run.

    Args:
        place: The file that contains the flags.
        stated: The format according to the file; None if the file states none.
    """
    if stated != FORMAT:
        raise UserError(
            f"{place}: expected format {FORMAT} of this version, found {stated or 'none'}"
        )


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


def heldout_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a task with which it is evaluated on its held-out examples.

    Args:
        given: Options that a user gave.
    """
    wanted = wanted_heldout(name)
    if not wanted:
        raise UserError(
            f"--task={name}: expected a task with a held-out split, to choose settings by, found "
            f"one without: {', '.join(n for n in TASKS if wanted_heldout(n))} have one"
        )
    for field in dataclasses.fields(TASKS[name].options):
        value = given.get(field.name)
        if field.name in wanted and value is not None and value == field.default:
            raise UserError(
                f"--{field.name}={value}: expected the held-out split, found the test split: "
                "settings that are chosen by it have seen it; the default here is "
                f"{wanted[field.name]}"
            )
        if field.name == _DIVISION and value is not None:
            raise UserError(
                f"--{field.name}: expected the held-out split of the store, which settings are "
                "chosen by, found a division of its training clients"
            )
    return {**wanted, **given}


def what_decides_the_split(name: str) -> frozenset[str]:
    """Returns the fields of a task's options that say whom it is evaluated on."""
    return frozenset((*wanted_heldout(name), *_OF_STORES, _DIVISION))


def check_store(path: Optional[Path]) -> None:
    """Checks, before anything is loaded, that a store has held-out clients to choose settings by.

    Args:
        path: The store; None where there is none.
    """
    if path is None:
        return
    splits = Store(path).splits()
    if HELDOUT_SPLIT not in splits:
        raise UserError(
            f"--data: expected a store with clients in the split {HELDOUT_SPLIT}, to choose "
            f"settings by, found the splits {', '.join(splits) or '(none)'} in {path}: import the "
            "data again with a share for it (import_data "
            f"--split=train:0.8,{HELDOUT_SPLIT}:0.1,test:0.1)"
        )


def check_heldout(task: Task, name: str) -> None:
    """Raises a `UserError` if a task, loaded, is evaluated on anything but held-out examples."""
    if task.test_split != HELDOUT_SPLIT:
        raise UserError(
            f"--task={name}: expected to choose settings by the {HELDOUT_SPLIT} split, found "
            f"{task.test_split}"
        )


def wanted_heldout(name: str) -> Mapping[str, Any]:
    """Returns the options with which a task has its held-out split; none if it has no such one."""
    spec = TASKS[name]
    return _OF_STORES if issubclass(spec.options, SplitOptions) else spec.heldout


def divided(task: Task, options: SplitOptions, seed: int) -> Task:
    """Returns a task in which a share of the training clients trains, and the others are tested on.

    Args:
        seed: Seed of the run; each seed has another division.
    """
    share = options.train_share
    if share is None:
        return task
    if options.test_split != TEST_SPLIT:
        raise UserError(
            "--test_split has no effect with --train_share: then training clients are tested on"
        )
    ids = np.array(task.train.client_ids)
    number = round(share * len(ids))
    if not 1 <= number < len(ids):
        raise UserError(
            "--train_share: expected a share that leaves clients to train and others to test on, "
            f"found {share:g}, {number} of {len(ids)} training clients"
        )
    drawn = np.random.default_rng([seed, _STREAM]).permutation(ids).tolist()
    train, test = (SelectedClients(task.train, part) for part in (drawn[:number], drawn[number:]))
    return dataclasses.replace(task, train=train, test=test)
