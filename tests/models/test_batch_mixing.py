"""Models, losses and metrics whose value for an example depends on the rest of its batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.user_files import FEATURES, error_line, model_file
from tff_agnostic.models import Metric, Model, model_from_keras
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.keras_platform import KERAS_3, keras_platform

layers = tf.keras.layers
_SEED = np.array([0, 0], np.int32)
_NUMBERS = tf.TensorSpec([None], tf.float32)


def _squared(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    return tf.square(labels - outputs[:, 0])


def _model(
    *stack: Callable[[], Any],
    loss: Any = _squared,
    labels: tf.TensorSpec = _NUMBERS,
    metrics: Sequence[Metric] = (),
) -> Model:
    def build() -> tf.keras.Model:
        # Without the check's noise, weights of zero would hide the inputs.
        last = layers.Dense(1, kernel_initializer="zeros")
        return tf.keras.Sequential([tf.keras.Input([4]), *[layer() for layer in stack], last])

    spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": labels}
    return model_from_keras(build, loss=loss, example_spec=spec, metrics=metrics)


def _function(function: Callable[..., tf.Tensor]) -> Callable[[], Any]:
    class Mixing(layers.Layer):
        def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
            return function(x, training)

    return lambda: Mixing(name="mine")


_MIXING = {
    "mean": _function(lambda x, _: x - tf.reduce_mean(x, 0, keepdims=True)),
    "deviation": _function(lambda x, _: x / tf.math.reduce_std(x, 0)),
    "earlier examples": _function(lambda x, _: tf.cumsum(x, 0)),
    "later examples": _function(lambda x, _: tf.cumsum(x, 0, reverse=True)),
    "size": _function(lambda x, _: x * tf.cast(tf.shape(x)[0], tf.float32)),
    "training": _function(lambda x, training: x - tf.reduce_mean(x, 0) if training else x),
    "evaluation": _function(lambda x, training: x if training else x - tf.reduce_mean(x, 0)),
}


@pytest.mark.parametrize("name", _MIXING)
def test_mixing_layer_is_refused_by_name(name):
    with pytest.raises(
        ValueError, match=r"^layer 'mine': expected outputs of an example that do "
    ) as e:
        _model(lambda: layers.Dense(4), _MIXING[name])
    assert "\n" not in str(e.value)
    assert str(e.value).count("LayerNormalization") == 1


def test_mixing_next_to_dropout_is_refused():
    with pytest.raises(ValueError, match=r"^layer 'mine': expected outputs of an example"):
        _model(lambda: layers.Dropout(0.5), _MIXING["training"])


def test_mixing_subclass_is_refused_by_its_own_name():
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

    spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": _NUMBERS}
    with pytest.raises(ValueError, match=r"^the model 'all': expected outputs of an example"):
        model_from_keras(build, loss=_squared, example_spec=spec)


@pytest.mark.parametrize(
    "stack",
    [
        [lambda: layers.Dropout(0.5)],
        [lambda: layers.GaussianNoise(0.5), lambda: layers.AlphaDropout(0.3)],
        [lambda: layers.Reshape([2, 2]), lambda: layers.LSTM(3, dropout=0.5)],
        # Without a seed, so that no two calls are equal.
        [_function(lambda x, _: x + tf.random.normal(tf.shape(x)))],
        [lambda: layers.LayerNormalization(), lambda: layers.UnitNormalization()],
        [lambda: layers.BatchNormalization(trainable=False)],
    ],
    ids=["dropout", "noise", "recurrent", "unseeded", "normalisation", "frozen averages"],
)
def test_random_and_normalising_layers_are_accepted(stack):
    assert _model(*stack).num_parameters


@pytest.mark.parametrize(
    ("loss", "ending"),
    [
        (lambda y, p: _squared(y, p) * tf.cast(tf.shape(y)[0], tf.float32), "alone"),
        (lambda y, p: _squared(y - tf.reduce_mean(y), p), "in another"),
        (lambda y, p: tf.reduce_mean(tf.square(y - p), axis=0), "in another"),
        (lambda y, p: tf.fill(tf.shape(y), tf.reduce_mean(_squared(y, p))), "in another"),
    ],
    ids=["size", "labels", "differences of all pairs", "mean of the batch"],
)
def test_mixing_loss_is_refused(loss, ending):
    with pytest.raises(ValueError, match=r"^loss: expected numbers of an example that do") as e:
        _model(loss=loss)
    assert str(e.value).endswith(ending)


def test_mixing_metric_is_refused_by_name():
    def ratio(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.reduce_mean(tf.square(labels - outputs), axis=1), tf.ones_like(labels)

    with pytest.raises(ValueError, match=r"^metric mine: expected numbers of an example that do "):
        _model(metrics=[Metric("mine", ratio)])


_losses = tf.keras.losses


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (_losses.MSE, lambda d: d**2),
        (_losses.MAE, np.abs),
        (_losses.huber, lambda d: np.where(np.abs(d) < 1, d**2 / 2, np.abs(d) - 0.5)),
        (lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1), lambda d: d**2),
        (_losses.MeanSquaredError(reduction="none"), lambda d: d**2),
        (_squared, lambda d: d**2),
    ],
)
@pytest.mark.parametrize("labels", [[None], [None, 1]])
def test_one_output_losses_compare_pairs(loss, expected, labels):
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


def test_per_example_loss_is_kept():
    assert _model(loss=_squared).loss is _squared


@pytest.mark.skipif(keras_platform().release == KERAS_3, reason="layers only")
def test_users_file_is_refused_in_one_line(tmp_path):
    text = """
import tensorflow as tf

def build_model(data):
    x = tf.keras.Input(data.x_shape)
    scores = tf.keras.layers.Dense(3)(x - tf.reduce_mean(x, axis=0, keepdims=True))
    return tf.keras.Model(x, scores), tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )
"""
    line = error_line(model_file(tmp_path, text), FEATURES)
    assert line.startswith("layer 'tf.math.subtract': expected outputs of an example that do not ")


def test_mixing_base_predictor_is_refused():
    like = _model()
    fixed = tf.keras.Sequential([tf.keras.Input([4]), _MIXING["mean"](), layers.Dense(1)])
    with pytest.raises(ValueError, match=r"^layer 'mine': expected outputs of an example"):
        fixed_from_keras(fixed, like)
