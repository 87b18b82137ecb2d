"""Users' model files on client stores."""

from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from tests.support.imports import job
from tests.support.model_files import model_file
from tests.support.stores import (
    LOGISTIC_REGRESSION,
    people,
    point,
    points,
    reviews,
    text_store,
    tff_store,
    write_store,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

_NEXT_WORD = """
    import tensorflow as tf
    from tff_agnostic.models import SentenceLoss

    def build_model(data):
        x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
        vectors = tf.keras.layers.Embedding(data.num_ids, 2)(x)
        return tf.keras.Model(x, tf.keras.layers.Dense(data.num_ids)(vectors)), SentenceLoss()
"""
_REGRESSION = """
    import tensorflow as tf

    def build_model(data):
        assert data.num_classes is None
        x = tf.keras.Input(data.x_shape)
        loss = tf.keras.losses.MeanSquaredError(reduction="none")
        return tf.keras.Model(x, tf.keras.layers.Dense(1)(x)), loss
"""


def _load(model: Optional[Path], data: Path, **options: Any) -> Task:
    given = {**options, **({} if model is None else {"model": str(model)})}
    return load_task("custom", given, TaskContext(0, data=data))


def _load_error(model: Optional[Path], data: Path, client: str = "", **options: Any) -> str:
    with pytest.raises(UserError) as error:
        _load(model, data, **options).train.read(client)
    return str(error.value)


@pytest.mark.slow
def test_classifier_gets_numbers_and_classes(tmp_path):
    data = points(tmp_path / "s.sqlite", class_names=["cat", "dog", "fox"])
    model = model_file(tmp_path, LOGISTIC_REGRESSION)
    task = _load(model, data)
    assert task.fingerprint["classes"] == "cat, dog, fox"
    assert task.domain_names == ("app", "web")
    for clients in (task.train, task.test):
        examples = clients.read("a")
        np.testing.assert_array_equal(examples["x"], [[0, 0], [1, -1], [2, -2]])
        assert examples["y"].tolist() == [0, 2, 1]
        assert examples["domain_id"].tolist() == [1, 0, 1]
        dtypes = [examples[name].dtype for name in ("x", "y", "domain_id")]
        assert dtypes == [np.float32, np.int32, np.int32]
    assert [w.shape for w in task.model.initial_weights.trainable] == [(2, 3), (3,)]
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert list(_load(model, data, test_split="heldout").test.client_ids) == ["h"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "dtype"), [((0.5, -2.0, 1e3), np.float32), ((0, -2, 7), np.int32)]
)
def test_real_or_negative_labels_are_not_classes(tmp_path, labels, dtype):
    data = points(tmp_path / "s.sqlite", labels=labels)
    task = _load(model_file(tmp_path, _REGRESSION), data)
    y = task.train.read("a")["y"]
    assert (y.dtype, tuple(y)) == (dtype, labels)
    names = [metric.name for metric in task.model.metrics]
    # Integer labels have no default metrics.
    errors = ["mean_absolute_error", "root_mean_squared_error"]
    assert names == (errors if dtype == np.float32 else [])


def test_labels_of_kind_number_are_real_numbers(tmp_path):
    table = tmp_path / "prices.csv"
    rows = [f"u{k},{'ab'[k % 2]},{k},{k / 2 - 3}" for k in range(40)]
    table.write_text("\n".join(["who,where,size,price", *rows]))
    job(
        "csv",
        table,
        tmp_path / "s.sqlite",
        client_column="who",
        domain_column="where",
        feature_columns=("size",),
        label_column="price",
        label_kind="number",
    ).run(ReadLog(False))
    task = _load(model_file(tmp_path, _REGRESSION), tmp_path / "s.sqlite")
    for client in task.train.client_ids:
        examples = task.train.read(client)
        assert examples["y"].dtype == np.float32
        np.testing.assert_array_equal(examples["y"], examples["x"][:, 0] / 2 - 3)


@pytest.mark.nightly
def test_fingerprint_covers_model_file_and_vocabulary(tmp_path):
    data = text_store(tmp_path / "s.sqlite")

    def fingerprint(text, **options):
        return _load(model_file(tmp_path, text), data, sequence_length=3, **options).fingerprint

    first = fingerprint(_NEXT_WORD)
    assert set(first) == {"model", "vocabulary", "data"}
    assert fingerprint(_NEXT_WORD) == first
    changed = fingerprint(_NEXT_WORD + "    # Changed\n")
    assert changed["model"] != first["model"]
    assert changed["vocabulary"] == first["vocabulary"]
    assert fingerprint(_NEXT_WORD, vocabulary=2)["vocabulary"] != first["vocabulary"]


def test_model_flag_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [
        resolve("custom", {}, {"model": name}).flags()["model"]
        for name in ("my_model.py", "./my_model.py", str(tmp_path / "my_model.py"))
    ]
    assert set(flags) == {str((tmp_path / "my_model.py").resolve())}


def test_missing_model_file_raises(tmp_path):
    message = _load_error(None, points(tmp_path / "s.sqlite"))
    assert message.startswith("model: expected a Python file ")


def test_failing_model_file_shows_its_lines(tmp_path):
    model = model_file(tmp_path, "def build_model(data):\n    return data.num_clases\n")
    message = _load_error(model, points(tmp_path / "s.sqlite"))
    first, *lines = message.splitlines()
    assert first == f"{model}: build_model fails:"
    assert "    return data.num_clases" in lines
    assert lines[-1].startswith("AttributeError: 'ModelData' object has no attribute 'num_clases'")
    assert "tff_agnostic" not in message


def test_tff_store_without_data_kind_raises(tmp_path):
    rows = [("train", "a", {"x": [1.0, 2.0], "label": 1, "domain": "web"})]
    data = tff_store(tmp_path / "s.sqlite", rows)
    message = _load_error(model_file(tmp_path, LOGISTIC_REGRESSION), data)
    assert message.startswith(f"{data}: expected a store that names its domains")


def _with_infinity(path):
    rows = [("train", point("a", "web", [1, np.inf], 0)), ("test", point("a", "web", [1, 1], 1))]
    return write_store(path, rows, "features")


@pytest.mark.parametrize(
    ("model", "store", "message"),
    [
        (
            _REGRESSION,
            lambda path: points(path, labels=(0, -2, 2**31)),
            "label: expected whole numbers of 32 bits, found a larger one in row 2",
        ),
        (
            LOGISTIC_REGRESSION,
            lambda path: points(path, class_names=["cat", "dog"]),
            "expected labels from 0 to 1, found 2 in row 1",
        ),
        (
            LOGISTIC_REGRESSION,
            _with_infinity,
            "x: expected finite numbers, found NaN or infinity in row 0",
        ),
    ],
)
def test_rejects_clients_with_invalid_numbers(tmp_path, model, store, message):
    data = store(tmp_path / "s.sqlite")
    actual = _load_error(model_file(tmp_path, model), data, "a")
    assert actual.startswith(f"{data}: client a: {message}")


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        (people, {"sequence_length": 5}, "sequence_length: expected no value, as "),
        (points, {"categories": "ids"}, "categories: expected no value, as "),
        (points, {"vocabulary": "w.txt"}, "vocabulary: expected no value, as "),
        (people, {"vocabulary": 5}, "vocabulary: expected no value, as "),
        (reviews, {"categories": "ids"}, "categories: expected no value, as "),
        (
            reviews,
            {"long_sentences": "chunk"},
            "long_sentences: expected no value, as labels are of whole texts, found 'chunk'",
        ),
        (text_store, {"predict": "label"}, "{data}: expected examples with a label, found "),
    ],
)
def test_options_that_do_not_apply_raise(tmp_path, store, options, message):
    data = store(tmp_path / "s.sqlite")
    result = _load_error(model_file(tmp_path, LOGISTIC_REGRESSION), data, **options)
    assert result.startswith(message.format(data=data))
    assert "\n" not in result


# --- Models get categorical features as entries of a vector or as ids


_CATEGORY_IDS = """
    import tensorflow as tf

    def build_model(data):
        assert data.x_shape == {"age": (), "x": (2,), "job": (), "town": ()}, data.x_shape
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


def test_categories_become_one_hot_entries(tmp_path):
    task = _load(model_file(tmp_path, LOGISTIC_REGRESSION), people(tmp_path / "s.sqlite"))
    # The columns are x, Rome, baker and cook; all zeros for missing or unknown values.
    x = task.train.read("a")["x"]
    np.testing.assert_array_equal(x, [[1, 5, 1, 0, 1], [0, 5, 1, 0, 0], [1, 5, 0, 1, 0]])
    assert x.dtype == np.float32
    np.testing.assert_array_equal(task.test.read("a")["x"], [[0, 5, 1, 0, 0]])


def test_categories_become_a_separate_input(tmp_path):
    data = people(tmp_path / "s.sqlite", place=np.array([1, 2], np.float32))
    model = model_file(tmp_path, "def build_model(data):\n    raise TypeError(data.x_shape)")
    assert "TypeError: {'place': (2,), 'x': (2,), 'categories': (3,)}" in _load_error(model, data)


def test_categories_option_gives_ids(tmp_path):
    data = people(tmp_path / "s.sqlite", age=30)
    task = _load(model_file(tmp_path, _CATEGORY_IDS), data, categories="ids")
    x = task.train.read("a")["x"]
    assert {name: (x[name].dtype, x[name].tolist()) for name in ("age", "job", "town")} == {
        "age": (np.int32, [30, 30, 30]),
        "job": (np.int32, [2, 0, 1]),
        "town": (np.int32, [1, 1, 0]),
    }
    np.testing.assert_array_equal(x["x"], [[1, 5], [0, 5], [1, 5]])
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert task.test.read("a")["x"]["job"].tolist() == [0]


def test_fingerprint_covers_categories(tmp_path):
    model = model_file(tmp_path, LOGISTIC_REGRESSION)
    first = people(tmp_path / "s.sqlite")
    other = people(tmp_path / "o.sqlite", jobs=("baker", "clerk"))
    first_print, other_task = _load(model, first).fingerprint, _load(model, other)
    assert first_print["categories"] != other_task.fingerprint["categories"]
    with_firsts = _load(model, other, vocabulary=str(first))
    assert with_firsts.fingerprint["categories"] == first_print["categories"]
    np.testing.assert_array_equal(other_task.test.read("a")["x"][:, 3:], [[0, 1]])
    np.testing.assert_array_equal(with_firsts.test.read("a")["x"][:, 3:], [[0, 0]])
    numbers = points(tmp_path / "p.sqlite")
    for vocabulary in (numbers, tmp_path / "none.sqlite"):
        message = _load_error(model, other, vocabulary=str(vocabulary))
        assert message.startswith("vocabulary: ") and message.endswith(str(vocabulary))


# --- Models of texts predict next words or labels


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


@pytest.mark.parametrize(
    ("store", "options"), [(text_store, {}), (reviews, {"predict": "next_word"})]
)
def test_unlabelled_texts_predict_next_words(tmp_path, store, options):
    data, model = store(tmp_path / "s.sqlite"), model_file(tmp_path, _NEXT_WORD)
    task = _load(model, data, sequence_length=4, vocabulary=2, **options)
    assert task.model.initial_weights.trainable[0].shape == (2 + 4, 2)
    # Ids: the = 1, cat = 2, other words = 3, end = 5.
    assert [1, 2, 5, 0] in task.train.read(task.train.client_ids[-1])["y"].tolist()
    assert "perplexity" in [metric.name for metric in task.model.metrics]


def test_next_word_model_gets_word_ids(tmp_path):
    data = text_store(tmp_path / "s.sqlite")
    task = _load(model_file(tmp_path, _NEXT_WORD), data, sequence_length=4, vocabulary=2)
    assert task.domain_names == ("answer", "question")
    # Ids: the = 1, cat = 2, other words = 3, begin = 4, end = 5.
    np.testing.assert_array_equal(
        task.train.read("b")["x"], [[4, 1, 2, 5], [4, 3, 5, 0], [4, 1, 1, 3]]
    )
    assert task.model.initial_weights.trainable[0].shape == (2 + 4, 2)
    assert "perplexity" in [metric.name for metric in task.model.metrics]


@pytest.mark.nightly
def test_text_classifier_gets_words_without_markers(tmp_path):
    data = reviews(tmp_path / "s.sqlite", class_names=["bad", "good", "odd"])
    task = _load(model_file(tmp_path, _TEXT_CLASSIFIER), data, sequence_length=4)
    examples = task.train.read("a")
    # Ids: the = 1, cat = 2, sat = 3, other words = 4, padding = 0; no begin or end.
    np.testing.assert_array_equal(examples["x"], [[1, 2, 0, 0], [3, 0, 0, 0], [4, 1, 1, 2]])
    assert examples["y"].tolist() == [0, 2, 1]
    assert {column.dtype for column in examples.values()} == {np.dtype(np.int32)}
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert list(task.fingerprint) == ["model", "vocabulary", "classes", "data"]
    assert [remark.kind for remark in task.remarks()] == ["words_cut"]


def test_text_regression_gets_real_labels(tmp_path):
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
    task = _load(model_file(tmp_path, model), data, sequence_length=2)
    assert task.train.read("a")["y"].dtype == np.float32
    names = [metric.name for metric in task.model.metrics]
    assert names == ["mean_absolute_error", "root_mean_squared_error"]
