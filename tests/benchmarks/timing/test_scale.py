"""How rounds grow: comparisons with the base, and the memory of a long run."""

import pytest

from benchmarks.timing.scale import ScalePlan, measure_scale
from tests.benchmarks.timing.harness import TINY, command, protocol

PLAN = ScalePlan(cohorts=(TINY, TINY, TINY), long_run=TINY, long_rounds=6, look_every=2)


class Fake:
    """Stands in for a `SideSpec`."""

    def __init__(self, behaviour):
        self._behaviour = behaviour

    def command(self, workload):
        assert workload == TINY
        return command(self._behaviour)


def test_cohorts_are_compared_with_the_second(tmp_path):
    result = measure_scale(Fake("sleepy"), PLAN, protocol(tmp_path, rounds=2, repeats=1))
    assert result.failures() == []
    assert [len(cohort.side.rounds) for cohort in result.cohorts] == [2, 2, 2]
    base = result.cohorts[1]
    assert (base.linear, base.extra_bytes) == (1.0, 0)
    for cohort in result.cohorts:
        assert cohort.linear == pytest.approx(cohort.side.median / base.side.median)
        assert cohort.extra_bytes == cohort.side.peak_bytes[0] - base.side.peak_bytes[0]


def test_growth_is_between_the_first_and_the_last_look(tmp_path):
    long_run = measure_scale(Fake("grows"), PLAN, protocol(tmp_path, rounds=1, repeats=1)).long_run
    assert list(long_run.memory_bytes) == [2, 4, 6]
    # Four rounds of 20 MB.
    assert 75e6 < long_run.growth_bytes < 110e6


def test_a_failure_is_told(tmp_path):
    result = measure_scale(Fake("raises"), PLAN, protocol(tmp_path, rounds=2, repeats=1))
    assert len(result.failures()) == 4
    assert result.failures()[-1].startswith("the long run, scale: ended with status 1: IndexError")
    assert all(cohort.linear is None for cohort in result.cohorts)
    assert result.long_run.growth_bytes is None
