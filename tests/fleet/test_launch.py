"""Processes of a fleet: none of them outlives what has started it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from fleet.cli import main
from fleet.demo import named_clients
from fleet.launch import Processes, Terminated, ended_by_signals
from plan_runner.errors import PlanError
from tests.processes import default_signals, is_running, wait_until

# A process with a child; both are deaf to polite requests.
_STUBBORN = "trap '' TERM INT; (trap '' TERM INT; while :; do sleep 1; done) & echo $!; wait; wait"


def _started(processes: Processes) -> list[int]:
    """Starts a process; returns its number and its child's, once there is one."""
    number = processes.start("stubborn", "sh", "-c", _STUBBORN)
    wait_until(lambda: processes.log("stubborn").read_text().endswith("\n"))
    return [number, int(processes.log("stubborn").read_text())]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_their_children(tmp_path, monkeypatch, number):
    monkeypatch.setattr("fleet.launch._ENDING_SECONDS", 0.1)
    with pytest.raises(Terminated), ended_by_signals(), Processes(tmp_path) as processes:
        numbers = _started(processes)
        assert all(map(is_running, numbers))
        os.kill(os.getpid(), number)
        signal.pause()
    wait_until(lambda: not any(map(is_running, numbers)))


def test_what_an_earlier_process_printed_is_not_taken_for_a_later_ones(tmp_path):
    """A fleet that goes on has logs; so has a node that was killed and has started again."""
    for last in ("error: é gone", "ready"):
        with Processes(tmp_path) as processes:
            for words in ("ready", last):
                processes.start("node", "sh", "-c", "sleep 0.1; echo $0", words)
                assert processes.printed("node") == ""
                assert processes.last_output("node") == "nothing"
                wait_until(lambda: processes.status("node") is not None)
                assert processes.printed("node") == f"{words}\n"
                assert processes.last_output("node") == words.removeprefix("error: ")
                processes.end("node")
    assert processes.log("node").read_text().count("ready\n") == 3


def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    """What a process could not print any more says nothing; why it could not does."""

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Processes(tmp_path / "there") as processes:
        processes.start("cut", "sh", "-c", "echo half of")
        wait_until(lambda: processes.status("cut") is not None)
        assert processes.last_output("cut") == "half of"
        monkeypatch.setattr(os, "fsync", full)
        words = "expected a folder with room, cannot write \\(No space left on device\\)"
        with pytest.raises(PlanError, match=words):
            processes.last_output("cut")
        with pytest.raises(PlanError, match=words):
            Processes(tmp_path / "new")
    # And where a command itself writes.
    monkeypatch.setattr("fleet.keys.make_node_keys", lambda *given: full(0))
    assert main(["keys", "--node=a", f"--output={tmp_path / 'keys'}"]) == 2
    assert capsys.readouterr().err == "error: cannot read or write (No space left on device)\n"


def test_clients_of_any_name_get_nodes(tmp_path):
    told: list[str] = []
    files = [tmp_path / f"{name}.tfrecord" for name in ("a%2F1", "b")]
    for file in files:
        file.write_text(file.stem)
    assert named_clients(files[1:], tmp_path / "as_they_are", told.append) == ["b"] and not told
    assert named_clients(files, tmp_path / "named", told.append) == ["client_000", "client_001"]
    found = {path.name: path.read_text() for path in (tmp_path / "named").iterdir()}
    assert found == {"client_000.tfrecord": "a%2F1", "client_001.tfrecord": "b"}
    assert told == [f"client_00{number}: {file}" for number, file in enumerate(files)]


@pytest.mark.slow
def test_what_is_killed_leaves_no_process(tmp_path):
    """The kernel ends the processes of one that could not end them."""
    code = """
import sys, time
from pathlib import Path
from plan_runner.errors import PlanError
from fleet.cli import main
from fleet.launch import Processes
print(Processes(Path(sys.argv[1])).start("child", "sleep", "600"), flush=True)
time.sleep(600)
"""
    with default_signals():
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
    assert parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    wait_until(lambda: not is_running(child))
