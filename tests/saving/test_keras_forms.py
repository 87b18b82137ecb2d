"""Files of Keras models of several forms."""

import numpy as np
import pytest
import tensorflow as tf

from tests.saving.test_formats import _task
from tff_agnostic.models import model_from_keras
from tff_agnostic.models.metrics import sparse_cross_entropy
from tff_agnostic.saving.keras import load_keras
from tff_agnostic.saving.save import save_for_keras

layers = tf.keras.layers


def _nested():
    inputs = tf.keras.Input([4])
    inner = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(3, activation="tanh")])
    return tf.keras.Model(inputs, layers.Dense(3)(layers.Add()([inner(inputs), inner(inputs)])))


def _functional():
    inputs = tf.keras.Input([4])
    return tf.keras.Model(inputs, layers.Dense(3)(inputs))


def _normalized():
    inputs = tf.keras.Input([4])
    return tf.keras.Model(inputs, layers.Dense(3)(_frozen(layers.BatchNormalization())(inputs)))


def _attending():
    inputs = tf.keras.Input([4])
    rows = layers.Reshape([2, 2])(inputs)
    attended = layers.MultiHeadAttention(2, 3)(rows, rows)
    return tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(attended)))


def _frozen(layer):
    layer.trainable = False
    return layer


def _saved(folder, build):
    spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([None], tf.int32)}
    model = model_from_keras(build, loss=sparse_cross_entropy, example_spec=spec)
    (file,) = save_for_keras(folder, _task(model), {"model": model.initial_weights}).saved
    return model, file


@pytest.mark.parametrize("build", [_functional, _nested, _normalized, _attending])
def test_saved_model_predicts_like_the_run(tmp_path, build):
    model, file = _saved(tmp_path, build)
    x = np.random.default_rng(0).normal(size=[5, 4]).astype(np.float32)
    expected = model.predict(model.initial_weights, x, False, tf.zeros([2], tf.int32))
    np.testing.assert_allclose(load_keras(tmp_path / file.path, {})(x), expected, rtol=1e-5)
