"""Folders of every kind that an earlier state of the code left go on, end and are played as then.

A change of names, modules or structure must not be seen in them.
"""

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from binaries import report, train
from tests.binaries.harness import Caller
from tests.plan_runner.harness import call as run_plan
from tests.releases.kept import EXPORTS, KEPT, RUNS, SEARCHES, copy_of
from tests.selection import has_tff
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.saving.checkpoints import read_checkpoint

# Elsewhere numbers have other last bits, which would tell what noise hides.
_RELEASE_THEN = "2.14"
_LAST = "checkpoints/round_00000006.npz"
# What says when, how long, with which versions, by which command, or follows from rules of today.
_OF_A_RUN = re.compile("seconds|versions|command|trained_with|sentence|outcome")
# What results did not say then.
_NEW = {"constant_answers", "label", "library", "line", "verdict", "way"}


def _assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Compares what JSON holds: numbers up to how processors round them, all else as it is."""
    if isinstance(expected, dict):
        assert [key for key in found if key not in _NEW - set(expected)] == list(expected), where
        for key, value in expected.items():
            if not _OF_A_RUN.search(key):
                _assert_same(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for k, value in enumerate(expected):
            _assert_same(found[k], value, f"{where}/{k}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), where
    else:
        assert found == expected, where


def _assert_same_json(found: Path, expected: Path) -> None:
    here, there = (path.read_text() for path in (found, expected))
    _assert_same(json.loads(here), json.loads(there.replace('"KEPT/', f'"{KEPT}/')))


@pytest.fixture(scope="module")
def call(cohort_runtime) -> Caller:
    """Calls binaries on a running runtime."""
    return Caller({"cohort": cohort_runtime})


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_interrupted_goes_on_to_the_same_end(call: Caller, tmp_path, name):
    _assert_goes_on(call, tmp_path, name)


@pytest.mark.skipif(has_tff(), reason="for the platform that these runs are not of")
@pytest.mark.parametrize("name", ["delta_fl", "private_tree"])
def test_a_run_of_the_other_platform_goes_on(call: Caller, tmp_path, name):
    _assert_goes_on(call, tmp_path, name)


def _assert_goes_on(call: Caller, tmp_path: Path, name: str) -> None:
    run = copy_of(name, tmp_path)
    for path in (run / _LAST, run / "result.json"):
        path.unlink()
    if name.startswith("private") and not tf.__version__.startswith(f"{_RELEASE_THEN}."):
        error = call.refused(tmp_path, train, f"--output_dir={run}", "--resume")
        assert error.startswith(f"tensorflow: expected {_RELEASE_THEN}, with which the private run")
        return
    outcome = call(train, f"--output_dir={run}", "--resume")
    assert outcome.status == 0, outcome
    assert "going on after round 3\n" in outcome.out
    _assert_same_json(run / "result.json", KEPT / name / "result.json")
    leaves = [read_checkpoint(folder / _LAST).leaves for folder in (run, KEPT / name)]
    for leaf, leaf_there in zip(*leaves):
        np.testing.assert_allclose(leaf, leaf_there, rtol=1e-4, atol=1e-5)
    rows, rows_there = (read_history(folder / "metrics.csv") for folder in (run, KEPT / name))
    assert list(rows) == list(rows_there)
    for column, values in rows_there.items():
        np.testing.assert_allclose(rows[column], values, rtol=1e-4, atol=1e-5, err_msg=column)


# What is missing, and the table that is made again.
_MISSING = {
    "tune": (("tuned.json", "trials.csv"), "tuned.json"),
    "compare": (("agnostic_fed_avg/trial_01", "compare.json", "compare.md"), "compare.json"),
    "frontier": (("only_4", "frontier.json", "frontier.md", "frontier.csv"), "frontier.json"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_many_runs_go_on_to_the_same_table(call: Caller, tmp_path, name):
    folder = copy_of(name, tmp_path)
    # Without what files have more of today, such as the verdict of a search.
    assert call(report, f"--run={folder}").out == f"report: {folder / 'report.html'}\n"
    missing, table = _MISSING[name]
    for path in (folder / each for each in missing):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command, *flags = SEARCHES[name]
    binary = importlib.import_module(f"binaries.{command}")
    outcome = call(binary, *flags, f"--output_dir={folder}", "--resume")
    assert outcome.status == 0, outcome
    _assert_same_json(folder / table, KEPT / name / table)


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_played_as_it_was(tmp_path, name):
    outcome = run_plan(f"--plan={copy_of(name, tmp_path)}", "--verify")
    assert outcome.status == 0, outcome
