"""Metrics among the outputs of a round, whole or by element."""

import shutil

import numpy as np
import pytest

from plan_runner.errors import PlanError
from plan_runner.export import TensorType, open_export
from plan_runner.rounds import other_outputs, run_rounds, with_metrics
from plan_runner.verify import conformance_clients
from tests.plan_runner.exports import rehash

_TYPES = {"m/one": TensorType("float32", ()), "m/two": TensorType("int64", (2,))}
_ONE = {"m/one": np.float32(0.5)}
_TWO = {"m/two/0": np.int64(3), "m/two/1": np.int64(4)}


def test_scalars_become_the_metrics():
    found = with_metrics({"state": np.zeros(3)}, {**_ONE, **_TWO, "m/two/all": 7}, _TYPES, "here")
    assert set(found) == {"state", "m/one", "m/two"}
    assert found["m/one"] == np.float32(0.5)
    assert (found["m/two"].tolist(), found["m/two"].dtype) == ([3, 4], np.int64)
    assert other_outputs({**_ONE, **_TWO, "m/two/all": 7}, _TYPES) == {"m/two/all": 7}


def test_a_whole_metric_and_one_in_the_checkpoint_alone():
    written = {"m/one": np.asarray(np.float32(0.5)), "m/two": np.array([3, 4])}
    assert with_metrics(written, {}, _TYPES, "here") == written
    found = with_metrics(written, {"m/two": np.array([3, 4])}, _TYPES, "here")
    assert found["m/two"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"m/two/0": np.int64(3)}, "m/two: expected 2 scalars, one for each element, found 1"),
        ({**_TWO, "m/two/1": np.zeros(2)}, "m/two: expected 2 scalars"),
        ({**_TWO, "m/two/1": np.int64(5)}, "m/two: expected the same value in"),
        ({"m/one": np.float64(0.5)}, "m/one: expected the same value in"),
    ],
)
def test_outputs_that_do_not_fit(outputs, message):
    written = {"m/one": np.asarray(np.float32(0.5)), "m/two": np.array([3, 4])}
    with pytest.raises(PlanError, match=f"^here: {message}"):
        with_metrics(written, outputs, _TYPES, "here")


def test_more_clients_than_secure_sums_have_room_for(exports, tmp_path):
    folder = shutil.copytree(exports["secure"], tmp_path / "export")
    rehash(folder, privacy={"maximum_clients_per_round": 2})
    export = open_export(folder)
    clients = conformance_clients(export)
    assert len(list(run_rounds(export, [clients[:2]]))) == 1
    with pytest.raises(PlanError, match=r"^round 2: expected at most 2 clients, .* found 3; .*"):
        list(run_rounds(export, [clients[:2], clients]))
