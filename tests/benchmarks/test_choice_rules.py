"""Other rules of choice: by hand, and the project's own as one of them."""

import math

import numpy as np
import pytest

from benchmarks.choice_rules import gain_of_worst, right, surest, trained
from benchmarks.recommend_promise import Drawn
from tff_agnostic.metrics.intervals import Spread
from tff_agnostic.program.studies.choice import Judged, chosen
from tff_agnostic.program.studies.gains import Gain


def test_at_the_level_of_the_interval_it_is_the_rule_of_recommend():
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(50):
        means, errors = rng.uniform(-0.1, 0.3, size=3), rng.uniform(0.01, 0.2, size=3)
        rows = {
            f"r{k}": Spread(mean, error**2, math.nan, error**2, 9.0)
            for k, (mean, error) in enumerate(zip(means, errors))
        }
        judged = {
            row: Judged(Gain("worst", 0.0, 0.0, of.mean, of, 30.0), 0.0) for row, of in rows.items()
        }
        assert surest(rows, 0.975) == chosen(judged)
        found.add(surest(rows, 0.975))
    assert len(found) == 4
    # Between the two bounds: t of 9 degrees is 2.262 and 1.833.
    assert surest({"a": Spread(0.2, 0.01, math.nan, 0.01, 9.0)}, 0.975) is None
    assert surest({"a": Spread(0.2, 0.01, math.nan, 0.01, 9.0)}, 0.95) == "a"


def test_rows_serve_whom_they_should():
    """Nine clients of one domain and one of another, whose labels are the opposite."""
    rng = np.random.default_rng(1)
    domains = np.array([0] * 9 + [1])
    x = rng.normal(size=(10, 20, 2))
    labels = ((x[..., 0] > 0) ^ (domains == 1)[:, None]).astype(int)
    clients = Drawn(x, labels)
    of = {row: trained(row, clients, domains, 0.5, 0) for row in ("fed_avg", "uniform", "frozen")}
    shares = {row: right(w, clients).mean(axis=-1) for row, w in of.items()}
    assert shares["fed_avg"][:9].mean() > 0.95
    assert shares["fed_avg"][9] < 0.1
    # Equal weights of opposite domains: the score is near to 0. Lambda goes to the worse domain.
    assert abs(of["uniform"][0]) < 0.3 * of["fed_avg"][0]
    assert of["frozen"][0] < 0.5 * of["fed_avg"][0]


def test_the_gain_of_the_worst_domain_and_its_error_over_clients():
    rng = np.random.default_rng(2)
    ours, theirs = rng.uniform(size=(1, 2, 30)), rng.uniform(size=(1, 2, 30))
    # One domain is the worst by far, of both: its clients alone are in the error.
    ours[:, 1] += 5
    theirs[:, 1] += 5
    found = gain_of_worst(ours, theirs, rng.poisson(1, (4000, 2, 30)))
    change = (ours - theirs)[0, 0]
    assert found.mean == pytest.approx(change.mean())
    assert found.of_clients == pytest.approx(change.var(ddof=1) / 30, rel=0.1)
