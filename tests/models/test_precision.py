"""Mixed precision: training stays close to float32 and keeps float32 weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.models import Model, emnist_cnn, logistic_regression, next_word_lstm
from tff_agnostic.models.keras import PRECISIONS, computing_in

_MIXED = [name for name in PRECISIONS if name != "float32"]


def _rounds(model: Model) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    cohorts = [[random_client(rng, n, range(2)) for n in (9, 4)] for _ in range(3)]
    state, metrics = run_rounds(
        EagerTraining(build("agnostic_fed_avg", model, 2, client_learning_rate=0.5)), cohorts
    )
    assert all(m["clients"]["non_finite"] == 0 for m in metrics)
    return state.algorithm.weights.trainable


@pytest.mark.slow
@pytest.mark.parametrize("precision", _MIXED)
def test_mixed_training_is_close_to_float32_training(precision):
    with computing_in(precision):
        mixed = _rounds(logistic_regression(4, 3))
    full = _rounds(logistic_regression(4, 3))
    for a, b in zip(mixed, full):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=0.02)
        assert not np.array_equal(a, b)


@pytest.mark.parametrize("precision", _MIXED)
@pytest.mark.parametrize("name", ["emnist_cnn", "next_word_lstm"])
def test_mixed_models_return_float32_losses(precision, name):
    with computing_in(precision):
        if name == "emnist_cnn":
            model, x, y = emnist_cnn(10), np.ones([2, 28, 28, 1], np.float32), np.ones([2])
        else:
            model = next_word_lstm(30, embedding=4, units=5, sequence_length=6)
            x, y = np.ones([2, 6], np.int32), np.ones([2, 6])
    batch = {"x": x, "y": y.astype(np.int32)}
    weights = [tf.convert_to_tensor(w) for w in model.initial_weights.trainable]
    weights = model.initial_weights._replace(trainable=weights)
    losses, predictions = model.example_losses(weights, batch, False, tf.zeros([2], tf.int32))
    assert losses.dtype == predictions.dtype == tf.float32
    # The predictions were computed in 16 bits: converting them is lossless.
    kind = tf.float16 if precision == "mixed_float16" else tf.bfloat16
    np.testing.assert_array_equal(tf.cast(tf.cast(predictions, kind), tf.float32), predictions)


@pytest.mark.slow
def test_loss_scale_preserves_small_gradients():
    with computing_in("mixed_float16"):
        model = logistic_regression(1, 2)
    assert model.loss_scale > 1
    tiny = dataclasses.replace(model, loss=lambda y, s: 1e-7 * tf.reduce_sum(s, axis=-1))
    settings = {"client_learning_rate": 1.0, "client_epochs": 1, "client_batch_size": 20}
    client = {
        "x": np.ones([1, 1], np.float32),
        "y": np.zeros([1], np.int32),
        "domain_id": np.zeros([1], np.int32),
    }
    state, _ = run_rounds(EagerTraining(build("agnostic_fed_avg", tiny, 1, **settings)), [[client]])
    np.testing.assert_allclose(state.algorithm.weights.trainable[0], -1e-7, rtol=0.01)


def test_keras_policy_is_restored_after_an_error():
    before = tf.keras.mixed_precision.global_policy().name
    with pytest.raises(KeyError), computing_in("mixed_bfloat16"):
        raise KeyError
    assert tf.keras.mixed_precision.global_policy().name == before
