"""Inputs, masks, weights and gradients for tests of recurrent layers."""

from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.models import CIFG, LSTM

LAYERS: dict[str, Callable[..., tf.keras.layers.Layer]] = {
    "lstm": lambda **kwargs: LSTM(5, **kwargs),
    "cifg": lambda **kwargs: CIFG(5, **kwargs),
    "cifg_with_projection": lambda **kwargs: CIFG(5, projection_units=3, **kwargs),
}

# Masks of 4 sequences with 6 steps.
MASKS: dict[str, Optional[np.ndarray]] = {
    "no_mask": None,
    "right": np.arange(6) < np.array([[6], [4], [1], [0]]),
    "left": np.arange(6) >= np.array([[0], [2], [5], [6]]),
    "middle": np.array([[1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0], [1] * 6], bool),
}


class Sequences(NamedTuple):
    """Random inputs [B, T, n], with an objective whose gradients are all distinct."""

    x: np.ndarray
    mask: Optional[np.ndarray] = None
    seed: int = 1

    def objective(self, outputs: tf.Tensor) -> tf.Tensor:
        rng = np.random.default_rng(self.seed)
        return tf.reduce_sum(outputs * rng.normal(size=outputs.shape).astype(self.x.dtype))


def sequences(shape: Any, dtype: str = "float64", mask: Optional[np.ndarray] = None) -> Sequences:
    return Sequences(np.random.default_rng(0).normal(size=shape).astype(dtype), mask)


def random_weights(layer: tf.keras.layers.Layer, features: int) -> list[np.ndarray]:
    """Builds the layer; returns random weights that neither saturate nor linearise its gates."""
    layer.build(tf.TensorShape([None, None, features]))
    rng = np.random.default_rng(2)
    return [rng.normal(size=w.shape, scale=0.7).astype(layer.dtype) for w in layer.weights]


def outputs_and_gradients(layer: tf.keras.layers.Layer, data: Sequences) -> list[np.ndarray]:
    """Returns the outputs, and the objective's gradients for inputs and weights, in eager mode."""
    x = tf.constant(data.x)
    mask = None if data.mask is None else tf.constant(data.mask)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, mask=mask)
        objective = data.objective(outputs)
    gradients = tape.gradient(objective, [x, *layer.trainable_weights])
    return [value.numpy() for value in (outputs, *gradients)]


def assert_all_close(actual: Any, expected: Any) -> None:
    """Asserts that arrays differ by at most 300 rounding errors of their dtype."""
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        a, e = np.asarray(a), np.asarray(e)
        assert a.dtype == e.dtype
        tolerance = 300 * np.finfo(e.dtype).eps * max(1.0, np.abs(e).max(initial=0.0))
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance)
