"""Tables of Skellam noise contain its probabilities, and draws follow its distribution."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from tff_agnostic.aggregations import noise
from tff_agnostic.aggregations.noise import beyond_sums, skellam, skellam_table, skellam_words


@pytest.mark.parametrize("variance", [0.01, 9e4])
def test_table_has_every_probability(variance):
    """Counts, in exact integers, the 64-bit words that give each value."""
    table = skellam_table(variance)
    size, in_column = 2**table.bits, 2 ** (64 - table.bits)
    actual = [0] * size
    for column, entry in enumerate(map(int, table.entries)):
        first = (entry >> table.bits) + in_column // 2
        assert 0 <= first < in_column
        actual[column] += first
        actual[entry % size] += in_column - first
    assert sum(actual) == 2**64
    half = size // 2
    assert actual[half:0:-1] == actual[half:], "not symmetric"
    shares = np.array(actual, np.float64) / 2.0**64
    expected = stats.skellam(variance / 2, variance / 2).pmf(np.arange(-half, half))
    # The tolerance is for SciPy's float64.
    np.testing.assert_allclose(shares, expected, rtol=1e-12, atol=2.0**-64)


# A draw is one table number, or a sum of several if the variance is too large for one table.
@pytest.mark.parametrize(("variance", "num_words"), [(0.3, 1), (2.5e5, 1), (3e9, 253)])
def test_noise_is_skellam(variance, num_words):
    assert (skellam_table(variance) is None) == (num_words > 1)
    assert skellam_words(variance, 20_000) == 20_000 * num_words
    words = _words(20_000 * num_words)
    draws = skellam(words, [variance], 20_000).numpy()
    assert np.var(draws) == pytest.approx(variance, rel=0.03 if variance > 1 else 0.06)
    # Words in reverse order give different draws, so every word matters.
    assert np.mean(skellam(words[::-1], [variance], 20_000).numpy() == draws) < 0.7
    if variance > 1000:
        assert stats.kstest(draws / math.sqrt(variance), "norm").pvalue > 0.01
        return
    values = np.arange(-3, 4)
    actual = [np.sum(draws == v) for v in values] + [np.sum(np.abs(draws) > 3)]
    expected = stats.skellam(variance / 2, variance / 2)
    shares = [*expected.pmf(values), 2 * expected.sf(3)]
    assert stats.chisquare(actual, 20_000 * np.array(shares)).pvalue > 0.01


@pytest.mark.parametrize(("variance", "num_clients"), [(6.0, 1), (9e4, 3), (1e8, 1)])
def test_sums_beyond_tables_stay_below_the_bound(variance, num_clients):
    """Sums the exact probabilities of numbers beyond the table, from Bessel functions."""
    parts = skellam_words(variance, 1)
    table = skellam_table(variance / parts)
    size, half = 2**table.bits, 2 ** (table.bits - 1)
    drawn = {int(entry) % size - half for entry in table.entries}
    # A column's own value occurs only if the column's threshold is above the minimum.
    drawn |= {
        k - half
        for k, e in enumerate(map(int, table.entries))
        if e >> table.bits > -(2 ** (63 - table.bits))
    }
    largest = parts * max(drawn)
    actual = beyond_sums(variance, num_clients)
    exact = _beyond(num_clients * largest, num_clients * variance)
    assert 0 < exact <= actual
    # The computed Chernoff bound is close to the exact probability.
    assert math.log(actual) < 0.85 * math.log(exact)
    assert beyond_sums(0.0, 1) == 0.0


def test_numbers_beyond_table_cost_little_delta():
    """100,000 clients add noise to 8,192 values in 50 rounds, as on the results page.

    The bound counts every client's numbers, as if the server released them instead of sums.
    """
    variance = (0.54 / math.sqrt(0.8) * 2**14) ** 2 / 100_000
    largest = noise._largest_number(variance)
    omitted = _beyond(largest, variance)
    assert omitted > 2.0**-64
    assert 100_000 * 8192 * 50 * omitted < 0.01 * 1e-6


def test_variance_0_gives_zeros():
    np.testing.assert_array_equal(skellam(_words(5), [0.0], 5), np.zeros(5))


def _beyond(largest: int, variance: float) -> float:
    """Returns P(|X| > largest) of a Skellam number X, where P(X = k) = exp(-v) I_k(v)."""
    beyond = np.arange(largest + 1, largest + 1 + round(20 * math.sqrt(variance) + 20))
    return 2 * float(np.sum(special.ive(beyond, variance)))


def _words(size: int) -> tf.Tensor:
    seed = tf.constant([3, 4], tf.int64)
    return tf.random.stateless_uniform([size], seed, None, None, tf.int64, alg="philox")
