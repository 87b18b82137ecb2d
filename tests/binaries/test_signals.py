"""Runs in processes of their own that are killed or stopped, and go on."""

import functools
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from binaries import train
from tests.binaries.harness import ROOT, TOY, Caller, Process, python_module
from tests.marks import usually
from tests.processes import children_of, is_running, wait_until

# Long enough to be stopped in the middle, with a checkpoint now and then.
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
_COHORT = (*_FLAGS, "--runtime=cohort")


@pytest.fixture(params=usually(["cohort"], ["cohort", "tff", "ray"]))
def runtime(request) -> str:
    """A runtime without other processes, and two with workers."""
    if request.param == "ray":
        pytest.importorskip("ray")
    return request.param


@pytest.fixture
def arguments(runtime: str) -> tuple[str, ...]:
    # Rounds on workers are slower.
    rounds = {"cohort": 120, "tff": 50, "ray": 50}[runtime]
    return (*_FLAGS, f"--runtime={runtime}", f"--rounds={rounds}")


@pytest.fixture(scope="module")
def whole_runs(call: Caller, tmp_path_factory) -> Callable[[tuple[str, ...]], Path]:
    """Runs that nobody interrupts, by their flags; each is made once."""

    @functools.cache
    def run(arguments: tuple[str, ...]) -> Path:
        path = tmp_path_factory.mktemp("whole") / "run"
        outcome = call(train, *arguments, f"--output_dir={path}")
        assert outcome.status == 0, outcome
        return path

    return run


@pytest.fixture
def whole(whole_runs, arguments) -> Path:
    """The uninterrupted run."""
    return whole_runs(arguments)


def _children(process: Process, runtime: str) -> list[int]:
    children = process.children()
    assert bool(children) == (runtime != "cohort"), children
    return children


def _assert_same_numbers(found: Path, expected: Path) -> None:
    for name in ("metrics.csv", "result.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


def _rows(path: Path) -> int:
    return (path / "metrics.csv").read_bytes().count(b"\n") - 1


@pytest.mark.nightly
def test_kill_9_costs_nothing_and_leaves_no_process(whole, folder, call, runtime, arguments):
    command = python_module("train", *arguments, "--output_dir=run")
    with Process(command, folder) as process:
        process.wait_for_rows(folder / "run" / "metrics.csv", 15)
        # The process that trains dies with the one that waits for it, a moment later.
        started = [process.pid, *_children(process, runtime)]
        process.send(signal.SIGKILL)
        assert process.outcome().status == -signal.SIGKILL
    wait_until(lambda: not any(map(is_running, started)))
    assert not (folder / "run" / "result.json").exists()
    assert _rows(folder / "run") < _rows(whole)

    outcome = call(train, *arguments, "--output_dir=run", "--resume")
    assert outcome.status == 0, outcome
    assert "going on after round " in outcome.out
    _assert_same_numbers(folder / "run", whole)


def _go_on_command(line: str, text: str) -> list[str]:
    """The command that `line` gives, which starts with `text`."""
    assert line.startswith(text), line
    command = shlex.split(line.partition("; go on with: ")[2])
    assert command[-2:] == ["--output_dir=run", "--resume"]
    if (ROOT / "run").exists():
        assert command[:2] == [str(ROOT / "run"), "train"]
    if not (ROOT / ".venv" / ".complete").exists():
        # There is no environment of ./run, as under Bazel.
        return python_module("train", *_arguments(command))
    return command


def _arguments(command: list[str]) -> list[str]:
    return command[command.index(_FLAGS[0]) :]


@pytest.mark.nightly
def test_a_signal_ends_the_run_after_saving_and_the_line_that_it_prints_goes_on(whole_runs, folder):
    """SIGTERM; test_interrupts has SIGINT too, and test_worker what becomes of TFF's worker."""
    # The folder as two words: the command has to do without them.
    command = python_module("train", *_COHORT, "--output_dir", "run")
    with Process(command, folder) as process:
        process.wait_for_rows(folder / "run" / "metrics.csv", 20)
        process.send(signal.SIGTERM)
        outcome = process.outcome()
    assert outcome.status == 143, outcome
    lines = [text for text in outcome.err.splitlines() if not text.startswith("round ")]
    assert len(lines) == 1, outcome.err
    completed = _rows(folder / "run")
    assert 20 <= completed < 120
    text = f"stopped and saved after round {completed}; go on with: "
    go_on = _go_on_command(lines[0], text)
    assert (folder / "run" / "checkpoints" / f"round_{completed:08d}.npz").is_file()

    # In a process, as a shell would run it.
    with Process(go_on, folder) as process:
        outcome = process.outcome()
    assert outcome.status == 0, outcome
    assert f"going on after round {completed}\n" in outcome.out
    _assert_same_numbers(folder / "run", whole_runs(_COHORT))


def test_ctrl_c_while_a_command_starts_is_one_line(folder):
    with Process(python_module("train"), folder) as process:
        # The first of many seconds in which modules are imported.
        process.wait_for_import("_multiarray_umath")
        process.send(signal.SIGINT)
        assert process.outcome() == (130, "", "interrupted\n")


@pytest.mark.nightly
def test_a_command_that_fails_leaves_no_process(folder):
    command = python_module(
        "train", *TOY, "--runtime=tff", "--client_learning_rate=1e30", "--output_dir=run"
    )
    with Process(command, folder) as process:
        wait_until(lambda: (folder / "run" / "config.json").exists())
        children = _children(process, "tff")
        outcome = process.outcome()
    assert "the model has diverged" in outcome.error
    wait_until(lambda: not any(map(is_running, children)))


# --- Commands run in a child process: one that ends before it is done has failed


_ROOT = Path(__file__).parents[2]
_NOT_DONE = "error: the command ended before it was done: its process was ended with status 0, as "


def _command(body: str) -> list[str]:
    lines = [
        "import atexit, ctypes, os, signal, sys",
        "from binaries.__main__ import watched",
        "with watched():",
        *(f"    {line}" for line in body.splitlines()),
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def _start(body: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        _command(body),
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _status_and_errors(body: str) -> tuple[int, str]:
    with _start(body) as process:
        _, errors = process.communicate()
    return process.returncode, errors


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os.execv('/bin/true', ['true'])",
        "ctypes.CDLL(None)._exit(0)",
        "ctypes.CDLL(None).exit(0)",
        # The child of a fork goes on, and comes to the end of the command.
        "if os.fork(): os._exit(0)",
        "atexit.register(os._exit, 0)\nraise KeyError",
    ],
)
def test_status_0_before_the_end_is_a_failure(body):
    status, errors = _status_and_errors(body)
    assert status == 1
    assert errors.splitlines()[-1].startswith(_NOT_DONE)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(2)", 2),
        ("sys.exit('a text')", 1),
        ("raise KeyError", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        # What was reported is what counts.
        ("atexit.register(os._exit, 0)\nsys.exit(2)", 2),
        ("atexit.register(os._exit, 3)\nsys.exit(0)", 3),
    ],
)
def test_other_ends_are_the_commands_own(body, status):
    found, errors = _status_and_errors(body)
    assert found == status
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
def test_signals_are_passed_on(number):
    with _start(_WAITS) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.communicate()
    assert process.returncode == number


def test_the_command_does_not_outlive_the_process_that_was_started():
    with _start(_WAITS) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (child,) = children_of(process.pid)
        process.kill()
        process.communicate()
    wait_until(lambda: not is_running(child))


def test_a_parent_that_waits_for_nobody():
    """It has SIGCHLD ignored, and so would what it starts."""
    ignoring = ["/bin/sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *_command("sys.exit(3)")]
    assert subprocess.run(ignoring, cwd=_ROOT, check=False).returncode == 3
