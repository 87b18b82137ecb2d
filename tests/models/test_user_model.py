"""Models from users' files: supported forms, and models that do not fit the data."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.model_files import (
    DENSE,
    FEATURES,
    IMPORTS,
    INT,
    LOSS,
    REGRESSION,
    TEXTS,
    error_line,
    error_lines,
    model_file,
    returning,
)
from tff_agnostic.models import Model, ModelData, load_user_model
from tff_agnostic.models.keras_platform import KERAS_2, keras_platform

_SEED = np.array([0, 0], np.int32)


def _losses(model: Model, x: Any, y: Any) -> tuple:
    weights = model.initial_weights
    return model.example_losses(weights, {"x": x, "y": y}, False, _SEED)


@pytest.mark.slow
def test_seed_determines_user_models_weights(tmp_path):
    # Keras builds the second model, without an Input, in its first call.
    for keras_model in (DENSE, "tf.keras.Sequential([layers.Dense(5), layers.Dense(3)])"):
        path = returning(tmp_path, keras_model, LOSS)
        first, second, other = (
            load_user_model(path, FEATURES, seed).initial_weights for seed in (1, 1, 2)
        )
        np.testing.assert_equal(list(first), list(second))
        assert not np.array_equal(first.trainable[0], other.trainable[0])


def test_user_classifier_has_scores_losses_and_accuracy(tmp_path):
    path = returning(tmp_path, DENSE, LOSS)
    first, model = (load_user_model(path, FEATURES, seed) for seed in (1, 2))
    assert first == model
    assert [metric.name for metric in model.metrics] == ["accuracy"]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 4)).astype(np.float32), np.array([0, 1, 2, 2, 1, 0], np.int32)
    losses, _ = _losses(model, x, y)
    kernel, bias = model.initial_weights.trainable
    scores = x @ kernel + bias
    expected = np.log(np.exp(scores).sum(1)) - scores[np.arange(6), y]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


_HIDDEN = "tf.keras.Sequential([tf.keras.Input(data.x_shape), {}, layers.Dense(3)])"


@pytest.mark.parametrize(
    "keras_model, loss",
    [
        # User code may create random constants, so these models must not share a trace.
        (_HIDDEN.format("layers.Dense(4, activation=lambda x: x)"), LOSS),
        (_HIDDEN.format("layers.Dense(4, kernel_regularizer=lambda w: tf.reduce_sum(w))"), LOSS),
        (_HIDDEN.format("layers.Lambda(lambda x: x * 2.0)"), LOSS),
        (_HIDDEN.format("type('Own', (layers.Dense,), {})(4)"), LOSS),
        (DENSE, "lambda labels, scores: " + LOSS + "(labels, scores)"),
        (DENSE, "type('Own', (losses.SparseCategoricalCrossentropy,), {})(True, reduction='none')"),
    ],
)
def test_models_with_user_code_are_unequal(tmp_path, keras_model, loss):
    path = returning(tmp_path, keras_model, loss)
    assert load_user_model(path, FEATURES, 1) != load_user_model(path, FEATURES, 2)


@pytest.mark.slow
def test_different_user_models_are_unequal(tmp_path):
    texts = [
        (_HIDDEN.format("layers.Dense(4)"), LOSS),
        (_HIDDEN.format("layers.Dense(5)"), LOSS),
        (_HIDDEN.format("layers.Dense(4, 'relu')"), LOSS),
        (_HIDDEN.format("layers.Dense(4, kernel_regularizer='l2')"), LOSS),
        (_HIDDEN.format("layers.Dense(4)"), LOSS.replace("True", "False")),
    ]
    models = [load_user_model(returning(tmp_path, *text), FEATURES) for text in texts]
    assert all(a != b for a, b in itertools.combinations(models, 2))


def test_functions_of_users_can_be_losses_and_metrics(tmp_path):
    text = f"""{IMPORTS}
def squared(labels, predictions):
    return tf.square(labels - predictions[:, 0])

def build_model(data):
    error = Metric("squared_error", lambda y, p: (squared(y, p), tf.ones_like(y)), upper=None)
    return tf.keras.Sequential([tf.keras.Input(data.x_shape), layers.Dense(1)]), squared, [error]
"""
    model = load_user_model(model_file(tmp_path, text), REGRESSION)
    assert [metric.name for metric in model.metrics] == ["squared_error"]
    losses, predictions = _losses(model, np.ones([3, 4], np.float32), np.zeros([3], np.float32))
    np.testing.assert_allclose(losses, predictions[:, 0] ** 2, rtol=1e-6)


@pytest.mark.parametrize("loss", ['losses.MeanSquaredError(reduction="none")', "losses.MSE"])
@pytest.mark.parametrize("output", ["layers.Dense(1)", "layers.Dense(1), layers.Reshape([])"])
def test_keras_regression_losses_are_per_example(tmp_path, output, loss):
    model = load_user_model(
        returning(tmp_path, f"tf.keras.Sequential([{output}])", loss), REGRESSION
    )
    assert model.metrics == ()
    y = np.array([1, 2, 3], np.float32)
    losses, predictions = _losses(model, np.ones([3, 4], np.float32), y)
    np.testing.assert_allclose(losses, (np.ravel(predictions) - y) ** 2, rtol=1e-6)


def test_two_classes_may_have_one_output(tmp_path):
    loss = 'losses.BinaryCrossentropy(from_logits=True, reduction="none")'
    data = ModelData(FEATURES.x_spec, INT, ("a",), 2)
    model = load_user_model(
        returning(tmp_path, "tf.keras.Sequential([layers.Dense(1)])", loss), data
    )
    y = np.array([0, 1, 1], np.int32)
    losses, scores = _losses(model, np.ones([3, 4], np.float32), y)
    expected = np.log1p(np.exp(np.where(y, -1, 1) * scores[:, 0]))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


# --- Models and losses that do not fit the data raise errors


_DATA = {
    "features": FEATURES,
    "texts": TEXTS,
    "ten classes": ModelData(FEATURES.x_spec, INT, ("a",), 10),
}


@golden.values
def test_unsuitable_user_model_raises(tmp_path, case):
    data, *values = case
    return error_line(returning(tmp_path, *values), _DATA[data])


def test_model_with_another_input_shape_raises(tmp_path):
    path = returning(tmp_path, "tf.keras.Sequential([tf.keras.Input([5]), layers.Dense(3)])", LOSS)
    line = error_line(path)
    assert line.startswith("the model, called with x [n, 4] float32, fails: ValueError: ")
    # Messages of Keras 2 and of Keras 3.
    assert re.search(r"expected shape=\(None, 5\), found shape=\(2, 4\)|to have value 5", line)


def test_failing_user_layer_shows_its_line(tmp_path):
    text = f"""{IMPORTS}
class Mine(layers.Layer):
    def call(self, x):
        return x @ tf.ones([7, 2])

def build_model(data):
    return tf.keras.Sequential([Mine(), layers.Dense(3)]), {LOSS}
"""
    path = model_file(tmp_path, text)
    lines = error_lines(path)
    assert lines[:3] == [
        f"{path}: the model, called with x [n, 4] float32, fails:",
        f'  File "{path}", line 9, in call',
        "    return x @ tf.ones([7, 2])",
    ]
    assert "site-packages" not in "\n".join(lines)


def test_tensorflow_function_on_keras_input_shows_its_line(tmp_path):
    text = f"""{IMPORTS}
def build_model(data):
    x = tf.keras.Input(data.x_shape)
    both = tf.concat([x, x], 1)
    return tf.keras.Model(x, layers.Dense(3)(both)), {LOSS}
"""
    path = model_file(tmp_path, text)
    if keras_platform().release == KERAS_2:
        kernel, _ = load_user_model(path, FEATURES).initial_weights.trainable
        assert kernel.shape == (8, 3)
        return
    assert error_lines(path) == [
        f"{path}: build_model fails:",
        f'  File "{path}", line 9, in build_model',
        "    both = tf.concat([x, x], 1)",
        "ValueError: expected layers or keras.ops on the inputs of a functional model, as Keras 3 "
        "has them, found a function of TensorFlow (docs/reference/platforms.md)",
    ]


def test_failing_user_loss_shows_its_line(tmp_path):
    path = returning(tmp_path, DENSE, "lambda y, p: p['scores']")
    lines = error_lines(path)
    assert lines[0] == f"{path}: the loss, of y [n] int32 and outputs [n, 3] float32, fails:"
    assert lines[1].endswith(", in <lambda>")
