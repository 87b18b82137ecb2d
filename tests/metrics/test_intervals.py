"""Confidence intervals, compared with their definitions and their nominal coverage."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tff_agnostic.metrics.intervals import (
    LEVEL,
    mean_interval,
    quantile_interval,
    share_interval,
    superquantile_interval,
)

_Z = 1.959963984540054


@pytest.mark.parametrize(("share", "count"), [(0.0, 10), (0.3, 10), (0.5, 7), (0.97, 1000), (1, 3)])
def test_share_has_wilson_interval(share, count):
    low, high = share_interval(share, count)
    for end in (low, high):
        # At the interval's ends, a test of this level just accepts the share.
        assert (share - end) ** 2 == pytest.approx(_Z**2 * end * (1 - end) / count, abs=1e-12)
    assert 0 <= low <= share <= high <= 1


@pytest.mark.parametrize(("share", "count"), [(0.5, 0), (math.nan, 5), (1.5, 5)])
def test_invalid_share_has_no_interval(share, count):
    assert share_interval(share, count) is None


def test_mean_has_student_interval():
    values, clients = np.array([0.0, 0.5, 2.0]), np.array([3, 1, 4])
    sample = np.repeat(values, clients)
    actual = mean_interval(values, clients, sample.mean())
    scale = stats.sem(sample)
    assert actual == pytest.approx(stats.t.interval(LEVEL, 7, sample.mean(), scale), rel=1e-9)


@pytest.mark.parametrize("clients", [[0, 0], [1, 0], [9, 0]])
def test_equal_clients_have_no_interval(clients):
    assert mean_interval(np.array([1.0, 2.0]), np.array(clients), 1.0) is None


@pytest.mark.parametrize("total", [5, 12, 20, 73, 400])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.95])
def test_percentile_lies_between_order_statistics(total, q):
    values = np.arange(1.0, total + 1)
    actual = quantile_interval(values, np.ones(total, int), q)
    below = stats.binom(total, q)
    alpha = (1 - LEVEL) / 2
    # The k-th smallest value is above the quantile if fewer than k clients lie below the quantile.
    low = max((k for k in range(1, total + 1) if below.cdf(k - 1) <= alpha), default=0)
    high = min((k for k in range(1, total + 1) if below.sf(k - 1) <= alpha), default=total + 1)
    assert actual == ((low, high) if low >= 1 and high <= total else None)


def test_tail_with_few_clients_has_no_interval():
    assert superquantile_interval(np.arange(99.0), np.ones(99), 0.1, True) is None
    assert superquantile_interval(np.arange(100.0), np.ones(100), 0.1, True) is not None


def test_lower_tail_mirrors_upper_tail():
    values, clients = np.array([0.0, 1.0, 3.0, 7.0]), np.array([30, 50, 15, 10])
    low, high = superquantile_interval(values, clients, 0.1, True)
    turned = superquantile_interval(-values[::-1], clients[::-1], 0.1, False)
    assert turned == pytest.approx((-high, -low))
    assert low < 7.0 <= high + 1e-9


def _covered(interval: Any, truth: float, draw: Any, repetitions: int = 400) -> float:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(repetitions):
        low, high = interval(np.sort(draw(rng)))
        hits += low <= truth <= high
    return hits / repetitions


def test_intervals_cover_the_truth():
    def draw(rng):
        return rng.exponential(size=200)

    ones = np.ones(200, int)
    # The worst tenth of an exponential has mean log(10) + 1, and the median is log(2).
    cases = [
        (lambda x: mean_interval(x, ones, x.mean()), 1.0),
        (lambda x: quantile_interval(x, ones, 0.5), math.log(2)),
        (lambda x: superquantile_interval(x, ones, 0.1, True), math.log(10) + 1),
    ]
    for interval, truth in cases:
        # The lower limit is far below 0.95, because the tail has only 20 clients; see the coverage
        # in docs/explanations/intervals.md.
        assert 0.88 <= _covered(interval, truth, draw) <= 0.99
