"""Sides in turn: who runs when, what is counted, and what a failure takes with it."""

import pytest

from benchmarks.timing import schedule
from benchmarks.timing.process import SideError
from benchmarks.timing.schedule import Contestant, measure
from tests.benchmarks.timing.harness import TINY, fake, protocol


def test_rounds_are_counted_without_the_first_ones(tmp_path):
    sleepy, good = measure([fake("sleepy"), fake("good")], protocol(tmp_path, rounds=3, repeats=2))
    for result in (sleepy, good):
        assert [len(seconds) for seconds in result.seconds] == [3, 3]
        assert len(result.first_round) == len(result.peak_bytes) == 2
        assert min(result.peak_bytes) > 5e6
        assert result.versions["numpy"]
        assert result.failure is None
    assert sleepy.median >= 0.05
    # Python's start alone is longer than the rounds.
    assert min(sleepy.first_round) > 0.05


# In a round, and before the first; test_process has the other failures.
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raises", "ended with status 1: IndexError: list index out of range"),
        ("good:7", "ended with status 1: expected a model of 12 parameters, found one of 7"),
    ],
)
def test_the_others_go_on_without_one_that_fails(tmp_path, behaviour, message):
    said = []
    results = measure(
        [fake("good", "first"), fake(behaviour, "bad"), fake("sleepy", "last")],
        protocol(tmp_path, rounds=2, repeats=2, said=said),
    )
    first, bad, last = results
    assert bad.failure == message
    assert bad.rounds == []
    assert said.count(f"bad {message}") == 1
    # It is not started again.
    assert said.count("starting bad") == 1
    for result in (first, last):
        assert result.failure is None
        assert [len(seconds) for seconds in result.seconds] == [2, 2]


def test_a_side_that_cannot_be_installed_is_left_out(tmp_path):
    def no_environment():
        raise SideError("cannot be installed: no such package")

    results = measure(
        [Contestant("bad", TINY.describe(), no_environment), fake("good")], protocol(tmp_path)
    )
    assert results[0].failure == "cannot be installed: no such package"
    assert len(results[1].rounds) == 6


def test_sides_take_turns(tmp_path, monkeypatch):
    order = []

    class Recorded(schedule.SideProcess):
        def round(self):
            order.append(self._log.name.partition("-")[0])
            return super().round()

    monkeypatch.setattr(schedule, "SideProcess", Recorded)
    measure([fake("good", t) for t in "abc"], protocol(tmp_path, rounds=2, repeats=1))
    names = ["00", "01", "02"]
    start, turns, memory = order[:3], order[3:-3], order[-3:]
    assert start == memory == names
    assert turns == [*names, "01", "02", "00", "02", "00", "01"]
