"""Processes of a fleet end with the process that started them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from fleet.cli import main
from fleet.demo import named_clients
from fleet.launch import Processes
from plan_runner.errors import PlanError
from plan_runner.exit_status import Terminated, ended_by_signals
from tests.support.processes import default_signals, is_running, wait_until

# A process and its child; both ignore SIGTERM and SIGINT.
_STUBBORN = "trap '' TERM INT; (trap '' TERM INT; while :; do sleep 1; done) & echo $!; wait; wait"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_processes_and_children(tmp_path, monkeypatch, number):
    monkeypatch.setattr("fleet.launch._ENDING_SECONDS", 0.1)
    with pytest.raises(Terminated), ended_by_signals(), Processes(tmp_path) as processes:
        started = processes.start("stubborn", "sh", "-c", _STUBBORN)
        wait_until(lambda: processes.log("stubborn").read_text().endswith("\n"))
        numbers = [started, int(processes.log("stubborn").read_text())]
        assert all(map(is_running, numbers))
        os.kill(os.getpid(), number)
        signal.pause()
    wait_until(lambda: not any(map(is_running, numbers)))


def test_printed_output_excludes_that_of_earlier_processes(tmp_path):
    for last in ("error: é gone", "ready"):
        with Processes(tmp_path) as processes:
            for words in ("ready", last):
                processes.start("node", "sh", "-c", "sleep 0.1; echo $0", words)
                assert processes.printed("node") == ""
                wait_until(lambda: processes.status("node") is not None)
                assert processes.printed("node") == f"{words}\n"
                assert processes.last_output("node") == words.removeprefix("error: ")
                processes.end("node")
    assert processes.log("node").read_text().count("ready\n") == 3


def test_full_disk_raises_plan_error(tmp_path, monkeypatch, capsys):
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Processes(tmp_path / "there") as processes:
        processes.start("cut", "sh", "-c", "echo half of")
        wait_until(lambda: processes.status("cut") is not None)
        assert processes.last_output("cut") == "half of"
        monkeypatch.setattr(os, "fsync", full)
        for call in (lambda: processes.last_output("cut"), lambda: Processes(tmp_path / "new")):
            with pytest.raises(PlanError, match=r"space, cannot write \(No space left on device\)"):
                call()
    assert main(["keys", "--node=a", f"--output={tmp_path / 'keys'}"]) == 2
    assert capsys.readouterr().err == "error: cannot read or write (No space left on device)\n"


def test_clients_with_invalid_names_are_renamed(tmp_path):
    lines: list[str] = []
    files = [tmp_path / f"{name}.tfrecord" for name in ("a%2F1", "b")]
    for file in files:
        file.write_text(file.stem)
    assert named_clients(files[1:], tmp_path / "valid", lines.append) == ["b"] and not lines
    assert named_clients(files, tmp_path / "new", lines.append) == ["client_000", "client_001"]
    contents = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert contents == {"client_000.tfrecord": "a%2F1", "client_001.tfrecord": "b"}
    assert lines == [f"client_00{number}: {file}" for number, file in enumerate(files)]


@pytest.mark.slow
def test_killed_parent_leaves_no_process(tmp_path):
    code = """
import sys, time
from pathlib import Path
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
