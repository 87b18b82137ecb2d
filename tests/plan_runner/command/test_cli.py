"""The command line of the runner, called in this process."""

import json
import shutil

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from plan_runner import cli, plan_pb2
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from tests.plan_runner.exports import (
    CLIENTS,
    STATE,
    encoded,
    example,
    rehash,
    write_client,
    write_clients,
)
from tests.plan_runner.harness import call
from tests.support import golden


@pytest.fixture
def clients(tmp_path):
    return write_clients(tmp_path / "clients", CLIENTS)


@pytest.fixture
def run(exports, clients, tmp_path):
    def run(*arguments, profile="daf", folder="output"):
        places = [f"--plan={exports[profile]}", f"--clients={clients}"]
        return call(*places, f"--output={tmp_path / folder}", *arguments)

    return run


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder):
    tensors = read_checkpoint(folder / "server_state.ckpt", "the state")
    return {name: value.item() for name, value in tensors.items()}


def test_plans_are_trusted_only_on_request():
    values = flags.FlagValues()
    cli.define_flags(values)
    values(["run_plan"])
    assert not values.trust


# --- Verification


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_verification_matches_bit_for_bit(exports, profile):
    outcome = call(f"--plan={exports[profile]}", "--verify")
    assert outcome.status == 0, outcome
    first, header, *table, last = outcome.out.splitlines()
    assert first.startswith(f"{exports[profile]}: the hashes of 9 files are right.")
    assert header.split("  ") == ["round", "tensors", "bit for bit", "largest difference"]
    count = 4 if profile == "daf" else 3
    assert [[int(cell) for cell in line.split()] for line in table] == [
        [number, count, count, 0] for number in (1, 2, 3)
    ]
    assert last.startswith(f"verified bit for bit: 3 rounds, {3 * count} tensors; not run: ")
    assert ("a secure aggregation protocol" in last) == (profile == "secure")


def test_verification_prints_differences_beyond_tolerance(exports, tmp_path):
    folder = shutil.copytree(exports["secure"], tmp_path / "export")
    path = folder / "conformance" / "round_3.npz"
    with np.load(path) as arrays:
        tensors = {**arrays, "server/0": np.float32(25.5)}
    np.savez(path, **tensors)
    rehash(folder)
    outcome = call(f"--plan={folder}", "--verify")
    assert outcome.status == 1
    assert "    3        3            2  0.0196078\n       server/0: 0.0196078\n" in outcome.out
    assert outcome.out.endswith("NOT verified: 1 of 9 tensors of 3 rounds differ\n")
    outcome = call(f"--plan={folder}", "--verify", "--tolerance=0.02")
    assert outcome.status == 0
    assert "\nverified: 3 rounds, 9 tensors, 8 bit for bit and 1 up to rounding" in outcome.out


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda device: device.phase.SetInParent(), "expected the plan's phase, found another"),
        (lambda device: device.__setattr__("graph", b"x"), "expected the plan's graph, found a"),
        (lambda device: device.Clear(), "expected a graph, found none"),
    ],
)
def test_verification_rejects_changed_device_plan(exports, tmp_path, change, problem):
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    path = folder / "client_only_plan.pb"
    device = plan_pb2.ClientOnlyPlan.FromString(path.read_bytes())
    change(device)
    path.write_bytes(device.SerializeToString())
    rehash(folder)
    outcome = call(f"--plan={folder}", "--verify")
    assert outcome.status == 1
    assert f"NOT verified: client_only_plan.pb: {problem}" in outcome.out


# --- Rounds


def test_run_writes_state_and_metrics(run, tmp_path):
    outcome = run("--rounds=3")
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[1].startswith("round 1: 3 clients, ")
    folder = tmp_path / "output"
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "server_state.ckpt"]
    first, *others = rows(folder)
    assert (first["round"], [row["round"] for row in others]) == (1, [2, 3])
    # NaN becomes null, as in JSON; integers stay integers.
    assert (first["clients"], first["metrics"]) == (3, {"count": 3, "loss": [-24.0, None]})
    assert isinstance(first["metrics"]["count"], int)
    assert first["bytes_down"] > 0 < first["bytes_up"]
    assert state(folder) == {"server/0": 2.0, "server/1": 3}


def test_run_resumes_from_saved_state(run, tmp_path):
    assert run("--rounds=2", profile="secure", folder="first").status == 0
    saved = tmp_path / "first" / "server_state.ckpt"
    assert run(f"--state={saved}", profile="secure", folder="second").status == 0
    (row,) = rows(tmp_path / "second")
    assert (row["metrics"], row["bytes_up"]) == ({"count": 3}, 4.0)
    assert state(tmp_path / "second") == {"server/0": 25.0, "server/1": 3}


def test_seed_determines_the_cohorts(run, tmp_path):
    def drawn(folder, *arguments):
        outcome = run("--rounds=8", "--clients_per_round=1", *arguments, folder=folder)
        assert outcome.status == 0, outcome
        assert {row["clients"] for row in rows(tmp_path / folder)} == {1}
        return [row["metrics"]["count"] for row in rows(tmp_path / folder)]

    first = drawn("a")
    assert set(first) <= {0, 1, 2} and len(set(first)) > 1
    assert drawn("b", "--seed=0") == first
    assert drawn("c", "--seed=1") != first


def test_cohorts_flag_reads_cohorts_from_a_file(run, tmp_path):
    path = tmp_path / "cohorts.txt"
    path.write_text("cyd, bob\nann\nbob\n")
    (tmp_path / "output").mkdir()
    assert run(f"--cohorts={path}", "--rounds=2").status == 0
    assert [row["metrics"]["count"] for row in rows(tmp_path / "output")] == [1, 2]


def test_failed_round_keeps_earlier_rounds(run, clients, tmp_path):
    path = tmp_path / "cohorts.txt"
    path.write_text("ann\nann,bob\n")
    (clients / "bob.tfrecord").write_bytes(b"no records")
    assert "bob.tfrecord" in run(f"--cohorts={path}").error
    assert run(f"--cohorts={path}", "--rounds=1", folder="first").status == 0
    names = ["metrics.jsonl", "server_state.ckpt"]
    kept, first = ([(tmp_path / f / n).read_bytes() for n in names] for f in ("output", "first"))
    assert kept == first


# --- Errors


def test_unknown_flag_prints_one_line_error(capsys):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
        cli.parse_flags(["run_plan", "--no_such_flag"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: Unknown command line flag 'no_such_flag'\n"


@golden.arguments
def test_invalid_flags_print_one_line_error(arguments):
    return call(*arguments).error


@golden.arguments
def test_invalid_files_print_one_line_error(run, tmp_path, arguments):
    (tmp_path / "empty").touch()
    (tmp_path / "gap").write_text("ann\n\nbob")
    (tmp_path / "other").write_text("dan")
    (tmp_path / "twice").write_text("ann,bob,ann")
    (tmp_path / "two").write_text("ann\nbob\n")
    write_checkpoint(tmp_path / "whole", STATE)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-30])
    write_checkpoint(tmp_path / "less", {"server/0": STATE["server/0"]})
    write_checkpoint(tmp_path / "more", {**STATE, "server/2": np.float32(1)})
    write_checkpoint(tmp_path / "dtype", {**STATE, "server/0": np.array(1)})
    before = sorted(tmp_path.rglob("*"))
    error = run(*(argument.format(tmp_path) for argument in arguments)).error
    assert sorted(tmp_path.rglob("*")) == before
    return error


@pytest.mark.parametrize(
    ("profile", "records", "expected"),
    [
        ("daf", [example(), encoded({})], "record 2: feature 'x': expected float32[], found none"),
        (
            "secure",
            [example(n=1000), example(n=24)],
            "client bob: sidechannel_secagg_federated_secure_sum_bitwidth_update/0:0: expected "
            "values from 0 to 1023, found 1024",
        ),
    ],
)
def test_error_reports_client_with_invalid_data(run, clients, tmp_path, profile, records, expected):
    write_client(clients / "bob.tfrecord", records)
    assert run(profile=profile).error.endswith(expected)
    assert not (tmp_path / "output").exists()


def test_failed_graph_prints_one_line_error(exports, clients, tmp_path):
    """The manifest lists no features, so the runner does not reject the examples earlier."""
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    manifest = json.loads((folder / "manifest.json").read_text())
    rehash(folder, examples={**manifest["examples"], "features": {}})
    write_client(clients / "bob.tfrecord", [encoded({})])
    arguments = [f"--plan={folder}", f"--clients={clients}", f"--output={tmp_path / 'output'}"]
    error = call(*arguments).error
    assert error.startswith("plan.pb: client: client bob: the graph failed (InvalidArgumentError: ")
    assert error.endswith(" is required but could not be found.)")
