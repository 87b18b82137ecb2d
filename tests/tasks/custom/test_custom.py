"""A user's own model file on a client store."""

import numpy as np
import pytest

from tests.data.stores import text_store, tff_store, write_store
from tests.importing.harness import job
from tests.tasks.custom.stores import people, point, points, reviews
from tests.tasks.custom.user_models import CLASSIFIER, NEXT_WORD, load, load_error, model_file
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.runs.spec import resolve

_TWO_INPUTS = """
    import tensorflow as tf

    def build_model(data):
        assert data.x_shape == {"age": (), "place": (2,)}, data.x_shape
        assert data.x_dtype == {"age": "int32", "place": "float32"}, data.x_dtype
        age = tf.keras.Input([], name="age")
        place = tf.keras.Input([2], name="place")
        joined = tf.keras.layers.Concatenate()([tf.keras.layers.Reshape([1])(age), place])
        scores = tf.keras.layers.Dense(data.num_classes)(joined)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        return tf.keras.Model({"age": age, "place": place}, scores), loss
"""


_REGRESSION = """
    import tensorflow as tf

    def build_model(data):
        assert data.num_classes is None
        x = tf.keras.Input(data.x_shape)
        loss = tf.keras.losses.MeanSquaredError(reduction="none")
        return tf.keras.Model(x, tf.keras.layers.Dense(1)(x)), loss
"""


@pytest.mark.slow
def test_numbers_and_classes(tmp_path):
    task = load(model_file(tmp_path, CLASSIFIER), points(tmp_path / "s.sqlite"))
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


@pytest.mark.slow
def test_evaluation_uses_the_given_split(tmp_path):
    model, data = model_file(tmp_path, CLASSIFIER), points(tmp_path / "s.sqlite")
    assert list(load(model, data, test_split="heldout").test.client_ids) == ["h"]


def test_several_features(tmp_path):
    def person(split, age, label):
        place = np.array([age / 10, 1], np.float32)
        return split, Record("a", "app", {"age": age, "place": place, "label": label})

    rows = [person(split, *p) for split in ("train", "test") for p in ((30, 0), (50, 1))]
    data = write_store(tmp_path / "s.sqlite", rows, "features")
    task = load(model_file(tmp_path, _TWO_INPUTS), data)
    x = task.train.read("a")["x"]
    assert x["age"].tolist() == [30, 50]
    assert x["age"].dtype == np.int32
    np.testing.assert_array_equal(x["place"], np.array([[3, 1], [5, 1]], np.float32))
    assert task.model.initial_weights.trainable[0].shape == (3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "dtype"), [((0.5, -2.0, 1e3), np.float32), ((0, -2, 7), np.int32)]
)
def test_real_and_negative_labels_are_numbers(tmp_path, labels, dtype):
    data = points(tmp_path / "s.sqlite", labels=labels)
    task = load(model_file(tmp_path, _REGRESSION), data)
    y = task.train.read("a")["y"]
    assert (y.dtype, tuple(y)) == (dtype, labels)
    names = [metric.name for metric in task.model.metrics]
    # Whole numbers have no metrics unless the user's model names them.
    errors = ["mean_absolute_error", "root_mean_squared_error"]
    assert names == (errors if dtype == np.float32 else [])


def test_real_table_labels_are_numbers(tmp_path):
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
    task = load(model_file(tmp_path, _REGRESSION), tmp_path / "s.sqlite")
    for client in task.train.client_ids:
        examples = task.train.read(client)
        assert examples["y"].dtype == np.float32
        np.testing.assert_array_equal(examples["y"], examples["x"][:, 0] / 2 - 3)


@pytest.mark.nightly
def test_fingerprint_covers_file_and_words(tmp_path):
    data = text_store(tmp_path / "s.sqlite")

    def fingerprint(text, **options):
        return load(model_file(tmp_path, text), data, sequence_length=3, **options).fingerprint

    first = fingerprint(NEXT_WORD)
    assert set(first) == {"model", "vocabulary", "data"}
    assert fingerprint(NEXT_WORD) == first
    changed = fingerprint(NEXT_WORD + "    # Changed\n")
    assert changed["model"] != first["model"]
    assert changed["vocabulary"] == first["vocabulary"]
    assert fingerprint(NEXT_WORD, vocabulary=2)["vocabulary"] != first["vocabulary"]


@pytest.mark.slow
def test_the_fingerprint_holds_the_classes(tmp_path):
    data = points(tmp_path / "s.sqlite", class_names=["cat", "dog", "fox"])
    fingerprint = load(model_file(tmp_path, CLASSIFIER), data).fingerprint
    assert fingerprint["classes"] == "cat, dog, fox"


def test_fingerprint_ignores_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [
        resolve("custom", {}, {"model": name}).flags()["model"]
        for name in ("my_model.py", "./my_model.py", str(tmp_path / "my_model.py"))
    ]
    assert set(flags) == {str((tmp_path / "my_model.py").resolve())}


def test_no_model_file(tmp_path):
    data = points(tmp_path / "s.sqlite")
    assert load_error(None, data) == (
        "model: expected a Python file with a function build_model, found none"
    )
    missing = tmp_path / "missing.py"
    assert load_error(missing, data) == f"{missing}: expected a Python file, found none"


def test_failing_file_shows_its_lines(tmp_path):
    model = model_file(tmp_path, "def build_model(data):\n    return data.num_clases\n")
    message = load_error(model, points(tmp_path / "s.sqlite"))
    first, *lines = message.splitlines()
    assert first == f"{model}: build_model fails:"
    assert "    return data.num_clases" in lines
    assert lines[-1].startswith("AttributeError: 'ModelData' object has no attribute 'num_clases'")
    assert "tff_agnostic" not in message


def test_tff_store_needs_data_kind(tmp_path):
    rows = [("train", "a", {"x": [1.0, 2.0], "label": 1, "domain": "web"})]
    data = tff_store(tmp_path / "s.sqlite", rows)
    assert load_error(model_file(tmp_path, CLASSIFIER), data) == (
        f"{data}: expected a store that names its domains, found one that TFF wrote"
    )


def test_a_store_without_labels(tmp_path):
    rows = [("train", Record("a", "web", {"x": np.zeros([2], np.float32)}))]
    data = write_store(tmp_path / "s.sqlite", rows, "features")
    assert load_error(model_file(tmp_path, CLASSIFIER), data) == (
        f"{data}: expected examples with a label, found domain, x"
    )


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
            CLASSIFIER,
            lambda path: points(path, class_names=["cat", "dog"]),
            "expected labels from 0 to 1, found 2 in row 1",
        ),
        (CLASSIFIER, _with_infinity, "x: expected finite numbers, found NaN or infinity in row 0"),
    ],
)
def test_rejects_clients_with_invalid_numbers(tmp_path, model, store, message):
    data = store(tmp_path / "s.sqlite")
    actual = load_error(model_file(tmp_path, model), data, "a")
    assert actual == f"{data}: client a: {message}"


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        (people, {"sequence_length": 5}, "sequence_length: expected no value, as "),
        (people, {"predict": "label"}, "predict: expected no value, as "),
        (points, {"categories": "ids"}, "categories: expected no value, as "),
        (points, {"vocabulary": "w.txt"}, "vocabulary: expected no value, as "),
        (people, {"vocabulary": 5}, "vocabulary: expected no value, as "),
        (reviews, {"categories": "ids"}, "categories: expected no value, as "),
        (
            reviews,
            {"long_sentences": "chunk"},
            "long_sentences: expected no value, as labels are of whole texts, found 'chunk'",
        ),
        (reviews, {"predict": "topic"}, "predict: expected one of label, next_word, found 'topic'"),
        (people, {"categories": "hot"}, "categories: expected one of one_hot, ids, found"),
        (text_store, {"predict": "label"}, "{data}: expected examples with a label, found "),
    ],
)
def test_options_that_cannot_be(tmp_path, store, options, message):
    data = store(tmp_path / "s.sqlite")
    result = load_error(model_file(tmp_path, CLASSIFIER), data, **options)
    assert result.startswith(message.format(data=data))
    assert "\n" not in result


# --- Categories of a client store, as entries of a vector or as ids


_CATEGORY_IDS = """
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


def test_categories_are_vector_entries(tmp_path):
    task = load(model_file(tmp_path, CLASSIFIER), people(tmp_path / "s.sqlite"))
    # The columns are x, Rome, baker and cook; all zeros for missing or unknown values.
    x = task.train.read("a")["x"]
    np.testing.assert_array_equal(x, [[1, 5, 1, 0, 1], [0, 5, 1, 0, 0], [1, 5, 0, 1, 0]])
    assert x.dtype == np.float32
    np.testing.assert_array_equal(task.test.read("a")["x"], [[0, 5, 1, 0, 0]])


def test_categories_are_a_separate_input(tmp_path):
    data = people(tmp_path / "s.sqlite", place=np.array([1, 2], np.float32))
    model = model_file(tmp_path, "def build_model(data):\n    raise TypeError(data.x_shape)")
    assert "TypeError: {'place': (2,), 'x': (2,), 'categories': (3,)}" in load_error(model, data)


def test_categories_as_ids(tmp_path):
    data = people(tmp_path / "s.sqlite")
    task = load(model_file(tmp_path, _CATEGORY_IDS), data, categories="ids")
    examples = task.train.read("a")
    assert examples["x"]["job"].tolist() == [2, 0, 1]
    assert examples["x"]["town"].tolist() == [1, 1, 0]
    assert examples["x"]["job"].dtype == np.int32
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert task.test.read("a")["x"]["job"].tolist() == [0]


def test_fingerprint_covers_categories(tmp_path):
    model = model_file(tmp_path, CLASSIFIER)
    first = people(tmp_path / "s.sqlite")
    other = people(tmp_path / "o.sqlite", jobs=("baker", "clerk"))
    first_print, other_task = load(model, first).fingerprint, load(model, other)
    assert first_print["categories"] != other_task.fingerprint["categories"]
    with_firsts = load(model, other, vocabulary=str(first))
    assert with_firsts.fingerprint["categories"] == first_print["categories"]
    np.testing.assert_array_equal(other_task.test.read("a")["x"][:, 3:], [[0, 1]])
    np.testing.assert_array_equal(with_firsts.test.read("a")["x"][:, 3:], [[0, 0]])
    numbers = points(tmp_path / "p.sqlite")
    assert load_error(model, other, vocabulary=str(numbers)) == (
        "vocabulary: expected a store with the categories of town, found categories of no "
        f"column in {numbers}"
    )
    missing = tmp_path / "none.sqlite"
    assert load_error(model, other, vocabulary=str(missing)) == (
        f"vocabulary: expected a client store, found nothing at {missing}"
    )


# --- A user's own model file on texts, of words or of labels


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
    task = load(model_file(tmp_path, NEXT_WORD), data, sequence_length=4, vocabulary=2)
    assert task.domain_names == ("answer", "question")
    # the, cat are 1 and 2, other words 3, begin 4, end 5.
    np.testing.assert_array_equal(
        task.train.read("b")["x"], [[4, 1, 2, 5], [4, 3, 5, 0], [4, 1, 1, 3]]
    )
    assert task.model.initial_weights.trainable[0].shape == (2 + 4, 2)
    assert "perplexity" in [metric.name for metric in task.model.metrics]


@pytest.mark.nightly
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


def test_labelled_texts_have_next_words(tmp_path):
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


@pytest.mark.parametrize("option", ["vocabulary", "sequence_length"])
def test_invalid_size_names_its_flag(tmp_path, option):
    data = text_store(tmp_path / "s.sqlite")
    message = load_error(model_file(tmp_path, NEXT_WORD), data, **{option: 0})
    expected = "at least 1" + " or a path" * (option == "vocabulary")
    assert message == f"{option}: expected {expected}, found 0"
