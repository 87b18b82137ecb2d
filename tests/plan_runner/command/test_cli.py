"""The command line, in this process."""

import json
import shutil

import numpy as np
import pytest
from absl.testing import flagsaver

from plan_runner import cli, plan_pb2
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from tests import golden
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
    return read_checkpoint(folder / "server_state.ckpt", "the state")


# --- verification


@pytest.mark.parametrize("profile", ["daf", "secure"])
def test_an_export_is_verified(exports, profile):
    outcome = call(f"--plan={exports[profile]}", "--verify")
    assert outcome.status == 0, outcome
    first, header, *table, last = outcome.out.splitlines()
    assert first == (
        f"{exports[profile]}: the hashes of 9 files are right. Its graphs run in a sandbox."
    )
    assert header.split("  ") == ["round", "tensors", "bit for bit", "largest difference"]
    count = 4 if profile == "daf" else 3
    assert [[int(cell) for cell in line.split()] for line in table] == [
        [number, count, count, 0] for number in (1, 2, 3)
    ]
    protocol = "a secure aggregation protocol, " if profile == "secure" else ""
    assert last == (
        f"verified bit for bit: 3 rounds, {3 * count} tensors; not run: the TFLite graph that "
        "devices get (client_only_plan.pb: tflite_graph: expected a flatbuffer of TFLite, found a "
        f"damaged one), {protocol}the platform's own client and server"
    )


@pytest.mark.slow
def test_a_difference_is_told_unless_tolerated(exports, tmp_path):
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
    assert call(f"--plan={folder}", "--verify", "--tolerance=0.019").status == 1
    outcome = call(f"--plan={folder}", "--verify", "--tolerance=0.02")
    assert outcome.status == 0
    assert (
        "\nverified: 3 rounds, 9 tensors, 8 bit for bit and 1 up to rounding: "
        "0.0196078 of their largest number at most; not run: the TFLite graph"
    ) in outcome.out


@pytest.mark.parametrize(
    ("name", "status"), [("server/0", 0), ("server/1", 1)], ids=["float", "integer"]
)
def test_a_last_bit_of_a_float_passes_unless_it_must_not(exports, tmp_path, name, status):
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    path = folder / "conformance" / "round_2.npz"
    with np.load(path) as arrays:
        tensors = dict(arrays)
    value = tensors[name]
    tensors[name] = value + 1 if name == "server/1" else np.nextafter(value, np.float32(np.inf))
    np.savez(path, **tensors)
    rehash(folder)
    assert call(f"--plan={folder}", "--verify").status == status
    exact = call(f"--plan={folder}", "--verify", "--tolerance=0")
    assert exact.status == 1
    assert exact.out.endswith("NOT verified: 1 of 12 tensors of 3 rounds differ\n")


@pytest.mark.slow
def test_another_client_for_devices_is_told(exports, tmp_path):
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    path = folder / "client_only_plan.pb"
    device = plan_pb2.ClientOnlyPlan.FromString(path.read_bytes())
    device.phase.name = "Other"
    path.write_bytes(device.SerializeToString())
    rehash(folder)
    outcome = call(f"--plan={folder}", "--verify")
    assert outcome.status == 1
    assert outcome.out.endswith(
        "NOT verified: client_only_plan.pb: expected the phase that was run, found another one\n"
    )


# --- runs


@pytest.mark.slow
def test_rounds_of_all_clients(run, tmp_path):
    outcome = run("--rounds=3")
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[1].startswith("round 1: 3 clients, ")
    folder = tmp_path / "output"
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "server_state.ckpt"]
    found = rows(folder)
    assert [row["round"] for row in found] == [1, 2, 3]
    assert found[0]["clients"] == 3
    # What is no number in JSON is null; what is an integer stays one.
    assert found[0]["metrics"] == {"count": 3, "loss": [-24.0, None]}
    assert isinstance(found[0]["metrics"]["count"], int)
    assert found[0]["bytes_down"] > 0 < found[0]["bytes_up"]
    assert {name: value.item() for name, value in state(folder).items()} == {
        "server/0": 2.0,
        "server/1": 3,
    }


def test_one_round_is_the_default(run, tmp_path):
    assert run(profile="secure").status == 0
    (row,) = rows(tmp_path / "output")
    assert (row["metrics"], row["bytes_up"]) == ({"count": 3}, 4.0)


@pytest.mark.slow
def test_a_run_goes_on_from_what_another_has_left(run, tmp_path):
    assert run("--rounds=2", folder="first").status == 0
    saved = tmp_path / "first" / "server_state.ckpt"
    assert run(f"--state={saved}", folder="second").status == 0
    assert run("--rounds=3", folder="whole").status == 0
    assert state(tmp_path / "second") == state(tmp_path / "whole")
    second, whole = ((tmp_path / f / "server_state.ckpt").read_bytes() for f in ("second", "whole"))
    assert second == whole


@pytest.mark.slow
def test_clients_are_drawn_by_seed(run, tmp_path):
    def drawn(folder, *arguments):
        outcome = run("--rounds=8", "--clients_per_round=1", *arguments, folder=folder)
        assert outcome.status == 0, outcome
        assert {row["clients"] for row in rows(tmp_path / folder)} == {1}
        return [row["metrics"]["count"] for row in rows(tmp_path / folder)]

    first = drawn("a")
    assert set(first) <= {0, 1, 2} and len(set(first)) > 1
    assert drawn("b", "--seed=0") == first
    assert drawn("c", "--seed=1") != first


def test_cohorts_from_a_file(run, tmp_path):
    path = tmp_path / "cohorts.txt"
    path.write_text("cyd, bob\nann\n")
    assert run(f"--cohorts={path}").status == 0
    assert [row["metrics"]["count"] for row in rows(tmp_path / "output")] == [1, 2]
    assert run(f"--cohorts={path}", "--rounds=1", folder="first").status == 0
    assert [row["metrics"]["count"] for row in rows(tmp_path / "first")] == [1]


def test_rounds_before_one_that_fails_are_kept(run, clients, tmp_path):
    path = tmp_path / "cohorts.txt"
    path.write_text("ann\nann,bob\n")
    (clients / "bob.tfrecord").write_bytes(b"no records")
    assert "bob.tfrecord" in run(f"--cohorts={path}").error
    assert run(f"--cohorts={path}", "--rounds=1", folder="first").status == 0
    names = ["metrics.jsonl", "server_state.ckpt"]
    kept, first = ([(tmp_path / f / n).read_bytes() for n in names] for f in ("output", "first"))
    assert kept == first


def test_an_empty_folder_is_written_to(run, tmp_path):
    (tmp_path / "output").mkdir()
    assert run().status == 0


# --- mistakes


def test_an_unknown_flag_is_one_line(capsys):
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
        cli.parse_flags(["run_plan", "--no_such_flag"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: Unknown command line flag 'no_such_flag'\n"


@golden.arguments
def test_flags(arguments):
    return call(*arguments).error


@golden.arguments
def test_files(run, tmp_path, arguments):
    (tmp_path / "empty").touch()
    (tmp_path / "gap").write_text("ann\n\nbob")
    (tmp_path / "other").write_text("ann,dan"[4:])
    (tmp_path / "twice").write_text("ann,bob,ann")
    (tmp_path / "two").write_text("ann\nbob\n")
    write_checkpoint(tmp_path / "whole", STATE)
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-30])
    write_checkpoint(tmp_path / "less", {"server/0": STATE["server/0"]})
    write_checkpoint(tmp_path / "more", {**STATE, "server/2": np.float32(1)})
    write_checkpoint(tmp_path / "dtype", {**STATE, "server/0": np.array(1)})
    write_checkpoint(tmp_path / "shape", {**STATE, "server/0": np.ones(1, np.float32)})
    before = sorted(tmp_path.rglob("*"))
    found = run(*(argument.format(tmp_path) for argument in arguments)).error
    assert sorted(tmp_path.rglob("*")) == before
    return found


def test_no_clients(run, clients):
    for path in clients.iterdir():
        path.unlink()
    assert run().error == f"{clients}: expected files NAME.tfrecord, found no clients"


def test_a_client_with_a_wrong_feature(run, clients, tmp_path):
    write_client(clients / "bob.tfrecord", [example(), encoded({})])
    expected = f"{clients / 'bob.tfrecord'}, record 2: feature 'x': expected float32[], found none"
    assert run().error == expected
    assert not (tmp_path / "output").exists()


@pytest.mark.slow
def test_a_client_that_breaks_a_secure_bound(run, clients):
    write_client(clients / "bob.tfrecord", [example(n=200), example(n=56)])
    assert run(profile="secure").error == (
        "client bob: sidechannel_secagg_federated_secure_sum_bitwidth_update/0:0: "
        "expected values from 0 to 255, found 256"
    )
    write_client(clients / "bob.tfrecord", [example(n=-1)])
    assert "client bob: " in run(profile="secure").error


def test_a_client_on_which_the_graph_fails(exports, clients, tmp_path):
    """Its examples pass the check, as the manifest says nothing of what the graph parses."""
    folder = shutil.copytree(exports["daf"], tmp_path / "export")
    manifest = json.loads((folder / "manifest.json").read_text())
    rehash(folder, examples={**manifest["examples"], "features": {}})
    write_client(clients / "bob.tfrecord", [encoded({})])
    arguments = [f"--plan={folder}", f"--clients={clients}", f"--output={tmp_path / 'output'}"]
    error = call(*arguments).error
    assert error.startswith("plan.pb: client: client bob: the graph failed (InvalidArgumentError: ")
    assert error.endswith(" is required but could not be found.)")
