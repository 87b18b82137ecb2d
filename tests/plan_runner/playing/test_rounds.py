"""Rounds of plans, and their comparison with conformance rounds."""

import math
import shutil

import numpy as np
import pytest

from plan_runner.client import clients_in
from plan_runner.errors import PlanError
from plan_runner.export import open_export, read_arrays
from plan_runner.graph_session import write_checkpoint
from plan_runner.rounds import run_rounds, verify
from plan_runner.tflite import relative_difference
from tests.plan_runner.exports import rehash


def test_round_starts_from_a_given_state(exports, tmp_path):
    export = open_export(exports["daf"])
    clients = clients_in(exports["daf"] / "conformance" / "clients", export.manifest.features)
    # TensorFlow would treat this name as a pattern.
    state = tmp_path / "state[1].ckpt"
    tensors = {"server/0": np.array(5.0, np.float32), "server/1": np.array(7, np.int64)}
    write_checkpoint(state, tensors)
    (result,) = run_rounds(export, [[clients["ann"]]], state)
    assert float(result.state["server/0"]) == 1.5
    assert int(result.state["server/1"]) == 8


def test_round_without_clients_raises(exports):
    with pytest.raises(PlanError, match=r"^round 1: expected at least 1 client, found 0$"):
        list(run_rounds(open_export(exports["daf"]), [[]]))


# --- Conformance rounds


_LOSS = np.array([0.0, np.nan], np.float32)
_OTHER_NAN = _LOSS.copy()
_OTHER_NAN.view(np.uint32)[1] |= 1


@pytest.mark.parametrize(
    ("name", "value", "difference"),
    [
        ("server/0", np.float32(2.5), 0.2),
        ("metrics/loss", np.array([-0.0, np.nan], np.float32), 0.0),
        ("metrics/loss", _OTHER_NAN, 0.0),
        ("server/0", None, math.inf),
        ("server/0", np.float64(2.0), math.inf),
        ("server/0", np.float32(np.nan), math.inf),
        ("server/2", np.float32(2.0), math.inf),
        # No tolerance applies to integers.
        ("server/1", np.array(3), math.inf),
    ],
)
def test_verification_reports_differences(exports, tmp_path, name, value, difference):
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    path = folder / "conformance" / "round_2.npz"
    expected = {**read_arrays(path), name: value}
    np.savez(path, **{name: value for name, value in expected.items() if value is not None})
    rehash(folder)
    first, second, third = verify(open_export(folder))
    assert first.differing == third.differing == {}
    assert second.differing == {name: difference}
    assert second.failing(0.0) == [name]
    assert second.failing(1e30) == ([name] if difference == math.inf else [])
    # With tolerance 0, all bits must be equal.
    assert second.failing(max(difference, 1e-9)) == second.failing(1e30)


@pytest.mark.parametrize(
    ("expected", "actual", "difference"),
    [
        # Differences are relative to the largest expected number.
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([1.0], [4.0], 3.0),
        ([4.0], [1.0], 0.75),
        # The divisor is at least 0.01.
        ([0.0], [1e-9], 1e-7),
        ([0.005], [0.006], 0.1),
        # The divisor is the largest finite number.
        ([2.0, np.inf], [1.5, np.inf], 0.25),
        ([np.inf], [-np.inf], math.inf),
        ([1.0], [np.inf], math.inf),
        ([np.nan], [np.nan], 0.0),
        ([np.nan, 2.0], [np.nan, 1.0], 0.5),
        ([np.nan], [1.0], math.inf),
        (np.array([], np.float32), np.array([], np.float32), 0.0),
        (np.float32(1), np.float64(1), math.inf),
        ([1.0], [[1.0]], math.inf),
    ],
)
def test_relative_difference_equals_hand_computation(expected, actual, difference):
    result = relative_difference(np.asarray(expected), np.asarray(actual))
    assert result == pytest.approx(difference)
