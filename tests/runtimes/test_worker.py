"""TFF's worker process exits with the process that started it, whatever ends that process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.marks import selected, usually
from tests.support.processes import default_signals, is_running, wait_until
from tff_agnostic.base.later import tff
from tff_agnostic.runtimes.tff import TffWorker

_ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_SECONDS = 60.0

_PARENT = """
import time
from tff_agnostic.runtimes.tff import TffWorker
with TffWorker() as worker:
    print(worker.pid, flush=True)
    time.sleep(600)
"""


def test_worker_exits_with_its_context():
    with TffWorker() as worker:
        pid = worker.pid
        assert is_running(pid)
    assert not is_running(pid)


@pytest.mark.slow
def test_worker_exits_after_exception_in_context():
    with pytest.raises(KeyError), TffWorker() as worker:
        pid = worker.pid
        raise KeyError
    assert not is_running(pid)


_SIGNALS = (signal.SIGKILL, signal.SIGINT)


@pytest.fixture(scope="module")
def parents(
    request: pytest.FixtureRequest,
) -> "Iterator[dict[signal.Signals, subprocess.Popen[str]]]":
    """Python processes with a worker, by the signal for each; all start at once to save time."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with default_signals():
        processes = {
            sent: subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _PARENT],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            for sent in selected(request, "sent")
        }
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


# Another test covers the exception that Ctrl-C raises.
@pytest.mark.nightly
@pytest.mark.parametrize("sent", usually([signal.SIGKILL], _SIGNALS), ids=lambda sent: sent.name)
def test_worker_exits_after_signal_to_parent(parents, sent):
    parent = parents[sent]
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.send_signal(sent)
    parent.wait(_DEADLINE_SECONDS)
    wait_until(lambda: not is_running(pid))


def test_worker_outlives_the_thread_that_started_it():
    """The kernel's parent-death signal comes when the starting thread exits, not its process."""
    worker = TffWorker()
    starter = threading.Thread(target=worker.__enter__)
    starter.start()
    starter.join()
    try:
        time.sleep(0.5)
        assert is_running(worker.pid)
    finally:
        worker.__exit__(None, None, None)


@pytest.mark.slow
def test_worker_can_be_started_again():
    worker = TffWorker()
    pids = []
    for _ in range(2):
        with worker:
            pids.append(worker.pid)
    assert pids[0] != pids[1]
    assert not is_running(pids[1])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo one; echo cannot bind to the port >&2; exit 3", "cannot bind to the port"),
        ("exit 3", "it printed nothing"),
    ],
)
def test_failed_worker_start_shows_last_output(monkeypatch, tmp_path, script, message):
    binary = tmp_path / "data" / "worker_binary"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setattr(tff, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(RuntimeError, match=f"worker did not start: {message}"), TffWorker():
        pass
