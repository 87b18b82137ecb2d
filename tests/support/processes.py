"""Helpers of tests that start processes: default signals, children, and waiting."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

# Seconds to wait, more than a busy machine needs.
_TIMEOUT_SECONDS = 300.0


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Makes processes that start in the context react to SIGINT and SIGHUP.

    A shell's background jobs ignore SIGINT, and `nohup` ignores SIGHUP; children inherit both.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    try:
        for number in ignored:
            # `exec` resets a handled signal, unlike an ignored one, to its default action.
            signal.signal(number, lambda *_: None)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def is_running(pid: int) -> bool:
    """Returns whether a process runs; False for zombies."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def child_processes(pid: int) -> list[int]:
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def wait_until(condition: Callable[[], object]) -> None:
    """Waits until a condition holds, and fails after `_TIMEOUT_SECONDS`."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
