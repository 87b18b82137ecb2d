"""Processor seconds of processes and of all that they have started, as Linux's /proc has them."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Optional

_PROC = Path("/proc")
# After the name of the program, which may hold spaces: see proc(5).
_PARENT, _TIMES = 1, slice(11, 15)


def processor_seconds(roots: Iterable[int], proc: Path = _PROC) -> dict[int, float]:
    """Returns the processor seconds of process trees, by their first process; of those that run.

    A process counts with those of its children that have ended and that it has waited for.

    Args:
        roots: Ids of processes.
        proc: Where Linux tells of processes.
    """
    own, children = dict[int, float](), dict[int, list[int]]()
    for number, parent, seconds in _processes(proc):
        own[number] = seconds
        children.setdefault(parent, []).append(number)

    def of_tree(number: int) -> float:
        return own[number] + sum(map(of_tree, children.get(number, ())))

    return {root: of_tree(root) for root in roots if root in own}


def _processes(proc: Path) -> Iterator[tuple[int, int, float]]:
    tick = os.sysconf("SC_CLK_TCK")
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            # It has ended meanwhile.
            continue
        fields = text[text.rindex(")") + 1 :].split()
        yield int(folder.name), int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / tick


class Meter:
    """Looks at processes now and then, and tells what they used between two times.

    Args:
        clock: Seconds of a clock that goes forward.
        look: As `processor_seconds`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Iterable[int]], Mapping[int, float]] = processor_seconds,
    ) -> None:
        self._clock, self._look = clock, look
        self._times: list[float] = []
        self._found: list[Mapping[int, float]] = []

    def look(self, processes: Iterable[int], every: float = 0.0) -> None:
        """Looks, unless it did so less than `every` seconds ago."""
        now = self._clock()
        if self._times and now < self._times[-1] + every:
            return
        self._times.append(now)
        self._found.append(self._look(processes))

    def last(self, processes: Iterable[int], seconds: float) -> Optional[float]:
        """Returns the mean of processes' processor seconds in the last so many seconds.

        A part of a second before is counted, as far as nobody looked meanwhile; a process that was
        not there all the time is not. None if none was.
        """
        began = bisect.bisect_right(self._times, self._times[-1] - seconds) - 1
        first, last = self._found[max(began, 0)], self._found[-1]
        there = [number for number in processes if number in first and number in last]
        used = [last[number] - first[number] for number in there]
        return sum(used) / len(used) if used else None
