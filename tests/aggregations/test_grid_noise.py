"""Noise in whole steps has the distribution that is accounted for, and sums lie on its grid."""

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tff_agnostic.aggregations import noise_generators
from tff_agnostic.aggregations.chacha20 import joined_halves, keystream
from tff_agnostic.aggregations.noise import NoisedGroup
from tff_agnostic.aggregations.noise_generators import DEVIATION, WORDS, whole_gaussian, with_noise

_DRAWS = 200_000


def _noise(size: int, nonce: int = 0) -> np.ndarray:
    key = tf.constant([1, 2, 3, 4], tf.int64)
    bits = keystream(key, tf.constant([nonce, 0, 0], tf.uint32), 2 * WORDS * size)
    return whole_gaussian(joined_halves(bits)).numpy()


def _digit_probabilities() -> np.ndarray:
    """Of -16383 to 16383, computed one by one."""
    t = 1664.0
    weights = np.exp(-(np.arange(-16383, 16384) ** 2) / (2 * t**2))
    return weights / weights.sum()


def test_a_digit_has_the_probability_of_every_value_to_2_to_the_minus_80():
    """By the table's own rule, against exponentials of 60 digits."""
    firsts, others = noise_generators._table()
    size, in_column = 2**15, 2**64
    counts = [0] * size
    for column, (first, other) in enumerate(zip(map(int, firsts), map(int, others))):
        own = first + 2**63
        assert 0 <= own < in_column
        counts[column] += own
        counts[other] += in_column - own
    assert sum(counts) == 2**79
    assert counts[0] == 0, "a value without an opposite"
    half = size // 2
    assert counts[half:0:-1] == counts[half:], "not symmetric"
    with decimal.localcontext() as context:
        context.prec = 60
        weights = [(Decimal(-(k**2)) / (2 * 1664**2)).exp() for k in range(half)]
        unit = 2**79 / (2 * sum(weights) - 1)
        for k in range(1, half):
            assert abs(counts[half + k] - weights[k] * unit) <= Decimal("0.5000001"), k
        # What rounding of the others leaves over.
        assert abs(counts[half] - unit) <= half
        # Beyond the table there is next to nothing: 2 exp(-z^2 / 2) / (z sqrt(2 pi)).
        z = half / 1664
        assert 2 * math.exp(-(z**2) / 2) / (z * math.sqrt(2 * math.pi)) < 2.0**-73


def test_digits_together_are_a_discrete_gaussian():
    """With digits of the same shape, small enough to add up: t / m is 3.25 here too."""
    t, m = 6.5, 2
    digits = np.arange(-70, 71)
    of_digit = np.exp(-(digits**2) / (2 * t**2))
    of_digit /= of_digit.sum()
    total = np.ones(1)
    for k in range(3):
        spread = np.zeros(140 * m**k + 1)
        spread[:: m**k] = of_digit
        total = np.convolve(total, spread)
    values = np.arange(len(total)) - len(total) // 2
    s = t * math.sqrt(1 + m**2 + m**4)
    expected = np.exp(-(values**2) / (2 * s**2))
    expected /= expected.sum()
    near = np.abs(values) < 5 * s
    np.testing.assert_allclose(total[near], expected[near], rtol=1e-11)
    assert pytest.approx(1664 * math.sqrt(1 + 512**2 + 512**4)) == DEVIATION


def test_draws_are_normal_with_every_digit_right():
    draws = _noise(_DRAWS)
    assert stats.kstest(draws / DEVIATION, "norm").pvalue > 0.01
    assert np.var(draws / DEVIATION) == pytest.approx(1.0, rel=0.01)
    # The last digit by itself: what is left of it modulo 512.
    last = np.zeros(512)
    np.add.at(last, np.arange(-16383, 16384) % 512, _digit_probabilities())
    found = np.bincount(draws % 512, minlength=512)
    assert stats.chisquare(found, _DRAWS * last).pvalue > 0.01
    # And the second, which carries hardly any of it.
    found = np.bincount((draws // 512) % 64, minlength=64)
    assert stats.chisquare(found, np.full(64, _DRAWS / 64)).pvalue > 0.01


def test_another_nonce_has_other_noise():
    assert abs(np.corrcoef(_noise(10_000), _noise(10_000, nonce=1))[0, 1]) < 0.04


def _rounded(
    values: list[np.ndarray], groups: list[NoisedGroup], steps: int = 0
) -> tuple[list[np.ndarray], list[float]]:
    """Returns sums with so many steps of noise on each value, and the step of each."""
    size = sum(values[i].size for group in groups for i in group.positions)
    noisy, deviations = with_noise(
        [tf.constant(value, tf.float64) for value in values],
        groups,
        tf.fill([size], tf.constant(steps, tf.int64)),
    )
    return [value.numpy() for value in noisy], [float(d) / DEVIATION for d in deviations]


def _group(positions: list[int], multiplier: float, limit: float) -> NoisedGroup:
    return NoisedGroup(
        positions, tf.constant(multiplier, tf.float64), tf.constant(limit, tf.float64)
    )


@pytest.mark.parametrize("multiplier", [0.3, 4000.0])
def test_no_client_moves_the_rounded_sum_by_more_than_is_accounted_for(multiplier):
    """A client at its bound, in the direction in which the grid's rounding adds most."""
    size, limit, rng = 100_000, 0.7, np.random.default_rng(0)
    others = rng.normal(size=size) * 10
    groups = [_group([0], multiplier, limit), _group([1], 1.0, 3.0)]
    statistics = np.array([5.0])
    (_, _), (step, _) = _rounded([others, statistics], groups)
    # Just below the middle of two steps: so little more than whole steps of a client is one more.
    below = (np.floor(others / step) + 0.5 - 1e-4) * step
    of_each = limit / math.sqrt(size) / step
    client = np.full(size, (math.floor(of_each) + 2e-4 if multiplier > 1000 else of_each) * step)
    assert np.linalg.norm(client) <= limit * (1 + 1e-12)
    (first, _), _ = _rounded([below, statistics], groups)
    (second, _), _ = _rounded([below + client, statistics], groups)
    moved = np.linalg.norm((second - first) / step)
    # In steps: noise of deviation s has a noise multiplier of s over this.
    assert moved <= DEVIATION / multiplier
    if multiplier > 1000:
        assert moved > limit / step, "rounding added nothing"


def test_what_is_released_are_whole_steps_and_noise_is_as_wide_as_it_says():
    values = [np.array([1e-3, -2.5, 7e4]), np.array(3.0)]
    groups = [_group([0], 1.3, 0.5), _group([1], 2.0, 8.0)]
    without, steps = _rounded(values, groups)
    noisy, _ = _rounded(values, groups, steps=123_456_789)
    for value, rounded, with_steps, step in zip(values, without, noisy, steps):
        np.testing.assert_allclose(rounded, value, rtol=0, atol=0.5000001 * step)
        whole = with_steps / step
        np.testing.assert_allclose(whole, np.round(whole), rtol=1e-15, atol=1e-6)
        np.testing.assert_allclose(with_steps - rounded, 123_456_789 * step, rtol=1e-6)
    # No less than z C, and hardly more.
    for step, group in zip(steps, groups):
        deviation = float(group.multiplier * group.limit)
        assert deviation < step * DEVIATION < deviation * (1 + 1e-6)


def test_without_noise_sums_stay_and_what_is_in_no_group_does():
    values = [np.array([0.1, 2.0]), np.array([0.3])]
    (first, other), steps = _rounded(values, [_group([0], 0.0, 0.5)], steps=9)
    np.testing.assert_array_equal(first, values[0])
    np.testing.assert_array_equal(other, values[1])
    assert steps == [0.0, 0.0]


@pytest.mark.parametrize("value", [1e30, np.inf, -np.inf])
def test_a_huge_sum_is_cut(value):
    (noisy,), (step,) = _rounded([np.array([value])], [_group([0], 1.0, 1.0)], steps=5)
    assert abs(noisy[0]) == pytest.approx(2.0**24, rel=1e-6)
    assert step > 0
