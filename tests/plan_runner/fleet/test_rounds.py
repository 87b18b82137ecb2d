"""Rounds of a fleet: real players in sandboxes, real secure sums, and the runner's results."""

from __future__ import annotations

import json
import shutil

import pytest

from plan_runner.fleet.server import FleetServer
from tests.plan_runner.exports import rehash, write_clients
from tests.plan_runner.fleet.fleet import Fleet, LocalChannel, Told
from tests.plan_runner.harness import call

_CLIENTS = {"ann": [(1.0, 4), (2.0, 5)], "bob": [(3.0, 6)], "cyd": [], "dee": [(0.1, 1)] * 3}


@pytest.fixture(scope="module", params=["secure", "daf"])
def fleet(request, exports, tmp_path_factory):
    """Nodes that play small plans."""
    folder = tmp_path_factory.mktemp(request.param)
    export = folder / "export"
    shutil.copytree(exports[request.param], export)
    rehash(export, privacy={"maximum_clients_per_round": 6})
    made = Fleet(folder / "fleet", export, write_clients(folder / "clients", _CLIENTS))
    yield made
    made.close()


def expected(fleet, folder, cohorts) -> bytes:
    """The state that the runner leads to with the same cohorts."""
    file = folder / "cohorts.txt"
    file.write_text("".join(f"{','.join(names)}\n" for names in cohorts))
    outcome = call(
        f"--plan={fleet.export}",
        f"--clients={fleet.clients}",
        f"--cohorts={file}",
        f"--output={folder / 'run_plan'}",
        "--trust",
    )
    assert outcome.status == 0, outcome
    return (folder / "run_plan" / "server_state.ckpt").read_bytes()


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def test_rounds_are_the_runners_bit_for_bit(fleet, tmp_path):
    told = Told()
    settings = fleet.server_settings(state=tmp_path / "server", cohort_size=4)
    server = FleetServer(settings, LocalChannel(fleet.nodes()), told)
    server.run(3)
    server.close()
    found = (tmp_path / "server" / "server_state.ckpt").read_bytes()
    assert found == expected(fleet, tmp_path, [fleet.names] * 3)
    ours, theirs = metrics(tmp_path / "server"), metrics(tmp_path / "run_plan")
    assert ours == theirs
    assert len(told.lines) == 3
