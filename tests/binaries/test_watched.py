"""Commands run in a child process: one that ends before it is done has failed."""

import signal
import subprocess
import sys

import pytest

from tests.binaries.harness import ROOT
from tests.processes import children_of, is_running, wait_until

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
        cwd=ROOT,
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
    assert subprocess.run(ignoring, cwd=ROOT, check=False).returncode == 3
