"""Processes that tests start: their reactions to signals, and their ends."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

# Even on a busy machine, only a hang takes this long.
_TIMEOUT_SECONDS = 300.0


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Within the context, started processes react to Ctrl-C and a hang-up as in a terminal.

    Background jobs of a shell ignore SIGINT, and `nohup` ignores SIGHUP; children inherit both.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    try:
        for number in ignored:
            # A signal with a handler gets its default action in a program that is started.
            signal.signal(number, lambda *_: None)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def is_running(pid: int) -> bool:
    """Returns whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def child_processes(pid: int) -> list[int]:
    """Returns the process ids of a process's children."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for a condition; gives up after a time that only a hang can take."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
