"""Timing schedules: order of rounds, counted seconds, failures, and peers' environments."""

import pytest

from benchmarks.timing import schedule, sides
from benchmarks.timing.environments import BENCHMARKS
from benchmarks.timing.process import SideError
from benchmarks.timing.scale import ScalePlan, measure_scale
from benchmarks.timing.schedule import Contestant, measure
from tests.benchmarks.timing.harness import TINY, command, fake, protocol


@pytest.mark.nightly
def test_first_rounds_are_not_counted(tmp_path):
    sleepy, good = measure([fake("sleepy"), fake("good")], protocol(tmp_path, rounds=3, repeats=2))
    for result in (sleepy, good):
        assert [len(seconds) for seconds in result.seconds] == [3, 3]
        assert len(result.first_round) == len(result.peak_bytes) == 2
        assert min(result.peak_bytes) > 5e6
        assert result.versions["numpy"]
        assert result.failure is None
    assert sleepy.median >= 0.05
    # Just starting Python takes longer than a round.
    assert min(sleepy.first_round) > 0.05


@pytest.mark.nightly
def test_side_runs_its_fastest_setting(tmp_path):
    (side,) = measure([fake("settings")], protocol(tmp_path, rounds=3, repeats=2))
    assert side.settings == ["fast", "fast"]
    assert len(side.rounds) == 6


# The first side fails in a round, the second one before its first round.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raises", "ended with status 1: IndexError: list index out of range"),
        ("good:7", "ended with status 1: expected a model of 12 parameters, found one of 7"),
    ],
)
def test_other_sides_continue_after_a_failure(tmp_path, behaviour, message):
    messages = []
    results = measure(
        [fake("good", "first"), fake(behaviour, "bad"), fake("sleepy", "last")],
        protocol(tmp_path, rounds=2, repeats=2, messages=messages),
    )
    first, bad, last = results
    assert bad.failure == message
    assert bad.rounds == []
    assert messages.count(f"bad {message}") == 1
    # A failed side is not started again.
    assert messages.count("starting bad") == 1
    for result in (first, last):
        assert result.failure is None
        assert [len(seconds) for seconds in result.seconds] == [2, 2]


@pytest.mark.nightly
def test_side_without_installation_is_omitted(tmp_path):
    def no_environment():
        raise SideError("cannot be installed: no such package")

    results = measure(
        [Contestant("bad", TINY.describe(), no_environment), fake("good")], protocol(tmp_path)
    )
    assert results[0].failure == "cannot be installed: no such package"
    assert len(results[1].rounds) == 6


@pytest.mark.nightly
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
    third = ["01", "02", "00", "02", "00", "01"]
    assert turns == [*names, *third, *names, *third[:3]]


# --- Seconds and memory may grow with the number of clients or rounds


PLAN = ScalePlan(
    cohorts=(TINY, TINY, TINY), long_run=TINY, long_rounds=6, look_every=2, store_clients=0
)


class Fake:
    """A `SideSpec` that starts a fake side."""

    def __init__(self, behaviour):
        self._behaviour = behaviour

    def command(self, workload):
        assert workload == TINY
        return command(self._behaviour)


@pytest.mark.nightly
def test_cohorts_are_compared_with_the_second_cohort(tmp_path):
    result = measure_scale(Fake("sleepy"), PLAN, protocol(tmp_path, rounds=2, repeats=1))
    assert result.failures() == []
    assert [len(cohort.side.rounds) for cohort in result.cohorts] == [2, 2, 2]
    base = result.cohorts[1]
    assert (base.linear, base.extra_bytes) == (1.0, 0)
    for cohort in result.cohorts:
        assert cohort.linear == pytest.approx(cohort.side.median / base.side.median)
        assert cohort.extra_bytes == cohort.side.peak_bytes[0] - base.side.peak_bytes[0]


@pytest.mark.nightly
def test_memory_growth_is_last_look_minus_first_look(tmp_path):
    long_run = measure_scale(Fake("grows"), PLAN, protocol(tmp_path, rounds=1, repeats=1)).long_run
    assert list(long_run.memory_bytes) == [2, 4, 6]
    # Four rounds add 20 MB each.
    assert 75e6 < long_run.growth_bytes < 110e6


@pytest.mark.nightly
def test_scale_reports_a_failure(tmp_path):
    result = measure_scale(Fake("raises"), PLAN, protocol(tmp_path, rounds=2, repeats=1))
    assert len(result.failures()) == 4
    assert result.failures()[-1].startswith("the long run, scale: ended with status 1: IndexError")
    assert all(cohort.linear is None for cohort in result.cohorts)
    assert result.long_run.growth_bytes is None


def test_every_peer_has_script_and_requirements():
    for peer in sides.PEERS.values():
        assert (BENCHMARKS / "peers" / peer.script).is_file()
        if peer.environment:
            path = BENCHMARKS / "peers" / "requirements" / f"{peer.environment}.txt"
            lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            assert lines
            assert all("==" in line or "<" in line for line in lines), path
            assert "://" not in path.read_text()
