"""A fleet computes the same bits as `run_plan`, and `import_state` makes a run of its state."""

from __future__ import annotations

import json
import shutil

import pytest

from binaries import export, import_state, train
from fleet.server import FleetServer
from fleet.settings import PlanSettings, manifest_sha256
from tests.fleet.fleet import Fleet, LocalChannel, Recorder
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX
from tests.plan_runner.harness import call as run_plan
from tests.support.commands import Caller
from tff_agnostic.base.files import read_json

_DIGITS = (
    "--task=digits",
    "--num_clients=4",
    "--num_test_clients=2",
    "--clients_per_round=4",
    "--max_examples=20",
)


@pytest.mark.slow
def test_fleet_matches_run_plan_and_imports_back(call: Caller, tmp_path):
    places = [f"--output_dir={tmp_path / 'export'}", f"--clients_dir={tmp_path / 'clients'}"]
    call.ok(export, *_DIGITS, "--backend=flower", *places)
    evaluation = tmp_path / "evaluation" / "plan"
    kind = ["--kind=evaluation", "--backend=flower", f"--output_dir={evaluation.parent}"]
    call.ok(export, *_DIGITS, *kind)
    (tmp_path / "clients/cohorts.txt").rename(tmp_path / "cohorts.txt")
    fleet = Fleet(tmp_path / "fleet", tmp_path / "export" / "plan", tmp_path / "clients")
    # Nodes get no state: they do not need it, and it may contain the key of the server's noise.
    node_plan = tmp_path / "of_nodes"
    shutil.copytree(fleet.export, node_plan)
    (node_plan / "server_state.ckpt").unlink()
    every_round = PlanSettings(evaluation, manifest_sha256(evaluation), every=1)
    try:
        channel, log = (
            LocalChannel(fleet.nodes(export=node_plan, evaluation=every_round)),
            Recorder(),
        )
        settings = fleet.server_settings(cohort_size=4, evaluation=every_round)
        server = FleetServer(settings, channel, log, fleet.player)
        server.run(2)
        server.close()
    finally:
        fleet.close()
    folder = fleet.folder / "server"
    # `run_plan` executes the same rounds.
    plan = f"--plan={fleet.export}"
    clients = f"--clients={tmp_path / 'clients'}"
    _ok(run_plan(plan, clients, "--rounds=2", f"--output={tmp_path / 'run_plan'}"))
    state, runners_state = folder / "server_state.ckpt", tmp_path / "run_plan/server_state.ckpt"
    assert state.read_bytes() == runners_state.read_bytes()
    assert _metrics(folder / "metrics.jsonl") == _metrics(tmp_path / "run_plan/metrics.jsonl")
    # The fleet evaluates after each round; `run_plan` evaluates the final state.
    measured = [f"--plan={evaluation}", clients, f"--state={runners_state}"]
    _ok(run_plan(*measured, f"--output={tmp_path / 'measured'}"))
    first, last = _metrics(folder / "evaluation_metrics.jsonl")
    assert first != last
    assert [last] == _metrics(tmp_path / "measured/metrics.jsonl")
    # Import the fleet's state as a run, and resume the run.
    back, at = tmp_path / "back", f"--server_state={state}"
    call.ok(import_state, plan, at, f"--output_dir={back}", *TRUST_WITHOUT_SANDBOX)
    shutil.rmtree(fleet.folder)
    call.ok(train, f"--output_dir={back}", "--resume", "--rounds=3")
    assert read_json(back / "result.json")["rounds"] == 3


def _metrics(path):
    return [json.loads(line)["metrics"] for line in path.read_text().splitlines()]


def _ok(outcome) -> str:
    assert outcome.status == 0, outcome
    return outcome.out
