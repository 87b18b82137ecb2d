"""Settings are chosen by clients who neither train nor belong to the test."""

import dataclasses

import pytest

from tests import golden
from tests.run.harness import make_task
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.registry import (
    TASKS,
    check_heldout,
    heldout_options,
    what_decides_the_split,
)
from tff_agnostic.tasks.task import Use


@pytest.mark.parametrize("name", [name for name, spec in TASKS.items() if spec.data is not Use.NO])
def test_tasks_on_stores_have_a_held_out_split(name):
    assert heldout_options(name, {}) == {"test_split": "heldout"}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("digits", {}, {"heldout_share": 0.25}),
        ("digits", {"heldout_share": 0.1, "keep": ""}, {"heldout_share": 0.1, "keep": ""}),
        ("adult", {"ridge": 0.5}, {"heldout_share": 0.2, "ridge": 0.5}),
        ("emnist", {"test_split": "heldout"}, {"test_split": "heldout"}),
    ],
)
def test_what_is_given_stays(name, given, expected):
    assert heldout_options(name, given) == expected
    assert set(expected) - {"keep", "ridge"} <= what_decides_the_split(name)


@golden.values
def test_the_test_split_is_refused(case):
    name, given = case
    return golden.refusal(heldout_options, name, given)


def test_a_task_that_evaluates_on_others_is_refused():
    task = make_task("ab")
    check_heldout(dataclasses.replace(task, test_split="heldout"), "mine")
    for split in ("test", "train_clients"):
        with pytest.raises(UserError, match=f"by the heldout split, found {split}"):
            check_heldout(dataclasses.replace(task, test_split=split), "mine")
