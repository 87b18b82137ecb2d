"""The sandbox rejects and allows system calls; some kernels cannot provide a sandbox."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plan_runner.export import Limits
from plan_runner.graph_session import write_checkpoint
from plan_runner.isolation import Bounds, run_isolated
from plan_runner.kernel import find_kernel
from plan_runner.play import Request, read_state
from plan_runner.sandbox import missing
from tests.plan_runner.graphs.converted import saving_graph
from tests.plan_runner.harness import call
from tests.plan_runner.hostile.attacks import save_elsewhere, write_over_path
from tests.plan_runner.isolation import attempts
from tests.plan_runner.isolation.isolated import RecordingListener
from tests.support.commands import ROOT

needs_sandbox = pytest.mark.skipif(bool(missing()), reason=f"no {' and no '.join(missing())}")

_BOUNDS = Bounds(max_memory_gb=2.0, max_round_seconds=120.0)
_FUNCTION = "tests.plan_runner.isolation.attempts:"
_EPERM, _EACCES, _EXDEV, _ENOSYS = 1, 13, 18, 38
# Harmless attempts, which must succeed without a sandbox.
_TRIED_FREELY = (
    "writes a file",
    "changes a file",
    "reads a file",
    "links by name",
    "changes a mode",
    "changes a time",
    "starts a program",
    "signals its parent",
    "opens a socket",
    "keeps memory as a file",
)

# Script that runs a command under a filter that makes some system calls unavailable.
_HIDING = """
import ctypes, json, os, struct, sys
numbers, command = json.loads(sys.argv[1]), sys.argv[2:]
steps = [(0x20, 0, 0, 0)]
for number in numbers:
    steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 38)]
code = b"".join(struct.pack("HBBI", *step) for step in [*steps, (0x06, 0, 0, 0x7FFF0000)])
libc = ctypes.CDLL(None, use_errno=True)
held = ctypes.create_string_buffer(code)
header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
program = ctypes.create_string_buffer(header)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(command[0], command)
"""
_LANDLOCK, _SECCOMP = 444, 317


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    folder = tmp_path / "users"
    folder.mkdir()
    paths = [folder / name for name in ("outside", "readable")]
    for path in paths:
        path.write_text("mine")
    return paths


def tried(files, names, reads):
    listener = RecordingListener()
    payload = {"files": list(map(str, files)), "names": list(names)}
    assert run_isolated(f"{_FUNCTION}tries", payload, _BOUNDS, listener, reads) == 0
    return dict(line.split(": ") for line in listener.lines)


@needs_sandbox
def test_sandbox_rejects_attempts(files):
    names = list(attempts.attempts(*files, files[0]))
    results = tried(files, names, [str(ROOT), str(files[1])])
    assert results.pop("variables") == "['HOME']"
    assert results.pop("home") == "True"
    errors = {name: int(number) for name, number in results.items()}
    assert set(errors) == set(names)
    for name, number in errors.items():
        if name.startswith("may "):
            assert number == 0, name
        else:
            assert number in (_EPERM, _EACCES, _EXDEV, _ENOSYS), (name, number)
    # The filter rejects calls that some versions of Landlock allow.
    for name in ("cuts a file by opening it", "cuts a file by an access mode", "changes a mode"):
        assert errors[name] == _EPERM, name
    assert errors["clones in the new way"] == errors["asks io_uring"] == _ENOSYS
    assert [path.read_text() for path in files] == ["mine", "mine"]
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["outside", "readable"]


def test_attempts_succeed_without_sandbox(files):
    results = tried(files, _TRIED_FREELY, None)
    assert [results[name] for name in _TRIED_FREELY] == ["0"] * len(_TRIED_FREELY)
    assert files[0].read_text() == "x"


@pytest.fixture(scope="module")
def attacked(exports, tmp_path_factory):
    """Returns the files that two attacks write, and the attacks: an export and a TFLite graph."""
    folder = tmp_path_factory.mktemp("attacked")
    export = shutil.copytree(exports["daf"], folder / "export")
    written = [folder / "users" / name for name in ("by_plan", "by_tflite")]
    written[0].parent.mkdir()
    save_elsewhere(export, written[0])
    (folder / "graph").write_bytes(write_over_path(saving_graph(), str(written[1])))
    return written, export, folder / "graph"


@pytest.mark.nightly
@needs_sandbox
def test_sandbox_stops_unchecked_attacks(attacked, tmp_path):
    written, export, flatbuffer = attacked
    request = Request(str(export), verify=True)
    payload = {
        "play": {"request": dataclasses.asdict(request), "kernel": find_kernel()},
        "tflite": str(flatbuffer),
    }
    reads = [str(ROOT), *request.paths(), find_kernel().library, str(flatbuffer)]
    listener = RecordingListener()
    assert run_isolated(f"{_FUNCTION}runs_unchecked", payload, _BOUNDS, listener, reads) == 0
    # Both graphs ran until they tried to write their files.
    errors = {line.partition(": ")[0]: line for line in listener.lines}
    for path, who in zip(written, ("plan", "TFLite")):
        assert str(path) in errors[who] and "Permission denied" in errors[who]
        assert not path.exists()
    # Without the sandbox, both attacks write their files.
    with attempts.unchecked():
        assert call(f"--plan={export}", "--verify").status == 0
        attempts.invoke(flatbuffer, tmp_path)
    assert all(path.exists() for path in written)


@pytest.mark.slow
@needs_sandbox
def test_sandboxed_process_reads_checkpoints(tmp_path):
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.int64(7), "c": np.array([b"x", b"yz"])}
    write_checkpoint(tmp_path / "state[1]", tensors)
    actual = read_state(tmp_path / "state[1]", Limits(), trust=False)
    assert {name: value.tolist() for name, value in actual.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }
    assert (actual["a"].dtype, actual["b"].dtype) == (np.float32, np.int64)


def hidden(numbers, *arguments):
    command = [sys.executable, "-m", "plan_runner", *arguments]
    return subprocess.run(
        [sys.executable, "-c", _HIDING, json.dumps(numbers), *command],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(
    ("numbers", "lacks"),
    [
        ([_LANDLOCK], "Landlock (Linux 5.13, with landlock among the kernel's security modules)"),
        ([_SECCOMP], "seccomp filters (CONFIG_SECCOMP_FILTER)"),
    ],
)
def test_missing_kernel_feature_prints_one_line_error(exports, numbers, lacks):
    done = hidden(numbers, f"--plan={exports['daf']}", "--verify")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: --plan: expected a sandbox for untrusted files, this machine has no {lacks}; "
        "--trust runs without a sandbox, for files that you trust\n"
    )


@pytest.mark.nightly
def test_trusted_plan_runs_without_sandbox(exports):
    done = hidden([_LANDLOCK, _SECCOMP], f"--plan={exports['daf']}", "--verify", "--trust")
    assert done.returncode == 0, done.stderr
    assert "\nverified bit for bit: 3 rounds, 12 tensors; not run: " in done.stdout


@needs_sandbox
def test_sandbox_reads_linked_clients(exports, tmp_path):
    clients, elsewhere = tmp_path / "clients", tmp_path / "elsewhere"
    clients.mkdir()
    shutil.copytree(Path(exports["daf"]) / "conformance" / "clients", elsewhere)
    for path in elsewhere.iterdir():
        (clients / path.name).symlink_to(path)
    request = Request("plan", verify=False, clients=str(clients))
    assert sorted(request.paths()) == sorted(
        ["plan", str(clients), *(str(path.resolve()) for path in elsewhere.iterdir())]
    )


@pytest.mark.nightly
@needs_sandbox
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_fuzzer_runs_mutants(exports):
    """The fuzzer fails unless strace shows the attempts at its start."""
    command = [sys.executable, ROOT / "tools" / "fuzz_plans.py", "--plan", *exports.values()]
    done = subprocess.run(
        [*command, "--minutes=0.01"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert " mutants, 0 finds" in done.stdout
