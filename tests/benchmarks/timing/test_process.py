"""One side: what it answers, how its failures are told, and that nothing of it stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.timing.environments import side_environment
from benchmarks.timing.process import SideError, last_line
from benchmarks.timing.process_tree import PeakMemory, descendants, tree_memory_bytes
from tests.benchmarks.timing.harness import HANG, process
from tests.processes import default_signals, is_running, wait_until


@pytest.mark.slow
def test_a_side_runs_a_round_for_each_line(tmp_path):
    with process("sleepy", tmp_path) as side:
        assert list(side.ready()) == ["numpy"]
        seconds = [side.round() for _ in range(3)]
        assert all(s >= 0.05 for s in seconds)
        assert sum(seconds) < side.age


@pytest.mark.slow
def test_what_libraries_print_is_no_answer(tmp_path):
    with process("chatty", tmp_path) as side:
        side.ready()
        assert side.round() >= 0
    assert (tmp_path / "log").read_text().count("noise") == 1


@pytest.mark.slow
def test_a_model_of_another_size_is_refused(tmp_path):
    with (
        pytest.raises(
            SideError,
            match="ended with status 1: expected a model of 12 parameters, found one of 1,300",
        ),
        process("good:1300", tmp_path) as side,
    ):
        side.ready()


_FAILURES = [
    ("raises", "ended with status 1: IndexError: list index out of range"),
    ("killed", "was ended by SIGKILL: it printed nothing"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "message"), _FAILURES)
def test_the_end_of_a_side_is_told_with_its_last_line(tmp_path, behaviour, message):
    with process(behaviour, tmp_path) as side:
        side.ready()
        side.round()
        with pytest.raises(SideError) as caught:
            side.round()
        assert str(caught.value) == message
        # Whatever is asked of it now, the answer is the same.
        with pytest.raises(SideError, match="ended"):
            side.round()


def test_a_program_that_is_not_there_is_told(tmp_path):
    from benchmarks.timing.process import SideProcess

    missing = SideProcess([str(tmp_path / "no")], side_environment(), tmp_path / "log", 60.0)
    with pytest.raises(SideError, match="ended with status 1: FileNotFoundError"), missing as side:
        side.ready()


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["never_ready", "hangs_at_once"])
def test_a_side_that_hangs_is_told_and_ended(tmp_path, behaviour):
    message = f"no round within {HANG:g} s: it printed nothing"
    with pytest.raises(SideError, match=message):  # noqa: SIM117
        with process(behaviour, tmp_path, round_limit=HANG) as side:
            wait_until(lambda: descendants(side.pid))
            pids = [side.pid, *descendants(side.pid)]
            side.ready()
            side.round()
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_daemons_of_a_side_end_with_it(tmp_path):
    with process("daemon", tmp_path) as side:
        side.ready()
        side.round()
        # Guard, side, and the daemon, which the guard has taken over.
        found = []

        def has_a_daemon() -> bool:
            # Asked twice, it might be between two parents the second time.
            found[:] = _sleepers(side.pid)
            return len(found) == 1

        wait_until(has_a_daemon)
    assert not is_running(found[0])


def _sleepers(pid):
    lines = {}
    for child in descendants(pid):
        with open(f"/proc/{child}/cmdline") as file:
            lines[child] = file.read()
    return [child for child, line in lines.items() if "setsid" in line and is_running(child)]


_DRIVER = """
import sys
from pathlib import Path
from tests.benchmarks.timing.harness import process
with process("daemon", Path(sys.argv[1])) as side:
    side.ready()
    side.round()
    print(side.pid, flush=True)
    side.round()
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_when_the_driver_is_ended(tmp_path, number):
    with default_signals():
        driver = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": side_environment()["PYTHONPATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    with driver:
        guard = int(driver.stdout.readline())
        wait_until(lambda: len(_sleepers(guard)) == 2)
        pids = [guard, *descendants(guard)]
        assert len(pids) >= 4
        driver.send_signal(number)
        driver.wait(timeout=60)
        wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_a_side_runs_only_when_it_is_let(tmp_path):
    with process("sleepy", tmp_path) as side:
        with side.released():
            side.ready()
        wait_until(lambda: [_state(pid) for pid in descendants(side.pid)] == ["T"])
        with side.released():
            assert side.round() < 60
    assert not is_running(side.pid)


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_memory_is_that_of_the_whole_tree(tmp_path):
    with process("grows", tmp_path) as side:
        side.ready()
        before = tree_memory_bytes(side.pid)
        with PeakMemory(side.pid) as memory:
            for _ in range(3):
                side.round()
        grown = tree_memory_bytes(side.pid) - before
    assert 55e6 < grown < 90e6
    assert memory.peak_bytes >= before + 55e6


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", "it printed nothing"),
        (b"a\n  b \n\n", "b"),
        (b"\xff\n", "�"),
    ],
)
def test_the_last_line_is_one_that_says_something(output, line):
    assert last_line(output) == line


def test_a_side_keeps_what_python_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often forbid it: then each start compiles all that it imports."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    done = subprocess.run(command, env=side_environment(), capture_output=True, text=True)
    assert done.stdout == "False\n"
