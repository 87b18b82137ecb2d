"""Held-out splits: the examples for choosing settings.

Held-out clients are neither in training nor in the test split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import load_store
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.tasks.stored import SplitOptions
from tff_agnostic.tasks.task import HELDOUT_SPLIT, Task

_STORE_OPTIONS = {"test_split": HELDOUT_SPLIT}
# Option that evaluates on a part of the training clients, so that other splits remain unseen.
_DIVISION = "train_share"


def heldout_defaults(task: str) -> Mapping[str, Any]:
    """Returns the options that select a task's held-out split; empty if it has none."""
    entry = DEFAULTS[task]
    return _STORE_OPTIONS if issubclass(entry.spec.options, SplitOptions) else entry.heldout


def split_options(task: str) -> frozenset[str]:
    """Returns the names of the options that select a task's evaluated clients."""
    return frozenset((*heldout_defaults(task), *_STORE_OPTIONS, _DIVISION))


def heldout_options(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that evaluate a task on its held-out examples."""
    defaults = heldout_defaults(task)
    if not defaults:
        raise UserError(
            f"--task={task}: expected a task with a held-out split, on which settings are chosen, "
            f"found one without: {', '.join(n for n in DEFAULTS if heldout_defaults(n))} have one"
        )
    for field in dataclasses.fields(DEFAULTS[task].spec.options):
        value = given.get(field.name)
        if field.name in defaults and value is not None and value == field.default:
            raise UserError(
                f"--{field.name}={value}: expected the held-out split, found the test split: "
                "settings must not be chosen on test examples; the default here is "
                f"{defaults[field.name]}"
            )
        if field.name == _DIVISION and value is not None:
            raise UserError(
                f"--{field.name}: expected none, as settings are chosen on the held-out split of "
                "the store, found a division of its training clients"
            )
    return {**defaults, **given}


def check_store(path: Optional[Path]) -> None:
    """Checks that a store has held-out clients, before anything is loaded.

    Args:
        path: The store; None if the task reads none.
    """
    if path is None:
        return
    splits = load_store(path).splits()
    if HELDOUT_SPLIT not in splits:
        raise UserError(
            f"--data: expected a store with clients in the split {HELDOUT_SPLIT}, on which "
            f"settings are chosen, found the splits {', '.join(splits) or '(none)'} in {path}: "
            "import the data again with a share for it (import_data "
            f"--split=train:0.8,{HELDOUT_SPLIT}:0.1,test:0.1)"
        )


def check_heldout(task: Task, name: str) -> None:
    """Checks that a loaded task is evaluated on held-out examples."""
    if task.test_split != HELDOUT_SPLIT:
        raise UserError(
            f"--task={name}: expected evaluation on the {HELDOUT_SPLIT} split, found the split "
            f"{task.test_split}"
        )
