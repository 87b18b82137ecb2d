"""What the made-up problems say of `recommend`, by hand."""

import math

import numpy as np
import pytest
import scipy.stats

from benchmarks.recommend_promise import Drawn, accuracies, table, validated, worst_gain
from tff_agnostic.metrics.intervals import Spread
from tff_agnostic.program.studies.gains import Gain


def test_a_linear_model_is_right_where_its_larger_score_is_the_labels():
    x = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[2.0, 5.0], [-3.0, 1.0]]])
    labels = np.array([[1, 0], [0, 0]])
    kernel, bias = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.5])
    found = accuracies(kernel, bias, [Drawn(x, labels)])
    np.testing.assert_array_equal(found, [[1.0, 0.5]])


def test_the_gain_is_of_the_worst_domains_with_an_interval_over_clients():
    rng = np.random.default_rng(0)
    # Two trials of two domains. Worst: 0.6 and 0.5 of ours, 0.4 and 0.4 of theirs.
    ours = np.array([[[0.5, 0.7], [0.9, 0.9]], [[0.8, 0.8], [0.4, 0.6]]])
    theirs = np.array([[[0.3, 0.5], [0.9, 0.9]], [[0.9, 0.9], [0.4, 0.4]]])
    gain, (low, high) = worst_gain(ours, theirs, rng)
    assert gain == pytest.approx((0.2 + 0.1) / 2)
    # A trial's gain is 0.2 with any clients of its worst domain; the other's is 0, 0.1 or 0.2.
    assert (low, high) == pytest.approx((0.1, 0.2))
    assert worst_gain(ours, ours, rng) == (0.0, (0.0, 0.0))


def test_what_validation_clients_say_is_kept_for_other_rules():
    spread = Spread(0.2, 0.01, math.nan, 0.01, 30.0)
    kept = validated(Gain("worst", 0.5, 0.7, 0.2, spread, 40.0))
    # The interval is that of these numbers.
    half = scipy.stats.t.ppf(0.975, kept["freedom"]) * kept["total"] ** 0.5
    assert spread.interval() == pytest.approx((kept["mean"] - half, kept["mean"] + half))
    assert kept["of_seeds"] is None
    assert validated(Gain("worst", 0.5, 0.7, 0.2, None, 1.0)) == {"mean": 0.2}


def test_the_table_has_what_is_lost_and_what_always_one_row_gains():
    results = [
        {"kind": "rare", "choice": "frozen", "interval": (-0.03, -0.01)}
        | {"gains": {"frozen": -0.02, "uniform": 0.04}},
        {"kind": "rare", "choice": "fed_avg", "interval": None}
        | {"gains": {"frozen": 0.06, "uniform": -0.01}},
    ]
    line = table(results).splitlines()[2]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # Gains in points: the choices', the best rows', always uniform, always agnostic.
    assert cells == ["rare", "2", "0.50", "-1.00", "5.00", "1.50", "2.00", "2.00", "0.50"]
