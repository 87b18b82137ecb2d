"""Stateless random numbers: clients' seeds, random orders, and Poisson numbers."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import random_client, single, vectorised
from tff_agnostic.base.stateless_random import (
    fold_in,
    hash_multipliers,
    known_multipliers,
    poisson_one,
    random_order,
)
from tff_agnostic.computations.clients import client_seeds

_ROUND = tf.constant([3, 4])


def _client(size: int = 7) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(0), size, range(3))


def _seed(client) -> int:
    return int(client_seeds(_ROUND, single(client)))


def test_clients_with_equal_data_have_equal_seeds():
    assert _seed(_client()) == _seed(_client())


@pytest.mark.parametrize("column", ["x", "domain_id"])
@pytest.mark.parametrize("row", [0, -1])
def test_seed_depends_on_first_and_last_example(column, row):
    changed = _client()
    changed[column][row] += 1
    assert _seed(changed) != _seed(_client())


@pytest.mark.slow
def test_seed_ignores_the_group():
    rng = np.random.default_rng(1)
    clients = [random_client(rng, n, range(3)) for n in (4, 1, 0, 9)]
    seeds = np.asarray(client_seeds(_ROUND, vectorised(clients)))
    for client, seed in zip(clients, seeds):
        if len(client["y"]) > 0:
            assert _seed(client) == seed


def test_client_without_examples_has_a_seed():
    assert _seed(_client(size=0)) != _seed(_client())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_seed_depends_on_columns_of_any_dtype(dtype):
    client = {"x": np.array([1, 0, 1], dtype), "domain_id": np.zeros([3], np.int32)}
    other = {**client, "x": np.array([0, 1, 1], dtype)}
    assert _seed(client) != _seed(other)
    if dtype == np.float64:
        other = {**client, "x": client["x"] + [0.0, 0.0, 1e-12]}
        assert _seed(client) != _seed(other)


def test_fold_in_equals_splitmix64():
    """The expected numbers are the authors' first outputs for the seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seed = tf.constant(1234567, tf.int64)
    outputs = [int(fold_in(seed, i)) % 2**64 for i in range(3)]
    assert outputs == expected


@pytest.mark.parametrize("n", [0, 1, 5, 30])
def test_order_ignores_the_capacity(n):
    seed = tf.constant(17, tf.int64)
    order = np.asarray(random_order(seed, tf.constant(n), tf.constant(n)))
    assert sorted(order) == list(range(n))
    padded = np.asarray(random_order(seed, tf.constant(n), tf.constant(40)))
    np.testing.assert_array_equal(padded[:n], order)
    assert sorted(padded) == list(range(40))


def test_random_orders_are_uniform():
    """Each of 4 examples should be first in 1,000 of 4,000 orders, within 5 deviations of 27.4."""
    seeds = fold_in(tf.constant(1, tf.int64), tf.range(4000))
    orders = np.asarray(random_order(seeds, tf.fill([4000], 4), tf.constant(4)))
    counts = np.bincount(orders[:, 0], minlength=4)
    assert np.all(np.abs(counts - 1000) < 137)


@pytest.mark.parametrize("width", [0, 1, 2, 1568])
def test_known_multipliers_match_the_graph(width):
    actual = known_multipliers(width)
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(actual, hash_multipliers(tf.constant(width)))
    assert np.all(actual % 2 == 1)


def test_poisson_numbers_have_the_expected_frequencies():
    seeds = fold_in(tf.range(4000, dtype=tf.int64), tf.constant(1))
    actual = np.asarray(poisson_one(seeds, 50))
    assert actual.shape == (4000, 50)
    for k in range(6):
        expected = math.exp(-1) / math.factorial(k)
        four_standard_errors = 4 * math.sqrt(expected / actual.size)
        assert np.mean(actual == k) == pytest.approx(expected, abs=four_standard_errors)
    # Numbers are uncorrelated between clients and between replicates.
    assert abs(np.corrcoef(actual[:-1].ravel(), actual[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(actual[:, :-1].ravel(), actual[:, 1:].ravel())[0, 1]) < 0.01
    assert np.array_equal(poisson_one(seeds[7], 50), actual[7])
