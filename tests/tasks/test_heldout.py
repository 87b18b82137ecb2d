"""Settings are chosen by clients who neither train nor belong to the test."""

import dataclasses

import pytest

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


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("digits", {"heldout_share": 0.0}, "--digits_heldout_share=0.0: .*found the test split"),
        ("emnist", {"test_split": "test"}, "--emnist_test_split=test: .*found the test split"),
        ("emnist", {"train_share": 0.8}, "--emnist_train_share: .*a division"),
        ("toy_regression", {}, "--task=toy_regression: .*one without: digits, adult, custom"),
    ],
)
def test_the_test_split_is_refused(name, given, found):
    with pytest.raises(UserError, match=found):
        heldout_options(name, given)


def test_a_task_that_evaluates_on_others_is_refused():
    task = make_task("ab")
    check_heldout(dataclasses.replace(task, test_split="heldout"), "mine")
    for split in ("test", "train_clients"):
        with pytest.raises(UserError, match=f"by the heldout split, found {split}"):
            check_heldout(dataclasses.replace(task, test_split=split), "mine")
