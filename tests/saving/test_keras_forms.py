"""One form of a `.keras` file for both releases of Keras, as far as there is one."""

import json
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.saving.test_formats import _task
from tff_agnostic.models import model_from_keras
from tff_agnostic.models.keras_platform import KERAS_2, KERAS_3, keras_platform
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


def _config(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))


@pytest.mark.parametrize("build", [_functional, _nested, _normalized, _attending])
def test_what_is_saved_has_the_models_predictions(tmp_path, build):
    model, file = _saved(tmp_path, build)
    x = np.random.default_rng(0).normal(size=[5, 4]).astype(np.float32)
    expected = model.predict(model.initial_weights, x, False, tf.zeros([2], tf.int32))
    np.testing.assert_allclose(load_keras(tmp_path / file.path, {})(x), expected, rtol=1e-5)


@pytest.mark.skipif(keras_platform().release == KERAS_3, reason="of Keras 2's files")
def test_a_file_of_keras_2_is_one_for_both_or_has_another_beside_it(tmp_path):
    _, file = _saved(tmp_path, _functional)
    assert file.about == {"loads_in": [KERAS_2, KERAS_3]}
    # No name that is private to a release.
    assert "keras.src" not in json.dumps(_config(tmp_path / "model.keras"))
    _, file = _saved(tmp_path, _nested)
    assert file.about == {"loads_in": [KERAS_2], "for_keras_3": "model_keras3.keras"}
    calls = [
        _calls(_config(tmp_path / name), "sequential")
        for name in ("model.keras", "model_keras3.keras")
    ]
    assert calls == [[1, 2], [0, 1]]


@pytest.mark.slow
@pytest.mark.skipif(keras_platform().release == KERAS_3, reason="of Keras 2's files")
def test_no_file_is_for_keras_3_that_it_does_not_read(tmp_path):
    """It refuses the axis of a normalisation as a list, and inputs of attention by name."""
    _, file = _saved(tmp_path, _normalized)
    assert file.about == {"loads_in": [KERAS_2, KERAS_3]}
    made_of = [layer["config"] for layer in _config(tmp_path / "model.keras")["config"]["layers"]]
    assert [config["axis"] for config in made_of if "axis" in config] == [1]
    _, file = _saved(tmp_path, _attending)
    assert file.about == {"loads_in": [KERAS_2]}
    assert not (tmp_path / "model_keras3.keras").exists()


def _calls(config, name):
    """The numbers of a layer's calls whose outputs are used, in a configuration of Keras 2."""
    found = []
    for layer in config["config"]["layers"]:
        for node in layer["inbound_nodes"]:
            found += [source[1] for source in node if source[0] == name]
    return found
