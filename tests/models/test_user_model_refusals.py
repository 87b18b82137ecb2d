"""Models and losses of users that do not fit the data, or are none."""

from typing import Any

import pytest

from tests import golden
from tests.models.user_files import (
    DENSE,
    FEATURES,
    IMPORTS,
    INT,
    LOSS,
    NEXT_WORD,
    TEXTS,
    error_line,
    error_lines,
    model_file,
    returning,
)
from tff_agnostic.models import ModelData

# What is wrong with what the function returns


_WANTED = "expected it to return (keras_model, loss) or (keras_model, loss, metrics), found"


@golden.values
def test_something_else_is_returned(tmp_path, case):
    return error_line(returning(tmp_path, *case))


@pytest.mark.parametrize("names", [["loss"], ["num_examples"], ["a/b"], [""], ["a", "a"]])
def test_names_of_metrics(tmp_path, names):
    text = f"""{IMPORTS}
from tff_agnostic.models import Metric, accuracy

def build_model(data):
    metrics = [Metric(name, accuracy().per_example) for name in {names}]
    return {DENSE}, {LOSS}, metrics
"""
    assert error_line(model_file(tmp_path, text)) == (
        "build_model: metrics: expected different names without slashes, other than loss and "
        f"num_examples, found {names[0]!r}"
    )


# What is wrong with the model


def test_inputs_that_the_model_refuses(tmp_path):
    path = returning(tmp_path, "tf.keras.Sequential([tf.keras.Input([5]), layers.Dense(3)])", LOSS)
    line = error_line(path)
    assert line.startswith("the model, called with x [n, 4] float32, fails: ValueError: ")
    assert "expected shape=(None, 5), found shape=(2, 4)" in line


def test_a_layer_of_their_own_that_fails_shows_their_line(tmp_path):
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
        f'  File "{path}", line 8, in call',
        "    return x @ tf.ones([7, 2])",
    ]
    assert "site-packages" not in "\n".join(lines)


def _dense(units: Any) -> str:
    return f"tf.keras.Sequential([layers.Dense({units})])"


@pytest.mark.parametrize(
    ("keras_model", "data", "message"),
    [
        (
            _dense(3),
            ModelData(FEATURES.x_spec, INT, ("a",), 10),
            "the model's outputs do not fit the labels: labels go up to 9, which takes 10 scores, "
            "found 3: [n, 3] float32",
        ),
        (
            "tf.keras.Sequential([tf.keras.Input([5]), layers.Flatten(), layers.Dense(11)])",
            TEXTS,
            "the model's outputs do not fit the labels: expected a score of each id at each "
            "position, [n, 5, 11], found [n, 11] float32",
        ),
        (
            "tf.keras.Sequential([layers.Embedding(11, 11), layers.Dense(7)])",
            TEXTS,
            "the model's outputs do not fit the labels: expected a score of each id at each "
            "position, [n, 5, 11], found [n, 5, 7] float32",
        ),
        (
            "tf.keras.Sequential([layers.Lambda(lambda x: tf.reduce_sum(x, axis=0))])",
            FEATURES,
            "the model: expected outputs with a row per example, found [4] float32",
        ),
    ],
)
def test_outputs_that_do_not_fit_the_labels(tmp_path, keras_model, data, message):
    assert error_line(returning(tmp_path, keras_model, LOSS), data) == message


def test_one_output_for_ten_classes(tmp_path):
    data = ModelData(FEATURES.x_spec, INT, ("a",), 10)
    line = error_line(returning(tmp_path, _dense(1), LOSS), data)
    assert line.startswith(
        "the loss, of y [n] int32 and outputs [n, 1] float32, fails: InvalidArgumentError: "
    )
    assert "label value of 9" in line


@golden.values
def test_weights_that_cannot_be_trained(tmp_path, case):
    return error_line(returning(tmp_path, case, LOSS))


def test_batch_normalisation_is_refused_in_the_same_words_as_elsewhere(tmp_path):
    layers_ = 'layers.BatchNormalization(name="norm"), layers.Dense(3)'
    line = error_line(returning(tmp_path, f"tf.keras.Sequential([{layers_}])", LOSS))
    assert line.startswith("layer 'norm' updates moving averages while training")


# What is wrong with the loss, or a metric


@pytest.mark.parametrize(
    ("loss", "data", "message"),
    [
        (
            "losses.SparseCategoricalCrossentropy(from_logits=True)",
            FEATURES,
            "loss: expected one number per example, shape [n], found a single number; Keras losses "
            'need reduction="none"',
        ),
        (
            "lambda y, p: p",
            FEATURES,
            "loss: expected one number per example, shape [n], found [n, 3] float32; Keras losses "
            'need reduction="none"',
        ),
        (
            "lambda y, p: None",
            FEATURES,
            "loss: expected one real number per example, found None",
        ),
        (
            "lambda y, p: y",
            FEATURES,
            "loss: expected one real number per example, found [n] int32",
        ),
    ],
)
def test_losses_that_are_not_one_number_per_example(tmp_path, loss, data, message):
    assert error_line(returning(tmp_path, DENSE, loss), data) == message


def test_a_loss_per_word_is_not_one_per_sentence(tmp_path):
    assert error_line(returning(tmp_path, NEXT_WORD, LOSS), TEXTS) == (
        "loss: expected one number per example, shape [n], found [n, 5] float32; "
        "tff_agnostic.models.SentenceLoss() is such a loss of texts"
    )


def test_a_loss_that_fails_shows_its_line(tmp_path):
    path = returning(tmp_path, DENSE, "lambda y, p: p['scores']")
    lines = error_lines(path)
    assert lines[0] == f"{path}: the loss, of y [n] int32 and outputs [n, 3] float32, fails:"
    assert lines[1].endswith(", in <lambda>")


@pytest.mark.parametrize(
    ("ratio", "found"),
    [
        ("p", "[n, 3] float32"),
        ("(p, p)", "[n, 3] float32, [n, 3] float32"),
        ("(y, tf.ones(2))", "[n] int32, [n] float32"),
        ("(None, 1.0)", "None, a float"),
    ],
)
def test_metrics_that_are_no_ratios(tmp_path, ratio, found):
    text = f"""{IMPORTS}
from tff_agnostic.models import Metric

def build_model(data):
    return {DENSE}, {LOSS}, [Metric("mine", lambda y, p: {ratio})]
"""
    assert error_line(model_file(tmp_path, text)) == (
        "metric mine: expected a numerator and a denominator per example, float32 [n] each, found "
        f"{found}"
    )
