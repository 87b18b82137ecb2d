"""The portfolio: tried settings of each method, and schedules within a time limit."""

from types import SimpleNamespace
from typing import Any

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.methods import WORDS
from tff_agnostic.program.studies.portfolio import (
    FACTORS,
    PORTFOLIO,
    PortfolioSearch,
    Schedule,
    learning_rates,
    schedule_within,
)
from tff_agnostic.program.studies.runset import RunSet

_MOST = Schedule(8, 5)


def test_methods_try_equally_many_settings():
    for row in PORTFOLIO:
        arm = dict(WORDS[row].settings) if row in WORDS else {"algorithm": row}
        arm.pop("lambda_baselines", None)
        first = resolve("digits", {**arm, "client_learning_rate": 0.5}, {})
        tried = learning_rates(row, first, len(FACTORS))
        assert len(tried) == len(FACTORS)
        assert tried[0] == {}
        assert {flag for values in tried for flag in values} == set(PORTFOLIO[row])
        # If two settings were equal, they would be tried only once.
        assert len({tuple(sorted(entry.items())) for entry in tried}) == len(FACTORS)
        assert [entry.get("client_learning_rate", 0.5) for entry in tried[:3]] == [0.5, 1.0, 0.25]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # Four runs take 70 s at each setting; another trial of FedAvg and two methods takes 50 s,
        # and each final trial of FedAvg and the costlier method takes 30 s.
        (1e9, (8, 5)),
        (70 + 4 * 50 + 5 * 30 + 2 * 70, (3, 5)),
        (70 + 4 * 50 + 5 * 30, (1, 5)),
        (70 + 4 * 50 + 5 * 30 - 1, (2, 4)),
        (70 + 30, (1, 1)),
    ],
)
def test_schedule_is_the_largest_that_fits(seconds, expected):
    by_row = {"fed_avg": 10.0, "uniform": 20.0, "frozen": 20.0, "excess_own": 20.0}
    assert schedule_within(seconds, 70.0, by_row, _MOST) == expected


def test_schedule_includes_reference_runs_of_excluded_methods(tmp_path):
    """On digits, ten reference runs are trained before their losses turn out to be 0."""
    nothing: Any = None
    runs: Any = RunSet(tmp_path, {}, nothing, False, nothing)
    for name, seconds in {
        "search/fed_avg-1/trial_00": 10.0,
        "search/uniform-1/trial_00": 15.0,
        "first_stages/search/uniform-1/trial_00": 5.0,
        "references/excess_own": 150.0,
    }.items():
        runs.path(name).mkdir(parents=True)
        write_json(runs.path(name) / "seconds.json", {"seconds": seconds})

    def schedule(seconds: float) -> Schedule:
        args = SimpleNamespace(tries=None, trials=5, hours=seconds / 3600)
        rows: Any = SimpleNamespace(given=SimpleNamespace(args=args))
        fixed: dict = {"fed_avg": {}, "uniform": {}}
        return PortfolioSearch(rows, fixed, nothing, runs, nothing)._schedule()

    # A setting takes 30 s, and so do a further trial and a final trial.
    assert schedule(180 + 5 * 60 - 30) == (1, 5)
    assert schedule(180 + 30) == (1, 1)
    with pytest.raises(UserError, match=r"^--hours: expected 0\.06 or more, .*, found 0\.0497"):
        schedule(179)
