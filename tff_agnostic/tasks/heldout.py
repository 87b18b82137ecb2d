"""Whom a task is evaluated on while its settings are chosen: never its test clients."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.data.store import Store
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.stored import SplitOptions
from tff_agnostic.tasks.task import HELDOUT_SPLIT, Task, option_flag

_OF_STORES = {"test_split": HELDOUT_SPLIT}
# Divides the training clients, so that nobody looks at the other splits.
_DIVISION = "train_share"


def heldout_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a task with which it is evaluated on its held-out examples.

    Args:
        name: The task.
        given: Options that a user gave, by field.

    Raises:
        UserError: If the task has no held-out examples, or what was given asks for others.
    """
    wanted = _wanted(name)
    if not wanted:
        raise UserError(
            f"--task={name}: expected a task with a held-out split, to choose settings by, found "
            f"one without: {', '.join(n for n in TASKS if _wanted(n))} have one"
        )
    for field in dataclasses.fields(TASKS[name].options):
        flag, value = option_flag(name, field), given.get(field.name)
        if field.name in wanted and value is not None and value == field.default:
            raise UserError(
                f"--{flag}={value}: expected the held-out split, found the test split: settings "
                f"that are chosen by it have seen it; the default here is {wanted[field.name]}"
            )
        if field.name == _DIVISION and value is not None:
            raise UserError(
                f"--{flag}: expected the held-out split of the store, which settings are chosen "
                "by, found a division of its training clients"
            )
    return {**wanted, **given}


def what_decides_the_split(name: str) -> frozenset[str]:
    """Returns the fields of a task's options that say whom it is evaluated on."""
    return frozenset((*_wanted(name), *_OF_STORES, _DIVISION))


def check_store(path: Optional[Path]) -> None:
    """Checks, before anything is loaded, that a store has somebody to choose settings by.

    Args:
        path: The store; None where there is none.

    Raises:
        UserError: If it cannot be read, or nobody is in its held-out split.
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


def _wanted(name: str) -> Mapping[str, Any]:
    spec = TASKS[name]
    return _OF_STORES if issubclass(spec.options, SplitOptions) else spec.heldout
