"""Processor seconds of processes, of made-up files of /proc and of this process."""

from __future__ import annotations

import os
import time

import pytest

from fleet.demo import Meter, processor_seconds

_TICK = os.sysconf("SC_CLK_TCK")


def _tell(proc, number, parent, *ticks, name="x"):
    """Writes what proc(5) says: fields 1 to 4, ten others, then utime, stime, cutime, cstime."""
    (proc / str(number)).mkdir()
    others = " ".join("7" for _ in range(9))
    text = f"{number} ({name}) S {parent} {others} {' '.join(map(str, ticks))} 20 0 1"
    (proc / str(number) / "stat").write_text(text)


def test_a_process_counts_with_all_that_it_has_started(tmp_path):
    _tell(tmp_path, 10, 1, 1, 2, 3, 4, name="a) (b")
    _tell(tmp_path, 11, 10, 20, 0, 0, 0)
    _tell(tmp_path, 12, 11, 0, 300, 0, 0)
    _tell(tmp_path, 13, 1, 4000, 0, 0, 0)
    (tmp_path / "14").mkdir()
    (tmp_path / "self").mkdir()
    found = processor_seconds([10, 13, 99], tmp_path)
    assert found == pytest.approx({10: 330 / _TICK, 13: 4000 / _TICK})


def test_this_process_counts():
    before = processor_seconds([os.getpid()])[os.getpid()]
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    used = processor_seconds([os.getpid()])[os.getpid()] - before
    # Other threads, and a tick.
    assert used >= 0.1 - 2 / _TICK


def test_what_was_used_between_two_times():
    """Two nodes use 1 and 3 seconds a second; the second one is started again at 3."""
    now = [0.0]

    def look(processes):
        used = {1: now[0], 2: 3 * now[0], 3: 50 * (now[0] - 3)}
        return {process: used[process] for process in processes}

    meter = Meter(lambda: now[0], look)
    for now[0] in (0.0, 1.0, 1.2, 2.0):
        meter.look([1, 2], every=0.5)
    assert meter.last([1, 2], 1.0) == pytest.approx(2.0)
    # Nobody looked at 1.2, and none was there before 0.
    assert meter.last([1, 2], 0.8) == pytest.approx(2.0)
    assert meter.last([1], 9.0) == pytest.approx(2.0)
    for now[0] in (3.0, 4.0):
        meter.look([1, 3])
    assert meter.last([1, 3], 2.0) == pytest.approx(2.0)
    assert meter.last([2], 2.0) is None
