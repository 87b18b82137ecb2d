"""Rounds of the two kinds of plans, against values worked out by hand."""

import numpy as np
import pytest

from plan_runner.client import clients_in
from plan_runner.errors import PlanError
from plan_runner.export import open_export
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from plan_runner.rounds import run_rounds
from plan_runner.verify import conformance_clients, verify
from tests.plan_runner.exports import MEANS, SECURE_MEANS, STATE


@pytest.mark.parametrize(("profile", "means"), [("daf", MEANS), ("secure", SECURE_MEANS)])
def test_rounds_follow_the_contract(exports, profile, means):
    export = open_export(exports[profile])
    clients = conformance_clients(export)
    results = list(run_rounds(export, [clients] * 3))
    assert [float(result.state["server/0"]) for result in results] == means
    assert [int(result.state["server/1"]) for result in results] == [1, 2, 3]
    assert [int(result.metrics["metrics/count"]) for result in results] == [3, 3, 3]
    assert {(result.number, result.clients) for result in results} == {(1, 3), (2, 3), (3, 3)}


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_the_conformance_rounds_match(exports, profile):
    checks = list(verify(open_export(exports[profile])))
    assert [check.differing for check in checks] == [{}, {}, {}]
    assert [check.tensors for check in checks] == [4 if profile == "daf" else 3] * 3


def test_bytes_are_those_of_the_checkpoints_and_of_packed_secure_values(exports):
    daf, secure = (
        next(run_rounds(export, [conformance_clients(export)]))
        for export in (open_export(exports["daf"]), open_export(exports["secure"]))
    )
    assert daf.bytes_down == secure.bytes_down > 4
    assert daf.bytes_up > 12
    # Three clients of 8 bits need a modulus of 10 bits: two bytes for each of two tensors.
    assert secure.bytes_up == 4


def test_a_client_alone_and_another_state(exports, tmp_path):
    export = open_export(exports["daf"])
    clients = clients_in(exports["daf"] / "conformance" / "clients", export.manifest.features)
    # A name that TensorFlow would take for a pattern.
    state = tmp_path / "state[1].ckpt"
    plain = tmp_path / "plain"
    tensors = {"server/0": np.array(5.0, np.float32), "server/1": np.array(7, np.int64)}
    write_checkpoint(plain, tensors)
    plain.rename(state)
    (result,) = run_rounds(export, [[clients["ann"]]], state)
    assert float(result.state["server/0"]) == 1.5
    assert int(result.state["server/1"]) == 8


def test_going_on_from_a_saved_state_is_going_on(exports, tmp_path):
    export = open_export(exports["secure"])
    cohorts = [conformance_clients(export)] * 3
    *_, whole = run_rounds(export, cohorts)
    *_, first = run_rounds(export, cohorts[:2])
    write_checkpoint(tmp_path / "state", first.state)
    assert set(read_checkpoint(tmp_path / "state", "state")) == set(STATE)
    (second,) = run_rounds(export, cohorts[2:], tmp_path / "state")
    assert second.state == whole.state


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_a_round_without_clients_is_refused(exports, profile):
    with pytest.raises(PlanError, match=r"^round 1: expected at least 1 client, found 0$"):
        list(run_rounds(open_export(exports[profile]), [[]]))
