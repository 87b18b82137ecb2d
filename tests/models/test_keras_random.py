"""Dropout and other random layers draw from the seed of a call, and from nothing else."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.keras_zoo import KINDS, classification
from tff_agnostic.models import Model, model_from_keras
from tff_agnostic.models.model import ModelWeights

layers = tf.keras.layers

_RANDOM_LAYERS = {
    "dropout": lambda: layers.Dropout(0.5),
    "alpha_dropout": lambda: layers.AlphaDropout(0.5),
    "gaussian_dropout": lambda: layers.GaussianDropout(0.5),
    "gaussian_noise": lambda: layers.GaussianNoise(0.5),
    "spatial_dropout": lambda: layers.SpatialDropout2D(0.5),
    "random_flip": lambda: layers.RandomFlip(),
    "random_rotation": lambda: layers.RandomRotation(0.2),
    "random_contrast": lambda: layers.RandomContrast(0.5),
}
_X = np.random.default_rng(0).random([5, 4, 4, 6]).astype(np.float32)


def _unchanged(channels: int) -> tf.keras.layers.Layer:
    """A model has weights to train; these leave what they are applied to as it is."""
    return layers.Dense(channels, kernel_initializer="identity")


def _model(*random_layers: Any) -> Model:
    def build() -> tf.keras.Model:
        drawn = [make() for make in random_layers]
        return tf.keras.Sequential([tf.keras.Input([4, 4, 6]), *drawn, _unchanged(6)])

    kind = classification(build, [4, 4, 6])
    return model_from_keras(
        build,
        loss=lambda labels, predictions: tf.reduce_sum(predictions, axis=[1, 2, 3]),
        example_spec={"x": kind.x_spec, "y": kind.y_spec},
    )


def _outputs(model: Model, seed: tuple[int, int], training: bool = True) -> np.ndarray:
    call = tf.function(lambda s: model.predict(model.initial_weights, _X, training, s))
    return call(tf.constant(seed)).numpy()


@pytest.mark.parametrize("make_layer", _RANDOM_LAYERS.values(), ids=_RANDOM_LAYERS)
def test_a_random_layer_is_a_function_of_the_seed(make_layer):
    model = _model(make_layer)
    first = _outputs(model, (1, 2))
    np.testing.assert_array_equal(_outputs(model, (1, 2)), first)
    assert not np.array_equal(_outputs(model, (1, 3)), first)
    assert not np.array_equal(_outputs(model, (2, 2)), first)


@pytest.mark.parametrize("make_layer", _RANDOM_LAYERS.values(), ids=_RANDOM_LAYERS)
def test_without_training_the_seed_is_ignored(make_layer):
    model = _model(make_layer)
    np.testing.assert_allclose(_outputs(model, (1, 2), training=False), _X, rtol=1e-6)
    np.testing.assert_allclose(_outputs(model, (9, 9), training=False), _X, rtol=1e-6)


def test_the_global_seed_does_not_matter():
    outputs = []
    for seed in (0, 1):
        model = _model(_RANDOM_LAYERS["dropout"])
        tf.keras.utils.set_random_seed(seed)
        outputs.append(_outputs(model, (1, 2)))
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_two_layers_and_two_calls_of_one_layer_draw_differently():
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([4, 4, 6])
        first, second = layers.Dropout(0.5), layers.Dropout(0.5)
        drawn = layers.Concatenate()([first(inputs), first(inputs), second(inputs)])
        return tf.keras.Model(inputs, _unchanged(18)(drawn))

    kind = classification(build, [4, 4, 6])
    model = model_from_keras(
        build,
        loss=lambda labels, predictions: tf.reduce_sum(predictions, axis=[1, 2, 3]),
        example_spec={"x": kind.x_spec, "y": kind.y_spec},
    )
    masks = [part == 0 for part in np.split(_outputs(model, (1, 2)), 3, axis=-1)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(masks[a], masks[b])


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_dropout_drops_its_rate_and_scales_the_rest(rate):
    model = _model(lambda: layers.Dropout(rate))
    outputs = np.stack([_outputs(model, (0, i)) for i in range(20)])
    kept = outputs != 0
    # 9600 draws: four standard deviations are less than 0.02.
    assert abs(kept.mean() - (1 - rate)) < 0.02
    scaled = np.broadcast_to(_X / (1 - rate), outputs.shape)
    np.testing.assert_allclose(outputs[kept], scaled[kept], rtol=1e-5)


def test_dropout_inside_an_lstm_is_a_function_of_the_seed():
    kind = KINDS["lstm_with_dropout"]
    spec = {"x": kind.x_spec, "y": kind.y_spec}
    model = model_from_keras(kind.build, loss=kind.loss, example_spec=spec)
    x = kind.x(np.random.default_rng(0), 6)
    weights = tf.nest.map_structure(tf.constant, tuple(model.initial_weights))
    call = tf.function(lambda s: model.predict(ModelWeights(*weights), x, True, s))
    first = call(tf.constant([1, 2])).numpy()
    np.testing.assert_array_equal(call(tf.constant([1, 2])).numpy(), first)
    assert not np.array_equal(call(tf.constant([1, 3])).numpy(), first)
