"""A user's own model file on texts, of words or of labels."""

import numpy as np
import pytest

from tests.data.stores import text_store
from tests.tasks.custom.stores import reviews
from tests.tasks.custom.user_models import NEXT_WORD, error_of, load, model_file

_TEXT_CLASSIFIER = """
    import tensorflow as tf

    def build_model(data):
        assert not data.predicts_next_words
        assert (data.num_classes, data.sequence_length, data.num_ids) == (3, 4, 7)
        x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
        vectors = tf.keras.layers.Embedding(data.num_ids, 2, mask_zero=True)(x)
        state = tf.keras.layers.GRU(2)(vectors)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        return tf.keras.Model(x, tf.keras.layers.Dense(data.num_classes)(state)), loss
"""


def test_texts(tmp_path):
    data = text_store(tmp_path / "s.sqlite")
    task = load(model_file(tmp_path, NEXT_WORD), data, sequence_length=4, vocabulary_size=2)
    assert task.domain_names == ("answer", "question")
    # the, cat are 1 and 2, other words 3, begin 4, end 5.
    np.testing.assert_array_equal(
        task.train.read("b")["x"], [[4, 1, 2, 5], [4, 3, 5, 0], [4, 1, 1, 3]]
    )
    assert task.model.initial_weights.trainable[0].shape == (2 + 4, 2)
    assert "perplexity" in [metric.name for metric in task.model.metrics]


def test_texts_with_labels(tmp_path):
    data = reviews(tmp_path / "s.sqlite", class_names=["bad", "good", "odd"])
    task = load(model_file(tmp_path, _TEXT_CLASSIFIER), data, sequence_length=4)
    examples = task.train.read("a")
    # the, cat, sat are 1 to 3, other words 4; padding 0 after them, neither begin nor end.
    np.testing.assert_array_equal(examples["x"], [[1, 2, 0, 0], [3, 0, 0, 0], [4, 1, 1, 2]])
    assert examples["y"].tolist() == [0, 2, 1]
    assert {column.dtype for column in examples.values()} == {np.dtype(np.int32)}
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert list(task.fingerprint) == ["model", "vocabulary", "classes", "data"]
    assert [remark.kind for remark in task.remarks()] == ["words_cut"]


def test_the_next_word_of_texts_with_labels(tmp_path):
    data = reviews(tmp_path / "s.sqlite")
    options = {"sequence_length": 4, "predict": "next_word"}
    task = load(model_file(tmp_path, NEXT_WORD), data, **options)
    np.testing.assert_array_equal(task.train.read("a")["y"][1], [3, 6, 0, 0])
    assert "perplexity" in [metric.name for metric in task.model.metrics]


def test_texts_with_labels_that_are_numbers(tmp_path):
    data = reviews(tmp_path / "s.sqlite", labels=(0.5, 4.0, 3.0))
    model = """
    import tensorflow as tf

    def build_model(data):
        assert data.label_range == (0.5, 4.0)
        x = tf.keras.Input(data.x_shape)
        vectors = tf.keras.layers.Embedding(data.num_ids, 1)(x)
        score = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(vectors))
        return tf.keras.Model(x, score), tf.keras.losses.MeanAbsoluteError(reduction="none")
    """
    task = load(model_file(tmp_path, model), data, sequence_length=2)
    assert task.train.read("a")["y"].dtype == np.float32
    names = [metric.name for metric in task.model.metrics]
    assert names == ["mean_absolute_error", "root_mean_squared_error"]


@pytest.mark.parametrize("option", ["vocabulary_size", "sequence_length"])
def test_a_size_out_of_range_is_named_as_its_flag(tmp_path, option):
    data = text_store(tmp_path / "s.sqlite")
    message = error_of(model_file(tmp_path, NEXT_WORD), data, **{option: 0})
    assert message == f"--custom_{option}: expected at least 1, found 0"
