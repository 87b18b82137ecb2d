"""Integer rounding keeps the accounted norm, and integer sums do not wrap around."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tff_agnostic.aggregations.integer_codec import (
    centred,
    padded_size,
    random_signs,
    residues,
    rotated,
    rotated_back,
    rounded,
    sum_bits,
)
from tff_agnostic.privacy.distributed import ROUNDING_BETA, rounded_sensitivity


def test_rounding_is_unbiased_and_gives_neighbouring_integers():
    rng = np.random.default_rng(0)
    vector = rng.normal(size=5) * 10
    repeated, uniforms = np.tile(vector, 4000), rng.random(20_000)
    draws = rounded(tf.constant(repeated), 1e6, tf.constant(uniforms)).numpy().reshape([4000, 5])
    assert np.all(np.abs(draws - vector) < 1)
    # The standard error is at most 1 / (2 sqrt(4000)).
    np.testing.assert_allclose(np.mean(draws, axis=0), vector, atol=5 * 0.5 / math.sqrt(4000))


@pytest.mark.parametrize("clip", [3.0, 40.0])
def test_rounding_stays_within_its_bound(clip):
    rng, size = np.random.default_rng(1), 64
    bound = rounded_sensitivity(clip, size, ROUNDING_BETA).l2
    toward_zero = 0
    for trial in range(300):
        vector = rng.normal(size=size) * np.where(rng.random(size) < rng.random(), 1.0, 1e-3)
        vector *= clip / np.linalg.norm(vector)
        # Later trials round positive values up, so that most vectors exceed the bound.
        uniforms = 1 - rng.random(size) * (0.02 if trial >= 150 else 1.0)
        vector = np.abs(vector) if trial >= 150 else vector
        actual = rounded(tf.constant(vector), bound, tf.constant(uniforms)).numpy()
        assert np.linalg.norm(actual) <= bound
        at_random = np.floor(vector + uniforms)
        if not np.array_equal(actual, at_random):
            assert trial >= 150, "improbable"
            np.testing.assert_array_equal(actual, np.trunc(vector))
            toward_zero += 1
    assert toward_zero > 0


def test_rounding_beyond_the_bound_is_towards_zero():
    vector, up = tf.constant([0.5, 1.5, -2.0], tf.float64), tf.constant([0.9, 0.9, 0.0])
    np.testing.assert_array_equal(rounded(vector, 2.6, up), [0, 1, -2])
    np.testing.assert_array_equal(rounded(vector, 3.0, up), [1, 2, -2])


@pytest.mark.parametrize("size", [1, 5, 300])
def test_rotated_vectors_equal_tffs(size):
    padded = padded_size(size)
    vector = np.random.default_rng(size).normal(size=size)
    signs = random_signs(tf.constant(size, tf.int64), padded).numpy()
    actual = rotated(tf.constant(vector), tf.constant(signs))
    signed = np.pad(vector, [0, padded - size]) * signs
    hadamard = pytest.importorskip("tensorflow_federated.python.aggregators.hadamard")
    expected = hadamard.fast_walsh_hadamard_transform(tf.constant(signed[np.newaxis]))
    np.testing.assert_allclose(actual, expected[0], atol=1e-12)
    back = rotated_back(actual, tf.constant(signs))
    np.testing.assert_allclose(back[:size], vector, atol=1e-12)
    assert set(signs) <= {-1.0, 1.0}
    assert abs(np.mean(signs)) <= 5 / math.sqrt(padded)


def _wraps(bits: int, sums: np.ndarray, num_clients: int) -> int:
    """Returns the number of sums that wrap around if all clients contribute equally."""
    parts = np.array_split(np.arange(num_clients), num_clients)
    each = np.stack([sums // num_clients + (k[0] < sums % num_clients) for k in parts])
    summed = tf.reduce_sum(residues(tf.constant(each, tf.int64), bits), axis=0)
    return int(np.sum(centred(summed, bits).numpy() != sums))


def test_million_rotated_coordinates_do_not_wrap_around():
    """All clients send the same vector, which gives the longest sum."""
    z, num_clients = 0.05, 30.0
    size, steps = 4096, 2.0**10
    bits = sum_bits(steps, size, True, z * steps, num_clients)
    rng = np.random.default_rng(6)
    vector = rng.normal(size=size) * np.where(rng.random(size) < 0.01, 1.0, 0.0)
    vector *= steps / np.linalg.norm(vector)
    sums = []
    for seed in range(245):
        signs = random_signs(tf.constant(seed, tf.int64), size)
        rounding = rng.uniform(-num_clients, num_clients, size)
        sums.append(num_clients * rotated(tf.constant(vector), signs).numpy() + rounding)
    mu = (z * steps) ** 2 / 2
    sums = np.int64(np.concatenate(sums))
    assert len(sums) > 1_000_000
    sums += rng.poisson(mu, len(sums)) - rng.poisson(mu, len(sums))
    assert _wraps(bits, sums, 4) == 0
    # With three bits less, some sums wrap around.
    assert _wraps(bits - 3, sums, 4) > 0


def test_sum_bits_fit_largest_values_without_rotation():
    num_clients, steps = 100, 2**14
    bits = sum_bits(steps, 3, False, 0.0, num_clients)
    largest = np.int64([num_clients * steps, -num_clients * steps, 0])
    assert _wraps(bits, largest, num_clients) == 0
    assert _wraps(bits - 2, largest, num_clients) == 2
    # A Poisson cohort of 100 expected clients exceeds 190 less than once in 10^9 rounds.
    assert stats.poisson.sf(190, num_clients) < 1e-9
    assert _wraps(bits, np.int64([190 * steps]), num_clients) == 0
