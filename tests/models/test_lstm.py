"""Our LSTM against Keras' own, with the same weights."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.recurrent_harness import (
    MASKS,
    assert_all_close,
    outputs_and_gradients,
    random_weights,
    sequences,
)
from tff_agnostic.models import LSTM


def _with_twin(
    units: int, features: int, **kwargs
) -> tuple[tf.keras.layers.Layer, tf.keras.layers.Layer]:
    layer, twin = LSTM(units, **kwargs), tf.keras.layers.LSTM(units, **kwargs)
    for each in (layer, twin):
        each.set_weights(random_weights(each, features))
    return layer, twin


@pytest.mark.parametrize(
    ("mask", "dtype", "return_sequences"),
    [
        *((mask, "float64", True) for mask in MASKS),
        ("middle", "float64", False),
        ("middle", "float32", True),
    ],
)
def test_outputs_and_gradients_are_those_of_keras(mask, dtype, return_sequences):
    layer, twin = _with_twin(5, 3, return_sequences=return_sequences, dtype=dtype)
    data = sequences([4, 6, 3], dtype, MASKS[mask])
    assert_all_close(outputs_and_gradients(layer, data), outputs_and_gradients(twin, data))


@pytest.mark.parametrize(
    ("batch", "length", "features", "units"),
    [(1, 1, 1, 1), (3, 1, 2, 4), (1, 7, 5, 2), (2, 3, 1, 6), (16, 20, 8, 12)],
)
def test_shapes(batch, length, features, units):
    layer, twin = _with_twin(units, features, return_sequences=True, dtype="float64")
    data = sequences([batch, length, features])
    assert_all_close(outputs_and_gradients(layer, data), outputs_and_gradients(twin, data))


@pytest.mark.parametrize("masked", [False, True])
def test_long_sequences(masked):
    """Those that run in a loop."""
    layer, twin = _with_twin(5, 3, dtype="float64")
    mask = np.random.default_rng(0).random([2, 70]) < 0.7 if masked else None
    data = sequences([2, 70, 3], mask=mask)
    assert_all_close(outputs_and_gradients(layer, data), outputs_and_gradients(twin, data))


def test_weights_are_exchanged_with_keras():
    layer, twin = LSTM(5), tf.keras.layers.LSTM(5)
    layer.build((None, None, 3))
    twin.build((None, None, 3))
    assert [w.shape for w in layer.weights] == [w.shape for w in twin.weights]
    layer.set_weights(twin.get_weights())
    for ours, theirs in zip(layer.get_weights(), twin.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"unit_forget_bias": False, "bias_initializer": "ones"},
        {"bias_initializer": tf.keras.initializers.Constant(0.3)},
        {"kernel_initializer": "he_normal", "recurrent_initializer": "glorot_normal"},
    ],
    ids=str,
)
def test_initial_weights_are_those_of_keras_after_seeding(arguments):
    weights = []
    for kind in (LSTM, tf.keras.layers.LSTM):
        tf.keras.utils.set_random_seed(7)
        layer = kind(5, **arguments)
        layer.build((None, None, 3))
        weights.append(layer.get_weights())
    for ours, theirs in zip(*weights):
        np.testing.assert_array_equal(ours, theirs)


def test_second_derivatives_are_those_of_keras():
    layer, twin = _with_twin(4, 3, dtype="float64")
    x = tf.constant(sequences([2, 5, 3]).x)

    def second(layer: tf.keras.layers.Layer) -> list[tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                objective = tf.reduce_sum(layer(x) ** 3)
            gradients = inner.gradient(objective, [x, *layer.trainable_weights])
            objective = tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        return outer.gradient(objective, [x, *layer.trainable_weights])

    expected = second(twin)
    assert_all_close(second(layer), expected)
    assert_all_close(tf.function(second)(layer), expected)


def test_a_stack_over_masked_words_is_that_of_keras():
    """Masks come from the embedding, and go on from layer to layer."""

    def build(lstm) -> tf.keras.Model:
        return tf.keras.Sequential(
            [
                tf.keras.Input([6], dtype=tf.int32),
                tf.keras.layers.Embedding(11, 4, mask_zero=True),
                lstm(5, return_sequences=True),
                lstm(3),
                tf.keras.layers.Dense(2),
            ]
        )

    model, twin = build(LSTM), build(tf.keras.layers.LSTM)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    twin.set_weights(model.get_weights())
    tokens = np.array([[3, 0, 4, 0, 0, 1], [0, 0, 2, 9, 0, 0], [0] * 6, [1, 2, 3, 4, 5, 6]])
    np.testing.assert_allclose(model(tokens), twin(tokens), atol=1e-5)
