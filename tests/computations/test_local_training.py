"""E epochs of SGD on one client: orders, the regularizer, and settings out of range."""

import numpy as np
import pytest
import tensorflow as tf

from tests import golden
from tests.computations.harness import (
    assert_identical,
    linear_model,
    make_client,
    random_client,
    single,
)
from tff_agnostic.computations.local_training import (
    LocalTrainingOptions,
    local_sgd,
    minus_rows,
)
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights

_SEED = tf.constant(12, tf.int64)


def _weights(seed: int = 0) -> ModelWeights:
    rng = np.random.default_rng(seed)
    shapes = ([4, 3], [3])
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in shapes], [])


def _client(seed: int = 0, size: int = 23) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, [0, 1, 3])


def test_the_regularizer_is_in_the_gradient():
    """The mean gradient of the examples is 8 / 3, that of the regularizer w = 4."""
    trained, _ = local_sgd(
        linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2)),
        LocalTrainingOptions(client_learning_rate=1.0),
        ModelWeights([np.array([4.0], np.float32)], []),
        single(make_client([1, 2, 5], [0, 0, 1]), _SEED),
        np.ones([2], np.float32),
        np.float32(3),
    )
    np.testing.assert_allclose(trained[0], [4 - (8 / 3 + 4)], rtol=1e-5)


def _trained(client, *, seed=_SEED, **options):
    return local_sgd(
        logistic_regression(4, 3),
        LocalTrainingOptions(client_learning_rate=1.0, batch_size=4, **options),
        _weights(),
        single(client, seed),
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
    ).trained


def test_shuffling_is_a_function_of_the_seed():
    client = _client()
    first = _trained(client)
    assert_identical(_trained(client), first)
    other = _trained(client, seed=tf.constant(13, tf.int64))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], _trained(client, shuffle=False)[0])


def test_each_epoch_visits_every_example_once():
    """The gradient of a linear loss does not depend on the order: only on who was visited."""
    client = make_client(2.0 ** np.arange(9), np.zeros(9))
    for epochs in (1, 2, 3):
        trained, _ = local_sgd(
            linear_model(initial=0.0),
            LocalTrainingOptions(client_learning_rate=1.0, batch_size=2, client_epochs=epochs),
            ModelWeights([np.array([0.0], np.float32)], []),
            single(client, _SEED),
            np.ones([1], np.float32),
            np.float32(1.0),
        )
        assert trained[0] == -epochs * (2.0**9 - 1)


def test_epochs_have_different_orders():
    """Two epochs are not the order of the first one twice."""
    client = _client()
    two_epochs = _trained(client, client_epochs=2)
    first = ModelWeights(_trained(client, client_epochs=1), [])
    same_order_again = local_sgd(
        logistic_regression(4, 3),
        LocalTrainingOptions(client_learning_rate=1.0, batch_size=4),
        first,
        single(client, _SEED),
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
    ).trained
    assert not np.array_equal(two_epochs[0], same_order_again[0])


@golden.values
def test_settings_out_of_range_are_refused(case):
    return golden.refusal(LocalTrainingOptions, **case)


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-4, 1e-6])
def test_a_word_that_fills_the_batch_moves_by_the_sum_of_its_gradients(rate):
    """Taken off a weight of 1 one by one, 5,000 steps of 1e-4 / 5,000 would all be rounded away."""
    words = np.array([2] * 5000 + [0], np.int64)
    gradients = np.random.default_rng(0).normal(1.0, 0.1, size=[5001, 3]) * rate / 5000
    found = minus_rows(np.ones([4, 3], np.float32), words, gradients.astype(np.float32))
    expected = np.ones([4, 3])
    np.subtract.at(expected, words, gradients)
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-8 + 1e-6 * rate)
    assert_identical(found[1], np.ones([3], np.float32))
