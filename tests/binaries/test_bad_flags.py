"""Flags that are wrong: one line, status 2, and nothing is written or started."""

import subprocess
import sys

import pytest

from binaries import compare, evaluate, train
from tests import golden
from tests.binaries.harness import ROOT, TOY, Caller


@pytest.fixture
def call() -> Caller:
    """Calls that start nothing."""
    return Caller(None)


@golden.arguments
def test_what_is_unknown_is_told_with_the_nearest_names(call, folder, arguments):
    return call.refused(folder, train, *arguments)


@golden.arguments
def test_a_value_out_of_range_or_of_another_type(call, folder, arguments):
    return call.refused(folder, train, *arguments)


@golden.arguments
def test_a_flag_without_effect(call, folder, arguments):
    return call.refused(folder, train, *arguments)


@golden.arguments
def test_what_cannot_be_compared(call, folder, arguments):
    return call.refused(folder, compare, *arguments)


def test_evaluate_has_no_flags_of_training(call, folder):
    assert call.refused(folder, evaluate, "--window=3").startswith("Unknown command line flag 'win")
    assert call.refused(folder, evaluate, "run").startswith("expected flags only, found 'run'")


def test_seeds_of_trials_stay_in_range(call, folder):
    message = call.refused(folder, compare, *TOY, "--seed=2147483647", "--trials=2")
    assert message == "--seed: expected at most 2147483647, found 2147483648"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "none: the commands are base_predictors, compare, "),
        (("trian",), "trian: did you mean train? "),
    ],
)
def test_what_is_no_command_is_one_line(names, found):
    process = subprocess.run(
        [sys.executable, "-m", "binaries", *names], capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 2
    assert process.stderr.startswith(f"error: expected a command, found {found}")
    assert process.stderr.count("\n") == 1
