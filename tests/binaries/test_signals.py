"""Killed and stopped commands: their exit statuses, processes and resumed runs."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from binaries import train
from tests.support.commands import (
    ROOT,
    TOY,
    Caller,
    Process,
    assert_same_numbers,
    later_values,
    python_module,
)
from tests.support.marks import usually
from tests.support.processes import child_processes, is_running, wait_until

# Enough rounds to stop the run after some of its checkpoints.
_FLAGS = (
    *TOY,
    "--rounds=120",
    "--server_optimizer=adam",
    "--server_learning_rate=0.05",
    "--window=5",
    "--evaluate_every=9",
    "--checkpoint_every=11",
    "--seed=2",
)


def _whole(call: Caller, folder: Path, *arguments: str) -> Path:
    call.ok(train, *arguments, f"--output_dir={folder / 'whole'}")
    return folder / "whole"


def _rows(path: Path) -> int:
    return (path / "metrics.csv").read_bytes().count(b"\n") - 1


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", usually(["cohort"], ["cohort", "tff", "ray"]))
def test_killed_run_leaves_no_process_and_resumes(folder, call, runtime):
    if runtime == "ray":
        pytest.importorskip("ray")
    # Rounds of the other runtimes are slower, so there are fewer.
    rounds = 120 if runtime == "cohort" else 50
    arguments = later_values((*_FLAGS, f"--runtime={runtime}", f"--rounds={rounds}"))
    with Process(python_module("train", *arguments, "--output_dir=run"), folder) as process:
        process.wait_for_rows(folder / "run" / "metrics.csv", 15)
        workers = process.children()
        assert bool(workers) == (runtime != "cohort"), workers
        # The training process dies shortly after its parent.
        started = [process.pid, *workers]
        process.send(signal.SIGKILL)
        assert process.outcome().status == -signal.SIGKILL
    wait_until(lambda: not any(map(is_running, started)))
    assert not (folder / "run" / "result.json").exists()
    assert _rows(folder / "run") < rounds

    outcome = call.ok(train, *arguments, "--output_dir=run", "--resume")
    assert "resuming after round " in outcome.out
    assert_same_numbers(folder / "run", _whole(call, folder, *arguments))


@pytest.mark.nightly
def test_stopped_run_prints_a_command_that_resumes(call, folder):
    # --output_dir is two words here, and one word in the printed command.
    command = python_module("train", *_FLAGS, "--output_dir", "run")
    with Process(command, folder) as process:
        process.wait_for_rows(folder / "run" / "metrics.csv", 20)
        process.send(signal.SIGTERM)
        outcome = process.outcome()
    assert outcome.status == 143, outcome
    (line,) = [text for text in outcome.err.splitlines() if not text.startswith("round ")]
    completed = _rows(folder / "run")
    assert 20 <= completed < 120
    assert (folder / "run" / "checkpoints" / f"round_{completed:08d}.npz").is_file()
    assert line.startswith(f"stopped and saved after round {completed}; go on with: ")
    program, name, *arguments = shlex.split(line.partition("; go on with: ")[2])
    assert [program, name] == [str(ROOT / "run"), "train"]
    assert arguments[-2:] == ["--output_dir=run", "--resume"]

    with Process(python_module("train", *arguments), folder) as process:
        outcome = process.outcome()
    assert outcome.status == 0, outcome
    assert f"resuming after round {completed}\n" in outcome.out
    assert_same_numbers(folder / "run", _whole(call, folder, *_FLAGS))


def test_interrupted_start_prints_one_line(folder):
    with Process(python_module("train"), folder) as process:
        # NumPy is the first of imports that take many seconds.
        process.wait_for_import("_multiarray_umath")
        process.send(signal.SIGINT)
        assert process.outcome() == (130, "", "interrupted\n")


@pytest.mark.nightly
def test_failed_command_leaves_no_process(folder):
    command = python_module(
        "train", *TOY, "--runtime=tff", "--client_learning_rate=1e30", "--output_dir=run"
    )
    with Process(command, folder) as process:
        wait_until(lambda: (folder / "run" / "config.json").exists())
        children = process.children()
        outcome = process.outcome()
    assert "the model has diverged" in outcome.error
    wait_until(lambda: not any(map(is_running, children)))


# --- `watched` runs a command in a child process, and reports a child that exits early


_NOT_DONE = "error: the command ended before it was done: its process was ended with status 0, as "


def _command(body: str) -> list[str]:
    lines = [
        "import atexit, ctypes, os, signal, sys",
        "from binaries.__main__ import watched",
        "with watched():",
        *(f"    {line}" for line in body.splitlines()),
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def _status_and_errors(body: str) -> tuple[int, str]:
    finished = subprocess.run(_command(body), cwd=ROOT, capture_output=True, text=True)
    return finished.returncode, finished.stderr


def _waiting() -> "subprocess.Popen[str]":
    """Starts a command that waits for a signal, and exits with its number."""
    process = subprocess.Popen(_command(_WAITS), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "ctypes.CDLL(None).exit(0)",
        "if os.fork(): os._exit(0)",
        "atexit.register(os._exit, 0)\nraise KeyError",
    ],
)
def test_early_exit_with_status_0_fails(body):
    status, errors = _status_and_errors(body)
    assert status == 1
    assert errors.splitlines()[-1].startswith(_NOT_DONE)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(2)", 2),
        ("sys.exit('a text')", 1),
        ("raise KeyError", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("atexit.register(os._exit, 0)\nsys.exit(2)", 2),
        ("atexit.register(os._exit, 3)\nsys.exit(0)", 3),
    ],
)
def test_other_exit_statuses_stay_unchanged(body, status):
    actual, errors = _status_and_errors(body)
    assert actual == status
    assert _NOT_DONE not in errors


_WAITS = """\
def stop(number, frame):
    sys.exit(number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_child_receives_signals(number):
    with _waiting() as process:
        process.send_signal(number)
        process.communicate()
    assert process.returncode == number


def test_command_dies_with_its_parent():
    with _waiting() as process:
        (child,) = child_processes(process.pid)
        process.kill()
        process.communicate()
    wait_until(lambda: not is_running(child))


def test_command_waits_despite_ignored_sigchld():
    """The command inherits SIGCHLD as ignored from a shell."""
    ignoring = ["/bin/sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *_command("sys.exit(3)")]
    assert subprocess.run(ignoring, cwd=ROOT, check=False).returncode == 3
