"""Isolated processes: their events, limits and termination."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from plan_runner.isolation import Bounds, Decoder, IsolationError, encoded, run_isolated
from tests.plan_runner.isolation.isolated import RecordingListener
from tests.support import golden
from tests.support.commands import ROOT
from tests.support.marks import usually
from tests.support.processes import default_signals, is_running, wait_until

_BOUNDS = Bounds(max_memory_gb=0.7, max_round_seconds=60.0)
# On a busy machine, Python starts within these seconds.
_SHORT = Bounds(max_memory_gb=0.7, max_round_seconds=3.0)

# Script that runs the command, whose isolated function hangs.
_COMMAND = """
import sys
from absl import flags
from plan_runner import cli
from plan_runner.isolation import run_isolated

values = flags.FlagValues()
cli.define_flags(values)
rest = values(["run_plan", "--plan=x", "--verify"])
def player(request, listener):
    function = "tests.plan_runner.isolation.isolated:hangs"
    return run_isolated(function, sys.argv[1], request.limits.bounds, listener)
sys.exit(cli.exit_status(rest, values, player))
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Yields a folder for temporary files, which must be empty after the test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def isolated(name, payload, bounds=_BOUNDS):
    listener = RecordingListener()
    return run_isolated(
        f"tests.plan_runner.isolation.isolated:{name}", payload, bounds, listener
    ), listener


def refused(name, payload, bounds=_BOUNDS) -> str:
    with pytest.raises(IsolationError) as caught:
        isolated(name, payload, bounds)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_events_arrive_in_order():
    # The lines exceed a pipe's buffer.
    status, listener = isolated("reports_lines", 300)
    assert status == 7
    assert listener.lines == [f"line {number} {'x' * 1000}" for number in range(300)]
    assert listener.files == ["here"]


def test_step_beyond_its_time_limit_is_killed(tmp_path):
    message = refused("hangs", str(tmp_path / "pid"), _SHORT)
    assert message.startswith("hanging: expected to end within 3 s (--max_round_seconds)")
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_children_are_killed_with_their_process(tmp_path):
    assert refused("starts_another", str(tmp_path / "pid"), _SHORT).startswith("started")
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_each_step_has_its_own_time_limit():
    status, _ = isolated("takes_steps", 5, _SHORT)
    assert status == 0


def test_allocated_memory_is_limited():
    assert refused("allocates", 100).startswith("expected to need at most 0.7 GB (--max_memory_gb)")
    assert isolated("allocates", 10)[0] == 10


def test_mapped_memory_is_limited(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(150_000_000)
    message = refused("maps", str(tmp_path / "file"), Bounds(0.1, 60.0))
    assert message.startswith("mapping: expected to need at most 0.1 GB (--max_memory_gb)")


def test_written_files_are_limited():
    message = refused("writes", 100, Bounds(0.05, 60.0))
    assert "OSError: [Errno 27] File too large" in message


@golden.values
def test_failed_functions_raise_one_line_error(case):
    name, payload = case
    return refused(name, payload)


@golden.values
def test_invalid_events_raise(case):
    return refused("reports", case)


@pytest.mark.slow
def test_endless_events_are_stopped():
    message = refused("reports_forever", None, _SHORT)
    assert message.startswith("reporting: expected to end within 3 s (--max_round_seconds)")


def test_replaced_error_file_is_not_read(tmp_path):
    (tmp_path / "secret").write_text("secret")
    message = refused("replaces_its_errors", str(tmp_path / "secret"))
    assert message == "leaving: its process ended with status 3 (last)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    usually([signal.SIGINT, signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
)
def test_process_ends_with_its_parent(tmp_path, scratch, number):
    pid_file = tmp_path / "pid"
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(pid_file)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        wait_until(lambda: pid_file.exists() and pid_file.read_text())
        process.send_signal(number)
        _, errors = process.communicate()
    wait_until(lambda: not is_running(int(pid_file.read_text())))
    if number is signal.SIGKILL:
        assert process.returncode == -number
        # A killed process leaves its temporary files.
        for path in sorted(scratch.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    else:
        assert process.returncode == 128 + number
        assert errors == "interrupted\n"


def test_ctrl_c_during_start_prints_one_line(tmp_path):
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(
        "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)"
    )
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, "-m", "plan_runner"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        wait_until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "interrupted\n")
    assert process.returncode == 130


def test_decoder_joins_partial_events():
    events = [("line", "a\nb"), ("status", 0), ("line", "\ud800")]
    content = b"".join(encoded(kind, value) for kind, value in events)
    for size in (1, 7, len(content)):
        decoder = Decoder()
        pieces = [content[i : i + size] for i in range(0, len(content), size)]
        assert [event for piece in pieces for event in decoder.feed(piece)] == events
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        list(Decoder().feed(b"x" * (1 << 21)))
