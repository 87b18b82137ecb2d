"""Random numbers of vectorised clients equal TensorFlow's for each client's seed, bit for bit."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.computations import client_random
from tff_agnostic.computations.clients import vectorised_clients, vectorised_clients_on_accelerators

# Known answers from Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, words.
_KNOWN = [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
_SEEDS = np.array([[0, 0], [1, 2], [-1, -2], [2**31 - 1, -(2**31)], [7, 7]], np.int32)


@pytest.mark.parametrize(("counter", "key", "expected"), _KNOWN)
def test_philox_equals_its_authors_known_answers(counter, key, expected):
    actual = client_random.philox(
        *(tuple(tf.constant(w, tf.int64) for w in words) for words in (counter, key))
    )
    assert [int(word) for word in actual] == [int(word, 16) for word in expected.split()]


def test_counter_carries_to_the_upper_word():
    """The fifth word needs the next counter, which carries from 2^32 - 1 in the lowest word."""
    key = tf.constant([[3]], tf.int64)
    counters = tf.constant([[2**32 - 1, 5], [2**32, 5]], tf.int64)
    five = client_random.random_words(key, counters[:1], tf.constant(5))
    np.testing.assert_array_equal(
        five[0, 4:], client_random.random_words(key, counters[1:], tf.constant(1))[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "seed_dtype"), [([], tf.int32), ([3, 7], tf.int64)])
def test_vectorised_numbers_match_single_seeds(shape, seed_dtype):
    seeds = tf.cast(_SEEDS, seed_dtype)

    def draw(seed):
        return (
            tf.random.stateless_uniform(shape, seed),
            tf.random.stateless_uniform(shape, seed, -2.0, 5.0),
            tf.random.stateless_uniform(shape, seed, None, None, tf.int32),
        )

    many = tf.function(lambda seeds: vectorised_clients_on_accelerators(draw, seeds))(seeds)
    for k, seed in enumerate(seeds):
        for numbers, expected in zip(many, draw(seed)):
            np.testing.assert_array_equal(numbers[k], expected)


@pytest.mark.parametrize("rows", [0, 11])
def test_dropout_supports_batches_of_any_size(rows):
    """The size of a loop's last batch is unknown when TensorFlow traces the loop."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None, 3])])
    def many(seeds, batch):
        return vectorised_clients_on_accelerators(
            lambda seed: tf.nn.experimental.stateless_dropout(batch, 0.4, seed), seeds
        )

    batch = tf.ones([rows, 3])
    for actual, seed in zip(many(_SEEDS, batch), _SEEDS):
        expected = tf.nn.experimental.stateless_dropout(batch, 0.4, seed)
        np.testing.assert_array_equal(actual, expected)


def _traced_graph(map_, fn):
    many = tf.function(
        lambda seeds: map_(fn, seeds), input_signature=[tf.TensorSpec([None, 2], tf.int32)]
    )
    graph = many.get_concrete_function().graph.as_graph_def()
    inner = [node for function in graph.library.function for node in function.node_def]
    return many(tf.constant(_SEEDS)), {node.op for node in (*graph.node, *inner)}


@pytest.mark.slow
def test_vectorised_dropout_has_no_loop():
    def drop(seed):
        seed = tf.random.experimental.stateless_fold_in(seed, 3)
        return tf.nn.experimental.stateless_dropout(tf.ones([20, 5]), 0.3, seed)

    at_once, without_loops = _traced_graph(vectorised_clients_on_accelerators, drop)
    one_by_one, with_loops = _traced_graph(vectorised_clients, drop)
    np.testing.assert_array_equal(at_once, one_by_one)
    loops = {"While", "StatelessWhile"}
    assert loops & with_loops and not loops & without_loops


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: tf.random.stateless_normal([3], seed),
        lambda seed: tf.random.stateless_uniform([3], seed, None, None, tf.int64),
        lambda seed: tf.random.stateless_uniform([3], seed, alg="philox"),
    ],
)
def test_other_distributions_use_tensorflows_vectorisation(draw):
    (at_once, _), (one_by_one, _) = (
        _traced_graph(map_, draw)
        for map_ in (vectorised_clients_on_accelerators, vectorised_clients)
    )
    np.testing.assert_array_equal(at_once, one_by_one)


@pytest.mark.slow
def test_tensorflows_vectoriser_registry_is_restored():
    vectoriser = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")
    registry = vectoriser._pfor_converter_registry
    before = dict(registry)
    vectorised_clients_on_accelerators(
        lambda s: tf.random.stateless_uniform([2], s), tf.constant(_SEEDS)
    )
    assert registry == before
