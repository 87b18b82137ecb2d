"""Our CIFG against transcriptions of its formulas."""

from typing import Any, Optional

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
from tff_agnostic.models import CIFG
from tff_agnostic.models.cifg import cifg

_PROJECTIONS = [None, 3, 7]


def _numpy_cifg(
    x: np.ndarray, mask: Optional[np.ndarray], W: Any, U: Any, b: Any, P: Any = None
) -> np.ndarray:
    """One sequence after another, one gate after another, as the formulas have them."""

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    u = len(b) // 3
    P = np.eye(u) if P is None else P
    outputs = []
    for n, sequence in enumerate(x):
        r, c = np.zeros(P.shape[1]), np.zeros(u)
        outputs.append([])
        for t, x_t in enumerate(sequence):
            if mask is None or mask[n, t]:
                z_f, z_g, z_o = (
                    x_t @ W[:, gate] + r @ U[:, gate] + b[gate]
                    for gate in (slice(0, u), slice(u, 2 * u), slice(2 * u, 3 * u))
                )
                forget = sigmoid(z_f)
                c = forget * c + (1 - forget) * np.tanh(z_g)
                r = (sigmoid(z_o) * np.tanh(c)) @ P
            outputs[-1].append(r)
    return np.array(outputs)


class _PlainCIFG(CIFG):
    """The same formulas, with TensorFlow's own gradients."""

    def run(self, x: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
        size = self.projection_units or self.units
        r, c = tf.zeros([x.shape[0], size], x.dtype), tf.zeros([x.shape[0], self.units], x.dtype)
        outputs = []
        for t in range(x.shape[1]):
            z = x[:, t] @ self.kernel + r @ self.recurrent_kernel + self.bias
            z_f, z_g, z_o = tf.split(z, 3, axis=1)
            c_new = tf.sigmoid(z_f) * c + tf.sigmoid(-z_f) * tf.tanh(z_g)
            r_new = tf.sigmoid(z_o) * tf.tanh(c_new)
            if self.projection_units is not None:
                r_new = r_new @ self.projection_kernel
            real = tf.ones([x.shape[0], 1], bool) if mask is None else mask[:, t, tf.newaxis]
            r, c = tf.where(real, r_new, r), tf.where(real, c_new, c)
            outputs.append(r)
        return tf.stack(outputs, axis=1)


@pytest.mark.parametrize("projection", _PROJECTIONS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_outputs_are_those_of_the_formulas(mask, projection):
    layer = CIFG(5, projection_units=projection, return_sequences=True, dtype="float64")
    weights = random_weights(layer, 4)
    layer.set_weights(weights)
    x = sequences([4, 6, 4]).x
    expected = _numpy_cifg(x, None if mask is None else tf.constant(mask), *weights)
    assert_all_close(layer(x, mask=mask).numpy(), expected)
    last = CIFG(5, projection_units=projection, dtype="float64")
    last.build((None, None, 4))
    last.set_weights(weights)
    assert_all_close(last(x, mask=mask).numpy(), expected[:, -1])


@pytest.mark.parametrize("projection", _PROJECTIONS)
@pytest.mark.parametrize(
    ("mask", "dtype", "return_sequences"),
    [
        *((mask, "float64", True) for mask in MASKS),
        ("middle", "float64", False),
        ("middle", "float32", True),
    ],
)
def test_outputs_and_gradients_are_those_of_plain_tensorflow(
    mask, dtype, return_sequences, projection
):
    results = []
    for kind in (CIFG, _PlainCIFG):
        layer = kind(5, projection_units=projection, return_sequences=return_sequences, dtype=dtype)
        layer.set_weights(random_weights(layer, 4))
        results.append(outputs_and_gradients(layer, sequences([4, 6, 4], dtype, MASKS[mask])))
    assert_all_close(*results)


@pytest.mark.parametrize("projection", [None, 1])
@pytest.mark.parametrize("mask", [None, [[1, 0, 1], [0, 1, 1]]], ids=["no_mask", "masked"])
def test_gradients_are_differences_of_outputs(mask, projection):
    weights = random_weights(CIFG(2, projection_units=projection, dtype="float64"), 2)
    arguments = [sequences([2, 3, 2]).x, *weights]
    analytic, numeric = tf.test.compute_gradient(
        lambda x, *weights: cifg(x, None if mask is None else tf.constant(mask), *weights),
        arguments,
        delta=1e-5,
    )
    for a, n in zip(analytic, numeric):
        np.testing.assert_allclose(a, n, rtol=1e-6, atol=1e-8)


def test_shapes_of_weights_and_outputs():
    layer = CIFG(5, projection_units=2, return_sequences=True)
    assert layer(tf.zeros([4, 6, 3])).shape == [4, 6, 2]
    names = [w.name.split("/")[-1] for w in layer.weights]
    assert names == ["kernel:0", "recurrent_kernel:0", "bias:0", "projection_kernel:0"]
    assert [tuple(w.shape) for w in layer.weights] == [(3, 15), (2, 15), (15,), (5, 2)]
    layer = CIFG(5)
    assert layer(tf.zeros([4, 6, 3])).shape == [4, 5]
    assert [tuple(w.shape) for w in layer.weights] == [(3, 15), (5, 15), (15,)]


def test_the_forget_gate_starts_open():
    for unit_forget_bias, expected in ((True, [1.0, 0.0, 0.0]), (False, [0.0, 0.0, 0.0])):
        layer = CIFG(4, unit_forget_bias=unit_forget_bias)
        layer.build((None, None, 3))
        np.testing.assert_array_equal(layer.bias, np.repeat(expected, 4))


@pytest.mark.parametrize("units", [0, -1, 2.0, True, "3"])
def test_a_projection_needs_a_positive_size(units):
    with pytest.raises(ValueError, match="projection_units: expected a positive whole number"):
        CIFG(5, projection_units=units)
