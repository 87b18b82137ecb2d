"""Models, losses and metrics that mix the examples of a batch are rejected."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.models import Metric, Model, model_from_keras
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.keras_platform import KERAS_3, keras_platform

layers = tf.keras.layers
_SEED = np.array([0, 0], np.int32)
_NUMBERS = tf.TensorSpec([None], tf.float32)
_SPEC = {"x": tf.TensorSpec([None, 4], tf.float32), "y": _NUMBERS}


def _squared(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.square(labels - outputs[:, 0])


def _model(
    *stack: Callable[[], Any],
    loss: Any = _squared,
    labels: tf.TensorSpec = _NUMBERS,
    metrics: Sequence[Metric] = (),
) -> Model:
    def build() -> tf.keras.Model:
        # Zero weights would hide the mixing if the check did not add noise.
        last = layers.Dense(1, kernel_initializer="zeros")
        return tf.keras.Sequential([tf.keras.Input([4]), *[layer() for layer in stack], last])

    spec = {**_SPEC, "y": labels}
    return model_from_keras(build, loss=loss, example_spec=spec, metrics=metrics)


def _function(function: Callable[..., tf.Tensor]) -> Callable[[], Any]:
    class Mixing(layers.Layer):
        def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
            return function(x, training)

    return lambda: Mixing(name="mine")


_MIXING = {
    "mean": _function(lambda x, _: x - tf.reduce_mean(x, 0, keepdims=True)),
    "earlier examples": _function(lambda x, _: tf.cumsum(x, 0)),
    "later examples": _function(lambda x, _: tf.cumsum(x, 0, reverse=True)),
    "size": _function(lambda x, _: x * tf.cast(tf.shape(x)[0], tf.float32)),
    "training": _function(lambda x, training: x - tf.reduce_mean(x, 0) if training else x),
    "evaluation": _function(lambda x, training: x if training else x - tf.reduce_mean(x, 0)),
}


@pytest.mark.parametrize("name", _MIXING)
def test_layer_that_mixes_examples_raises_with_name(name):
    with pytest.raises(ValueError, match=r"^layer 'mine': expected outputs of an example") as e:
        # Dropout's noise in training must not hide the mixing.
        _model(lambda: layers.Dropout(0.5), _MIXING[name])
    assert "\n" not in str(e.value)
    assert str(e.value).count("LayerNormalization") == 1


def test_model_subclass_that_mixes_examples_raises():
    class Mine(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__(name="all")
            self.dense = layers.Dense(1)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.dense(x) - tf.reduce_mean(x)

    def build() -> tf.keras.Model:
        model = Mine()
        model(tf.zeros([1, 4]))
        return model

    with pytest.raises(ValueError, match=r"^the model 'all': expected outputs of an example"):
        model_from_keras(build, loss=_squared, example_spec=_SPEC)


def test_layer_with_unseeded_randomness_is_accepted():
    # No two calls are equal, so they show no mixing.
    unseeded = _function(lambda x, _: x + tf.random.normal(tf.shape(x)))
    assert _model(unseeded).num_parameters


@pytest.mark.parametrize(
    ("loss", "ending"),
    [
        (lambda y, p: _squared(y, p) * tf.cast(tf.shape(y)[0], tf.float32), "alone"),
        (lambda y, p: _squared(y - tf.reduce_mean(y), p), "in another"),
    ],
    ids=["size", "labels"],
)
def test_loss_that_mixes_examples_raises(loss, ending):
    with pytest.raises(ValueError, match=r"^loss: expected numbers of an example that do") as e:
        _model(loss=loss)
    assert str(e.value).endswith(ending)


def test_metric_that_mixes_examples_raises_with_name():
    def ratio(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.reduce_mean(tf.square(labels - outputs), axis=1), tf.ones_like(labels)

    with pytest.raises(ValueError, match=r"^metric mine: expected numbers of an example that do "):
        _model(metrics=[Metric("mine", ratio)])


_losses = tf.keras.losses


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (_losses.MSE, lambda d: d**2),
        (lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1), lambda d: d**2),
        (_losses.MeanSquaredError(reduction="none"), lambda d: d**2),
        (_squared, lambda d: d**2),
    ],
)
@pytest.mark.parametrize("labels", [[None], [None, 1]])
def test_losses_of_one_output_do_not_broadcast(loss, expected, labels):
    if loss is _squared and len(labels) == 2:
        pytest.skip("written for labels [n]")
    model = _model(loss=loss, labels=tf.TensorSpec(labels, tf.float32))
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=w.shape).astype(np.float32) for w in model.initial_weights[0]]
    x, y = rng.normal(size=[6, 4]).astype(np.float32), rng.normal(size=6).astype(np.float32)
    examples = {"x": x, "y": y.reshape([-1, *labels[1:]])}
    model_weights = model.initial_weights._replace(trainable=weights)
    losses, _ = model.example_losses(model_weights, examples, False, _SEED)
    kernel, bias = weights
    np.testing.assert_allclose(losses, expected((x @ kernel + bias)[:, 0] - y), rtol=1e-4)


def test_per_example_loss_is_not_wrapped():
    assert _model(loss=_squared).loss is _squared


@pytest.mark.skipif(keras_platform().release == KERAS_3, reason="layers only")
def test_operation_that_mixes_examples_raises_with_name():
    def build() -> tf.keras.Model:
        x = tf.keras.Input([4])
        mixed = x - tf.reduce_mean(x, axis=0, keepdims=True)
        return tf.keras.Model(x, layers.Dense(1)(mixed))

    with pytest.raises(ValueError, match=r"^layer 'tf.math.subtract': expected outputs of an ex"):
        model_from_keras(build, loss=_squared, example_spec=_SPEC)


def test_base_predictor_that_mixes_examples_raises():
    like = _model()
    fixed = tf.keras.Sequential([tf.keras.Input([4]), _MIXING["mean"](), layers.Dense(1)])
    with pytest.raises(ValueError, match=r"^layer 'mine': expected outputs of an example"):
        fixed_from_keras(fixed, like)
