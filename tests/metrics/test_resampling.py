"""Intervals over test clients and seeds, compared with closed forms and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from tff_agnostic.metrics.intervals import (
    combined,
    effective_clients,
    has_enough,
    replicate_ratios,
)


def _replicates(rng, values, sizes, count):
    """Returns Poisson replicates of the sums [K, C] over sizes [C], and of the total size."""
    weights = rng.poisson(1.0, (count, len(sizes)))
    by_size = weights @ sizes
    ratios = [
        replicate_ratios(
            values_.sum(keepdims=True),
            [sizes.sum()],
            (weights @ values_)[:, None],
            by_size[:, None],
        )
        for values_ in values
    ]
    return np.array(ratios)[..., 0], by_size


def test_replicates_have_variance_of_a_ratio():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 90, 25).astype(float)
    right = rng.binomial(sizes.astype(int), 0.7)
    ratios, by_size = _replicates(rng, right[np.newaxis].astype(float), sizes, 40_000)
    ratio = right.sum() / sizes.sum()
    assert ratios.mean() == pytest.approx(ratio, abs=1e-3)
    # The expected variance is that of Cochran 1977, equation 6.13, without the correction for a
    # finite population.
    expected = np.sum((right - ratio * sizes) ** 2) / sizes.sum() ** 2
    assert ratios.var() == pytest.approx(expected, rel=0.05)
    kish = sizes.sum() ** 2 / np.sum(sizes**2)
    assert effective_clients([sizes.sum()], by_size[:, None]) == pytest.approx([kish], rel=0.05)


def test_empty_set_has_no_replicates():
    assert np.isnan(replicate_ratios([0.0], [0.0], np.zeros((3, 1)), np.zeros((3, 1)))).all()
    assert effective_clients([0.0], np.zeros((3, 1))) == [0.0]
    assert not has_enough(0.0)


def test_two_models_have_paired_replicates():
    # Noise that both models share cancels in differences.
    rng = np.random.default_rng(2)
    sizes = np.full(12, 10.0)
    right = rng.integers(0, 9, 12).astype(float)
    (ours, theirs), _ = _replicates(rng, np.array([right + 1, right]), sizes, 200)
    spread = combined([0.1], (ours - theirs)[np.newaxis] - 0, 12)
    assert ours.std() > 0.01
    assert spread.total == 0


def test_variance_matches_two_crossed_samples():
    rng = np.random.default_rng(3)
    num_clients, num_seeds = 40, 6
    gains = rng.normal(0, 1, (num_seeds, num_clients)) + rng.normal(0, 2, num_clients)
    gains += rng.normal(0, 0.5, (num_seeds, 1))
    replicates, _ = _replicates(rng, gains, np.ones(num_clients), 20_000)
    spread = combined(gains.mean(axis=1), replicates, num_clients)
    # The expected variance comes from sums of squares of rows, columns and residuals (Cameron,
    # Gelbach and Miller 2011).
    rows = gains.mean(axis=1).var(ddof=1) / num_seeds
    columns = gains.mean(axis=0).var(ddof=1) / num_clients
    each = gains.var(axis=1, ddof=1).mean() / num_clients
    both = (each - columns) / (num_seeds - 1)
    assert spread.seed_variance == pytest.approx(rows)
    assert spread.client_variance == pytest.approx(columns, rel=0.05)
    assert spread.total == pytest.approx(rows + columns - both, rel=0.05)


def test_interval_over_seeds_equals_student_interval():
    gains = [0.2, 0.5, 0.1]
    spread = combined(gains, None, 50)
    scale = stats.sem(gains)
    expected = stats.t.interval(0.95, 2, np.mean(gains), scale)
    assert spread.interval() == pytest.approx(expected)
    assert math.isnan(spread.client_variance)
    assert combined([0.2], None, 50).interval() is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_rounding_errors_have_no_interval(scale):
    # Each trial gains 0.1, up to rounding errors.
    gains = scale * (np.array([0.8, 0.9, 0.5]) - np.array([0.7, 0.8, 0.4]))
    assert np.ptp(gains) > 0
    spread = combined(gains, None, 50, magnitude=0.9 * scale)
    assert spread.interval() is None
    assert spread.needed() == (None, None, None)
    replicates = np.repeat(gains[:, np.newaxis], 8, axis=1)
    assert combined(gains, replicates, 50, magnitude=0.9 * scale).interval() is None


def test_small_differences_between_large_values_have_intervals():
    low, high = combined([1e-6, 2e-6, 4e-6], None, 50, magnitude=100.0).interval()
    assert low < 2e-6 < high


def test_one_seed_gives_student_interval_over_clients():
    rng = np.random.default_rng(4)
    gains = rng.normal(1, 1, (1, 15))
    replicates, _ = _replicates(rng, gains, np.ones(15), 50_000)
    low, high = combined(gains.mean(axis=1), replicates, 15).interval()
    expected = stats.t.interval(0.95, 14, gains.mean(), stats.sem(gains[0]))
    assert (low, high) == pytest.approx(expected, rel=0.03, abs=0.02)
    assert combined([1.0], replicates, 1.0).interval() is None


def test_crossed_intervals_cover_the_truth():
    rng = np.random.default_rng(5)
    clients, seeds, repetitions = 30, 10, 400
    held = {"both": 0, "seeds": 0}
    for _ in range(repetitions):
        gains = rng.normal(0, 1, clients) + rng.normal(0, 0.2, (seeds, 1))
        gains = gains + rng.normal(0, 0.5, (seeds, clients))
        replicates, _ = _replicates(rng, gains, np.ones(clients), 100)
        for name, client_variance in (("both", replicates), ("seeds", None)):
            low, high = combined(gains.mean(axis=1), client_variance, clients).interval()
            held[name] += low <= 0 <= high
    assert 0.92 <= held["both"] / repetitions <= 0.98
    assert held["seeds"] / repetitions < 0.7


def test_needed_clients_match_the_formula():
    rng = np.random.default_rng(6)
    gains = rng.normal(0.3, 1, (1, 20))
    gains += 0.3 - gains.mean()
    replicates, _ = _replicates(rng, gains, np.ones(20), 20_000)
    spread = combined([0.3], replicates, 20)
    factor = spread.needed().clients
    # An interval ends at 0 if t^2 variance / clients equals the square of the effect.
    t = stats.t.ppf(0.975, 19)
    assert factor == pytest.approx(t**2 * gains.var(ddof=1) / 20 / 0.09, rel=0.05)
    # Where three seeds disagree, no number of clients suffices.
    apart = combined([0.9, 0.0, 0.0], np.repeat(replicates, 3, axis=0), 20)
    assert apart.needed().clients is None
