"""Resumed runs equal uninterrupted runs."""

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.support.commands import tree
from tests.support.runs import ROUNDS, assert_same_run, round_numbers, stopped, train
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.saving.checkpoints import CheckpointFolder, newest_checkpoint
from tff_agnostic.training.evaluate import Evaluator


@pytest.mark.slow_cases("1", "5")
@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_stopped_run_resumes_to_equal_bytes(cohort_runtime, whole, tmp_path, stop_after):
    stopped(cohort_runtime, tmp_path / "run", stop_after)
    assert not (tmp_path / "run" / "result.json").exists()
    train(cohort_runtime, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
def test_crash_between_checkpoints_does_not_change_results(cohort_runtime, whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    # metrics.csv has rows after the newest checkpoint, and its last row is incomplete.
    (path / "result.json").unlink()
    for name in ("round_00000006.npz", "round_00000007.npz"):
        (path / "checkpoints" / name).unlink()
    # The run was killed while it wrote its model.
    (path / "model" / "model_card.json").unlink()
    (path / "model" / "model.keras").rename(path / "model" / ".model.keras.77.tmp")
    assert round_numbers(list((path / "checkpoints").iterdir())) == [3]
    content = (path / "metrics.csv").read_bytes()
    (path / "metrics.csv").write_bytes(content[:-25])
    train(cohort_runtime, path, resume=True)
    assert_same_run(path, whole)


@pytest.mark.slow
def test_extended_run_equals_a_longer_run(cohort_runtime, whole, tmp_path):
    path = tmp_path / "run"
    train(cohort_runtime, path, rounds=3)
    assert read_json(path / "result.json")["rounds"] == 3
    train(cohort_runtime, path, resume=True)
    assert_same_run(path, whole)


@pytest.mark.slow
def test_earlier_evaluations_stay_when_period_changes(cohort_runtime, whole, tmp_path, capsys):
    path = tmp_path / "run"
    train(cohort_runtime, path, rounds=5)
    train(cohort_runtime, path, resume=True, evaluate_every=3)
    assert (
        "--evaluate_every was 2 until now and is 3: evaluations of earl" in capsys.readouterr().out
    )
    # Resume again: by now, config.json has the new period only.
    train(cohort_runtime, path, resume=True, evaluate_every=3, rounds=10)
    columns, expected = (read_history(p / "metrics.csv")["test/loss"] for p in (path, whole))
    # The evaluations of rounds 5 and 7, which were last rounds, are dropped; those due in rounds 2
    # and 4 are kept.
    assert (np.flatnonzero(~np.isnan(columns)) + 1).tolist() == [2, 4, 6, 9, 10]
    np.testing.assert_array_equal(columns[[1, 3, 5]], expected[[1, 3, 5]])


@pytest.mark.slow
def test_extended_run_evaluates_the_sample_again(cohort_runtime, tmp_path):
    whole, longer, killed = (tmp_path / name for name in ("whole", "longer", "killed"))
    sampled = {"evaluation_clients": 2}
    train(cohort_runtime, whole, **sampled)
    # Round 4 is the shorter run's last one, so this run evaluates it on all clients; the whole run
    # evaluates it on two.
    train(cohort_runtime, longer, rounds=4, **sampled)
    overall = (longer / "metrics.csv").read_bytes()
    assert not (whole / "metrics.csv").read_bytes().startswith(overall)
    shutil.copytree(longer, killed)
    train(cohort_runtime, longer, resume=True, **sampled)
    assert_same_run(longer, whole)
    # Restore the folder after a kill between writing the changed row and the new config.
    lines = (whole / "metrics.csv").read_bytes().splitlines(keepends=True)
    (killed / "metrics.csv").write_bytes(b"".join(lines[:5]))
    again = tmp_path / "again"
    shutil.copytree(killed, again)
    train(cohort_runtime, killed, resume=True, **sampled)
    assert_same_run(killed, whole)
    # The shorter run can also be repeated.
    train(cohort_runtime, again, resume=True, rounds=4, **sampled)
    assert (again / "metrics.csv").read_bytes() == overall


@pytest.mark.slow
def test_each_evaluation_runs_once(cohort_runtime, tmp_path):
    measure = mock.patch.object(Evaluator, "measure", autospec=True, side_effect=Evaluator.measure)
    with measure as measured:
        train(cohort_runtime, tmp_path, evaluation_clients=2)
    calls = [(len(call.args[1]), call.args[2]) for call in measured.call_args_list]
    # Rounds 2, 4, 6 and 7 are evaluated, and so is the initial model, because a lambda ends near 0.
    assert calls == [(1, False)] * 3 + [(1, True)] * 2


def _refused(runtime: Any, path: Path, message: str) -> None:
    before = tree(path)
    with pytest.raises(UserError, match=message):
        train(runtime, path, resume=True, rounds=ROUNDS + 1)
    assert tree(path) == before


@pytest.mark.slow
def test_rejects_missing_rows(cohort_runtime, whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(lines[:3]))
    _refused(cohort_runtime, path, "expected rows of rounds 1 to 7, as the checkpoint says")


@pytest.mark.slow
def test_rejects_checkpoints_of_other_runs(cohort_runtime, whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    last = newest_checkpoint(path / "checkpoints")
    for leaves, trained_with, message in (
        (last.leaves, {}, "08.npz: expected a checkpoint with the settings of its run, found none"),
        (last.leaves[1:], last.trained_with, "expected the state of this model and algorithm"),
    ):
        folder = CheckpointFolder(path / "checkpoints", keep=9, trained_with=trained_with)
        folder.save(8, leaves, {})
        _refused(cohort_runtime, path, message)
