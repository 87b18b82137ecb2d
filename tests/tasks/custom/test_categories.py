"""Categories of a client store, as entries of a vector or as ids."""

import numpy as np

from tests.tasks.custom.stores import people, points
from tests.tasks.custom.user_models import CLASSIFIER, error_of, load, model_file

_OF_CATEGORY_IDS = """
    import tensorflow as tf

    def build_model(data):
        assert data.x_shape == {"x": (2,), "job": (), "town": ()}, data.x_shape
        inputs = {
            name: tf.keras.Input(shape, dtype=data.x_dtype[name])
            for name, shape in data.x_shape.items()
        }
        vectors = [
            tf.keras.layers.Embedding(len(data.categories[name]) + 1, 2)(inputs[name])
            for name in ("job", "town")
        ]
        joined = tf.keras.layers.Concatenate()([inputs["x"], *vectors])
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
        return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(joined)), loss
"""


def test_categories_are_entries_of_the_vector(tmp_path):
    task = load(model_file(tmp_path, CLASSIFIER), people(tmp_path / "s.sqlite"))
    # x, then Rome, then baker and cook; what is missing or not known is none of them.
    x = task.train.read("a")["x"]
    np.testing.assert_array_equal(x, [[1, 5, 1, 0, 1], [0, 5, 1, 0, 0], [1, 5, 0, 1, 0]])
    assert x.dtype == np.float32
    np.testing.assert_array_equal(task.test.read("a")["x"], [[0, 5, 1, 0, 0]])


def test_categories_beside_several_inputs_are_an_input(tmp_path):
    data = people(tmp_path / "s.sqlite", place=np.array([1, 2], np.float32))
    model = model_file(tmp_path, "def build_model(data):\n    raise TypeError(data.x_shape)")
    assert "TypeError: {'place': (2,), 'x': (2,), 'categories': (3,)}" in error_of(model, data)


def test_categories_as_ids(tmp_path):
    data = people(tmp_path / "s.sqlite")
    task = load(model_file(tmp_path, _OF_CATEGORY_IDS), data, categories="ids")
    examples = task.train.read("a")
    assert examples["x"]["job"].tolist() == [2, 0, 1]
    assert examples["x"]["town"].tolist() == [1, 1, 0]
    assert examples["x"]["job"].dtype == np.int32
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert task.test.read("a")["x"]["job"].tolist() == [0]


def test_the_fingerprint_holds_the_categories_and_they_may_be_those_of_another_store(tmp_path):
    model = model_file(tmp_path, CLASSIFIER)
    first = people(tmp_path / "s.sqlite")
    other = people(tmp_path / "o.sqlite", jobs=("baker", "clerk"))
    of_first, of_other = load(model, first).fingerprint, load(model, other)
    assert of_first["categories"] != of_other.fingerprint["categories"]
    with_those_of_first = load(model, other, vocabulary=str(first))
    assert with_those_of_first.fingerprint["categories"] == of_first["categories"]
    np.testing.assert_array_equal(of_other.test.read("a")["x"][:, 3:], [[0, 1]])
    np.testing.assert_array_equal(with_those_of_first.test.read("a")["x"][:, 3:], [[0, 0]])
    numbers = points(tmp_path / "p.sqlite")
    assert error_of(model, other, vocabulary=str(numbers)) == (
        "--custom_vocabulary: expected a store with the categories of town, found those of no "
        f"column in {numbers}"
    )
    missing = tmp_path / "none.sqlite"
    assert error_of(model, other, vocabulary=str(missing)) == (
        f"--custom_vocabulary: expected a client store, found no file at {missing}"
    )
