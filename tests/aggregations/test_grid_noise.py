"""Grid noise has the accounted distribution, and noisy sums are multiples of its step."""

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
    """Returns a digit's probabilities for the values -16383 to 16383."""
    t = 1424.0
    weights = np.exp(-(np.arange(-16383, 16384) ** 2) / (2 * t**2))
    return weights / weights.sum()


def test_digit_table_equals_exact_probabilities():
    """The table's counts equal exponentials computed to 60 digits."""
    firsts, others = noise_generators._table()
    size, in_column = 2**15, 2**83
    counts = [0] * size
    for column, (first, packed) in enumerate(zip(map(int, firsts), map(int, others))):
        tie, other = divmod(packed, size)
        kept = ((first + 2**63) << 19) + tie
        assert 0 <= kept < in_column
        counts[column] += kept
        counts[other] += in_column - kept
    assert sum(counts) == 2**98
    assert counts[0] == 0, "-2^14 has no opposite in the table"
    half = size // 2
    assert counts[half:0:-1] == counts[half:], "not symmetric"
    with decimal.localcontext() as context:
        context.prec = 60
        weights = [(Decimal(-(k**2)) / (2 * 1424**2)).exp() for k in range(half)]
        unit = 2**98 / (2 * sum(weights) - 1)
        errors = [abs(counts[half + k] - weights[k] * unit) for k in range(half)]
        assert max(errors[1:]) <= Decimal("0.5000001")
        # The count of 0 compensates for the rounding errors of all other counts.
        assert errors[0] <= half
        # The probability beyond the table is less than 2 exp(-z^2 / 2) / (z sqrt(2 pi)).
        z = half / 1424
        beyond = 2 * math.exp(-(z**2) / 2) / (z * math.sqrt(2 * math.pi))
        variation = float(errors[0] + 2 * sum(errors[1:])) / 2 / 2.0**98
    assert beyond < 2.0**-99
    assert 3 * (variation + beyond) < noise_generators.VARIATION


def test_sums_of_digits_are_a_discrete_gaussian():
    """The test enumerates all sums of smaller digits with the same ratio t / m = 2.54."""
    t, m = 2 * 1424 / 560, 2
    digits = np.arange(-70, 71)
    single = np.exp(-(digits**2) / (2 * t**2))
    single /= single.sum()
    total = np.ones(1)
    for k in range(3):
        spread = np.zeros(140 * m**k + 1)
        spread[:: m**k] = single
        total = np.convolve(total, spread)
    values = np.arange(len(total)) - len(total) // 2
    s = t * math.sqrt(1 + m**2 + m**4)
    expected = np.exp(-(values**2) / (2 * s**2))
    expected /= expected.sum()
    near = np.abs(values) < 5 * s
    np.testing.assert_allclose(total[near], expected[near], rtol=1e-11)
    assert pytest.approx(1424 * math.sqrt(1 + 560**2 + 560**4)) == DEVIATION


def test_draws_are_normal_and_digits_have_their_distribution():
    draws = _noise(_DRAWS)
    assert stats.kstest(draws / DEVIATION, "norm").pvalue > 0.01
    assert np.var(draws / DEVIATION) == pytest.approx(1.0, rel=0.01)
    # A draw modulo 560 depends only on the last digit.
    last = np.zeros(560)
    np.add.at(last, np.arange(-16383, 16384) % 560, _digit_probabilities())
    actual = np.bincount(draws % 560, minlength=560)
    assert stats.chisquare(actual, _DRAWS * last).pvalue > 0.01
    # The second digit is nearly uniform modulo 64.
    actual = np.bincount((draws // 560) % 64, minlength=64)
    assert stats.chisquare(actual, np.full(64, _DRAWS / 64)).pvalue > 0.01


def _words(digits: tuple[int, int, int], ties: int = 0) -> list[int]:
    """Returns the random words from which the generator chooses the given digits."""
    columns = [digit + 2**14 for digit in digits]
    packed = sum(column << 15 * k for k, column in enumerate(columns)) + (ties << 45)
    return [packed, *[-(2**63)] * 3]


@pytest.mark.parametrize("deviations", [5.0, 10.0])
def test_extreme_random_words_give_extreme_noise(deviations):
    """Random words made for a normal quantile give the integer nearest to the quantile."""
    tail = stats.norm.sf(deviations)
    value = round(stats.norm.isf(tail) * DEVIATION)
    assert value / DEVIATION == pytest.approx(deviations, rel=1e-9)
    # The value's digits in balanced base 560.
    first = (value + 280) % 560 - 280
    second = ((value - first) // 560 + 280) % 560 - 280
    third = (value - first - 560 * second) // 560**2
    words = tf.constant(
        np.array([_words((first, second, third)), _words((-first, -second, -third))]).T
    )
    actual = whole_gaussian(tf.reshape(words, [-1])).numpy()
    np.testing.assert_array_equal(actual, [value, -value])


@pytest.mark.parametrize("deviations", [5, 8])
def test_tail_has_the_normal_probability(deviations):
    """Sums the probabilities of all numbers beyond `deviations` standard deviations.

    The leading digit's values are enumerated. The two lower digits are treated as one normal
    number.
    """
    counts = np.array(noise_generators._counts(), np.float64) / 2.0**98
    values = np.arange(-(2**14), 2**14)
    # In units of 560^2: the bound, and the standard deviation of the two lower digits.
    bound = deviations * DEVIATION / 560**2
    rest = 1424 * math.sqrt(1 + 560**2) / 560**2
    actual = float(np.sum(counts * stats.norm.sf((bound - values) / rest)))
    assert actual == pytest.approx(stats.norm.sf(deviations), rel=1e-6)


def test_tail_draws_have_the_expected_count():
    """A correct count leaves the accepted range with a probability of 1e-6."""
    draws = np.abs(_noise(1_000_000) / DEVIATION)
    for deviations in (4.0, 4.5, 5.0):
        count = int(np.sum(draws > deviations))
        expected = stats.poisson(1_000_000 * 2 * stats.norm.sf(deviations))
        assert expected.ppf(5e-7) <= count <= expected.isf(5e-7), deviations


def test_further_random_bits_decide_ties_at_thresholds():
    """At a column's exact threshold, the first word's other 19 bits choose the value."""
    firsts, others = noise_generators._table()
    tie, other = divmod(int(others[2**14 + 7]), 2**15)
    assert 0 < tie < 2**19 - 1
    assert other != 2**14 + 7
    for ties, expected in ((tie - 1, 7), (tie, other - 2**14)):
        words = _words((7, 0, 0), ties)
        words[0] -= 2**64 if words[0] >= 2**63 else 0
        words[1] = int(firsts[2**14 + 7])
        assert whole_gaussian(tf.constant(words, tf.int64)).numpy() == [expected]


def test_different_nonces_give_separate_noise():
    assert abs(np.corrcoef(_noise(10_000), _noise(10_000, nonce=1))[0, 1]) < 0.04


def _rounded(
    values: list[np.ndarray], groups: list[NoisedGroup], steps: int = 0
) -> tuple[list[np.ndarray], list[float]]:
    """Returns sums with noise of `steps` grid steps on each value, and each group's step size."""
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
def test_rounded_sum_stays_within_the_accounted_sensitivity(multiplier):
    """Rounding adds most to the client's contribution if sums are just below a step's middle."""
    size, limit, rng = 100_000, 0.7, np.random.default_rng(0)
    others = rng.normal(size=size) * 10
    groups = [_group([0], multiplier, limit), _group([1], 1.0, 3.0)]
    statistics = np.array([5.0])
    (_, _), (step, _) = _rounded([others, statistics], groups)
    below = (np.floor(others / step) + 0.5 - 1e-4) * step
    per_value = limit / math.sqrt(size) / step
    client = np.full(
        size, (math.floor(per_value) + 2e-4 if multiplier > 1000 else per_value) * step
    )
    assert np.linalg.norm(client) <= limit * (1 + 1e-12)
    (first, _), _ = _rounded([below, statistics], groups)
    (second, _), _ = _rounded([below + client, statistics], groups)
    moved = np.linalg.norm((second - first) / step)
    # The noise multiplier is the noise's standard deviation, divided by the client's change.
    assert moved <= DEVIATION / multiplier
    if multiplier > 1000:
        assert moved > limit / step, "rounding added nothing"


def test_released_sums_are_multiples_of_reported_steps():
    values = [np.array([1e-3, -2.5, 7e4]), np.array(3.0)]
    groups = [_group([0], 1.3, 0.5), _group([1], 2.0, 8.0)]
    without, steps = _rounded(values, groups)
    noisy, _ = _rounded(values, groups, steps=123_456_789)
    for value, rounded, with_steps, step in zip(values, without, noisy, steps):
        np.testing.assert_allclose(rounded, value, rtol=0, atol=0.5000001 * step)
        whole = with_steps / step
        np.testing.assert_allclose(whole, np.round(whole), rtol=1e-15, atol=1e-6)
        np.testing.assert_allclose(with_steps - rounded, 123_456_789 * step, rtol=1e-6)
    # Standard deviations exceed z C by less than one millionth of z C.
    for step, group in zip(steps, groups):
        deviation = float(group.multiplier * group.limit)
        assert deviation < step * DEVIATION < deviation * (1 + 1e-6)


def test_sums_without_noise_or_outside_groups_are_unchanged():
    values = [np.array([0.1, 2.0]), np.array([0.3])]
    (first, other), steps = _rounded(values, [_group([0], 0.0, 0.5)], steps=9)
    np.testing.assert_array_equal(first, values[0])
    np.testing.assert_array_equal(other, values[1])
    assert steps == [0.0, 0.0]


@pytest.mark.parametrize("value", [1e30, -np.inf])
def test_huge_sum_is_clipped(value):
    (noisy,), (step,) = _rounded([np.array([value])], [_group([0], 1.0, 1.0)], steps=5)
    assert abs(noisy[0]) == pytest.approx(2.0**24, rel=1e-6)
    assert step > 0
