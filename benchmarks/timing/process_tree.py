"""The descendants of a process, from /proc: measuring their memory, and holding them."""

import contextlib
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

_INTERVAL_SECONDS = 0.2


def descendants(pid: int) -> list[int]:
    """Returns the processes below `pid`, without itself."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # A process may exit meanwhile.
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text()
                # The name, in parentheses, may contain any characters.
                parent = int(stat.rpartition(")")[2].split()[1])
                children[parent].append(int(folder.name))
    result, unseen = [], [pid]
    while unseen:
        below = children[unseen.pop()]
        result += below
        unseen += below
    return result


def hold(pid: int) -> None:
    """Stops everything below `pid`."""
    _send(pid, signal.SIGSTOP)


def release(pid: int) -> None:
    """Resumes everything below `pid`."""
    _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    for process in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def memory_bytes(pid: int) -> int:
    """Returns a process's proportional set size, in which shared pages count proportionally."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def tree_memory_bytes(pid: int) -> int:
    """Returns the memory of everything below `pid`."""
    return sum(map(memory_bytes, descendants(pid)))


class PeakMemory:
    """Samples the memory of everything below a process while entered.

    Attributes:
        peak_bytes: The largest sampled sum.
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
        """Stops sampling, after a last sample."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(_INTERVAL_SECONDS)
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes(self._pid))
