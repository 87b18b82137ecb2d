"""Models from users' files: what they may be."""

import sys
from typing import Any

import numpy as np
import pytest

from tests.algorithms.cases import build
from tests.computations.harness import EagerTraining, random_client, run_rounds
from tests.models.user_files import (
    DENSE,
    FEATURES,
    IMPORTS,
    INT,
    LOSS,
    MAPPING,
    NEXT_WORD,
    REGRESSION,
    TEXTS,
    model_file,
    returning,
)
from tff_agnostic.models import Model, ModelData, load_user_model

_SEED = np.array([0, 0], np.int32)


def _losses(model: Model, x: Any, y: Any) -> tuple:
    weights = model.initial_weights
    return model.example_losses(weights, {"x": x, "y": y}, False, _SEED)


def test_a_classifier_trains_and_its_accuracy_is_measured(tmp_path):
    model = load_user_model(returning(tmp_path, DENSE, LOSS), FEATURES)
    assert [metric.name for metric in model.metrics] == ["accuracy"]
    training = EagerTraining(build("agnostic_fed_avg", model, 2))
    client = random_client(np.random.default_rng(0), 9, range(2))
    state, (metrics,) = run_rounds(training, [[client]])
    assert metrics["clients"]["contributed"] == 1
    assert np.any(state.algorithm.weights.trainable[0] != model.initial_weights.trainable[0])


def test_the_seed_decides_the_initial_weights(tmp_path):
    # One model is built when it is first called.
    for keras_model in (DENSE, "tf.keras.Sequential([layers.Dense(5), layers.Dense(3)])"):
        path = returning(tmp_path, keras_model, LOSS)
        first, second, other = (
            load_user_model(path, FEATURES, seed).initial_weights for seed in (1, 1, 2)
        )
        np.testing.assert_equal(list(first), list(second))
        assert not np.array_equal(first.trainable[0], other.trainable[0])


def test_texts(tmp_path):
    text = f"""{IMPORTS}
from tff_agnostic.models import SentenceLoss

def build_model(data):
    assert (data.num_ids, data.sequence_length, data.vocabulary_size) == (11, 5, 7)
    return {NEXT_WORD}, SentenceLoss()
"""
    model = load_user_model(model_file(tmp_path, text), TEXTS)
    assert [metric.name for metric in model.metrics] == [
        "perplexity",
        "in_vocab_accuracy",
        "accuracy_without_out_of_vocab_or_end_of_sentence",
    ]
    tokens = np.ones([2, 5], np.int32)
    assert _losses(model, tokens, tokens)[0].shape == [2]


def test_a_function_as_the_loss_and_metrics_of_ones_own(tmp_path):
    text = f"""{IMPORTS}
from tff_agnostic.models import Metric

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


@pytest.mark.parametrize("output", ["layers.Dense(1)", "layers.Dense(1), layers.Reshape([])"])
def test_keras_losses_of_real_labels_give_one_number_per_example(tmp_path, output):
    model = load_user_model(
        returning(
            tmp_path,
            f"tf.keras.Sequential([{output}])",
            'losses.MeanSquaredError(reduction="none")',
        ),
        REGRESSION,
    )
    assert model.metrics == ()
    y = np.array([1, 2, 3], np.float32)
    losses, predictions = _losses(model, np.ones([3, 4], np.float32), y)
    np.testing.assert_allclose(losses, (np.ravel(predictions) - y) ** 2, rtol=1e-6)


def test_one_output_for_two_classes(tmp_path):
    loss = 'losses.BinaryCrossentropy(from_logits=True, reduction="none")'
    data = ModelData(FEATURES.x_spec, INT, ("a",), 2)
    model = load_user_model(
        returning(tmp_path, "tf.keras.Sequential([layers.Dense(1)])", loss), data
    )
    y = np.array([0, 1, 1], np.int32)
    losses, scores = _losses(model, np.ones([3, 4], np.float32), y)
    expected = np.log1p(np.exp(np.where(y, -1, 1) * scores[:, 0]))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_mapping_of_features(tmp_path):
    text = f"""{IMPORTS}

def build_model(data):
    assert data.x_shape == {{"age": (), "words": (2,)}}
    inputs = {{
        name: tf.keras.Input(shape, dtype=data.x_dtype[name], name=name)
        for name, shape in data.x_shape.items()
    }}
    age = tf.expand_dims(inputs["age"], 1)
    words = layers.Flatten()(layers.Embedding(9, 3)(inputs["words"]))
    both = layers.Concatenate()([age, words])
    return tf.keras.Model(inputs, layers.Dense(2)(both)), {LOSS}
"""
    model = load_user_model(model_file(tmp_path, text), MAPPING)
    x = {"age": np.ones([3], np.float32), "words": np.ones([3, 2], np.int32)}
    assert _losses(model, x, np.ones([3], np.int32))[0].shape == [3]


def test_modules_next_to_the_file_are_its_own(tmp_path):
    before, path_before = set(sys.modules), list(sys.path)
    for units in (5, 6):
        folder = tmp_path / str(units)
        folder.mkdir()
        (folder / "parts.py").write_text(f"UNITS = {units}\n")
        text = f"{IMPORTS}\ndef build_model(data):\n    import parts\n"
        hidden = "tf.keras.Sequential([layers.Dense(parts.UNITS), layers.Dense(3)])"
        path = model_file(folder, f"{text}    return {hidden}, {LOSS}\n")
        model = load_user_model(path, FEATURES)
        assert model.initial_weights.trainable[0].shape == (4, units)
    assert sys.path == path_before
    assert "parts" not in set(sys.modules) - before


def test_a_file_may_define_dataclasses_and_layers(tmp_path):
    text = f"""from __future__ import annotations
import dataclasses
{IMPORTS}

@dataclasses.dataclass
class Sizes:
    units: int = 3

class Twice(layers.Layer):
    def call(self, x):
        return 2 * x

def build_model(data):
    return tf.keras.Sequential([Twice(), layers.Dense(Sizes().units)]), {LOSS}
"""
    model = load_user_model(model_file(tmp_path, text), FEATURES)
    assert model.num_parameters == 15
