"""Finds, stops and resumes the descendants of a process, and measures their memory, by /proc."""

import contextlib
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

_INTERVAL_SECONDS = 0.2


def descendants(pid: int) -> list[int]:
    """Returns the ids of all descendants of process `pid`."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # Skip a process that exits during the loop.
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text()
                # The process name, in parentheses, may contain any characters.
                parent = int(stat.rpartition(")")[2].split()[1])
                children[parent].append(int(folder.name))
    result, unseen = [], [pid]
    while unseen:
        below = children[unseen.pop()]
        result += below
        unseen += below
    return result


def hold(pid: int) -> None:
    """Stops all descendants of process `pid`."""
    _send(pid, signal.SIGSTOP)


def release(pid: int) -> None:
    """Resumes all descendants of process `pid`."""
    _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    for process in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def memory_bytes(pid: int) -> int:
    """Returns a process's memory, in which a page of n processes counts 1/n (PSS)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def tree_memory_bytes(pid: int) -> int:
    """Returns the total memory of all descendants of process `pid`."""
    return sum(map(memory_bytes, descendants(pid)))


class PeakMemory:
    """Samples the total memory of a process's descendants during a with block.

    Attributes:
        peak_bytes: The largest sample.
    """

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Takes a last sample, and stops sampling."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(_INTERVAL_SECONDS)
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes(self._pid))
