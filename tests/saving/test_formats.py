"""Saved models in plain TensorFlow predict like the models of this package."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.saving.harness import ask_plain_tensorflow
from tests.support import golden
from tests.support.keras_zoo import KINDS, classification
from tests.support.marks import selected, usually
from tff_agnostic.base.text_ids import SentenceEncoder, TextEncoder
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.inputs import ModelInputs, Whole
from tff_agnostic.models import LSTM, logistic_regression, model_from_keras
from tff_agnostic.models.classifiers import emnist_cnn, emnist_linear
from tff_agnostic.models.metrics import ColumnLoss
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.models.next_word import (
    NextWordNetwork,
    TextNetwork,
    next_word_model,
    text_classifier,
    unigram_model,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.runs.results import saved_line
from tff_agnostic.saving.keras import load_keras
from tff_agnostic.saving.save import FORMATS, SavedFile, save_for_keras
from tff_agnostic.saving.trained_model import (
    MADE_UP,
    TEST,
    FileCheck,
    TrainedModel,
    check_file,
    inputs_by_name,
    made_up,
)
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import Task, TaskContext

_WORDS = ("the", "cat", "sat", "on", "mat", "é")
_T = 5
_TEXTS = ["", "the cat", "the dog sat on the mat on the cat", "é"]


def _zoo(name: str) -> tuple[Model, Any]:
    return KINDS[name].model(), KINDS[name].x(np.random.default_rng(3), 4)


def _sentences(model: Model) -> tuple[Model, Any]:
    x = np.array([[8, 1, 2, 0, 0], [8, 6, 7, 3, 1], [0] * 5], np.int32)
    return model, x


def _next_word(network: NextWordNetwork) -> tuple[Model, Any]:
    return _sentences(next_word_model(network, len(_WORDS), _T))


def _texts(pooling: str) -> tuple[Model, Any]:
    # The last text has no words.
    return _sentences(text_classifier(TextNetwork(pooling, 4), 3, len(_WORDS), _T))


def _numbers(model: Model) -> tuple[Model, Any]:
    shape = model.example_spec["x"].shape[1:]
    return model, np.random.default_rng(3).normal(size=[4, *shape]).astype(np.float32)


def _toy_regression() -> tuple[Model, Any]:
    spec = TASKS["toy_regression"]
    return _numbers(spec.load(spec.options(), TaskContext(seed=0)).model)


def _unigram() -> tuple[Model, Any]:
    return unigram_model(len(_WORDS) + 1), np.array([0, 2, 6], np.int32)


_CASES: dict[str, Callable[[], tuple[Model, Any]]] = {
    **{name: functools.partial(_zoo, name) for name in KINDS},
    "logistic_regression": lambda: _numbers(logistic_regression(5, 3)),
    "emnist_cnn": lambda: _numbers(emnist_cnn(10)),
    "emnist_linear": lambda: _numbers(emnist_linear(10)),
    "toy_regression": _toy_regression,
    "unigram": _unigram,
    "next_word_lstm": lambda: _next_word(NextWordNetwork("lstm", 4, 6)),
    "two_layer_lstm": lambda: _next_word(NextWordNetwork("lstm", 4, 6, layers=2)),
    "next_word_cifg": lambda: _next_word(NextWordNetwork("cifg", 4, 6)),
    "keyboard_cifg": lambda: _next_word(NextWordNetwork("cifg", 4, 6, layers=2, tied=True)),
    "text_mean": lambda: _texts("mean"),
    "text_lstm": lambda: _texts("lstm"),
}
_USUAL = ("own_recurrent_layers", "two_inputs", "keyboard_cifg", "text_mean", "emnist_cnn")
# Models with their own layers: Keras cannot load them without the layers' code.
_NOT_PLAIN_KERAS = ("tied_embedding", "tied_variable", "weights_in_lists", "unigram")
# Names of the cases that cover each task's models; a `custom` task can have any model of the zoo.
_MODELS = {
    "digits": ["logistic_regression"],
    "toy_regression": ["toy_regression"],
    "adult": ["logistic_regression"],
    "custom": list(KINDS),
    "next_word": ["next_word_lstm", "next_word_cifg"],
    "text_classifier": ["text_mean", "text_lstm"],
    "emnist": ["emnist_cnn", "emnist_linear"],
    "stackoverflow": ["next_word_lstm"],
    "spanish_keyboard": ["keyboard_cifg"],
    "fashion_mnist": ["logistic_regression"],
    "two_domain_lm": ["two_layer_lstm"],
    "unigram": ["unigram"],
}


def _trained(model: Model) -> TrainedModel:
    """Returns the model with weights that differ from the initial ones."""
    rng = np.random.default_rng(1)
    weights = ModelWeights(
        [w + rng.normal(scale=0.3, size=w.shape).astype(w.dtype) for w in model.initial_weights[0]],
        # Some of the weights are variances, which must stay positive.
        [w + rng.uniform(0, 0.3, size=w.shape).astype(w.dtype) for w in model.initial_weights[1]],
    )
    return TrainedModel(model, weights, ("no", "perhaps", "yes"), _WORDS)


@pytest.fixture(scope="module")
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[TrainedModel, Any, Path]]:
    """Saves the cases in all formats; returns the models, their inputs, and the folders.

    Plain TensorFlow has written its predictions to the folders.
    """
    folder = tmp_path_factory.mktemp("saved")
    cases = {}
    for name in selected(request, "case"):
        model, x = _CASES[name]()
        trained = _trained(model)
        path = folder / name
        path.mkdir()
        for form in _forms(name):
            FORMATS[form].write(trained, path / f"m{FORMATS[form].file_name}")
        np.savez(path / "x.npz", **inputs_by_name(x))
        (path / "texts.json").write_text(json.dumps(_TEXTS))
        cases[name] = trained, x, path
    ask_plain_tensorflow(folder)
    return cases


def _forms(name: str) -> list[str]:
    return [form for form in FORMATS if form != "keras" or name not in _NOT_PLAIN_KERAS]


def _outputs(path: Path, form: str) -> dict[str, np.ndarray]:
    with np.load(path / f"m{FORMATS[form].file_name}.npz") as file:
        return dict(file)


@pytest.mark.nightly
@pytest.mark.parametrize("case", usually(_USUAL, _CASES))
def test_saved_models_predict_in_plain_tensorflow(saved: dict[str, Any], case: str) -> None:
    trained, x, path = saved[case]
    expected = np.asarray(trained.predict(x))
    assert np.ptp(expected) > 0.1
    # The tolerance is relative, because some models have scores in the hundreds.
    tolerance = 1e-5 * max(1, np.abs(expected).max())
    for form in _forms(case):
        outputs = _outputs(path, form)["predictions"]
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=tolerance, err_msg=form)


@pytest.mark.nightly
def test_tflite_lstm_resets_its_state(tmp_path: Path) -> None:
    """TensorFlow Lite's own LSTM would keep the previous example's state."""

    def build() -> tf.keras.Model:
        x = tf.keras.Input([6, 3])
        states = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(4))(x)
        return tf.keras.Model(x, tf.keras.layers.Dense(3)(states))

    model = classification(build, [6, 3]).model()
    x = np.random.default_rng(0).normal(size=[4, 6, 3]).astype(np.float32)
    trained, form = _trained(model), FORMATS["tflite"]
    form.write(trained, tmp_path / "m.tflite")
    outputs = form.load(tmp_path / "m.tflite", trained)(x)
    np.testing.assert_allclose(outputs, np.asarray(trained.predict(x)), rtol=0, atol=1e-5)


def test_cases_cover_the_models_of_all_tasks() -> None:
    assert set(_MODELS) == set(DEFAULTS)
    assert {name for names in _MODELS.values() for name in names} == set(_CASES)


@pytest.mark.nightly
@pytest.mark.parametrize("case", usually(["two_inputs"], ["dense_with_dropout", "two_inputs"]))
def test_classifier_returns_probabilities_and_names(saved: dict[str, Any], case: str) -> None:
    trained, x, path = saved[case]
    outputs, scores = _outputs(path, "saved_model"), np.asarray(trained.predict(x), np.float64)
    odds = np.exp(scores)
    expected = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
    best = expected.argmax(axis=1)
    assert outputs["class"].tolist() == best.tolist()
    names = [name.decode() for name in outputs["class_name"]]
    assert names == [("no", "perhaps", "yes")[k] for k in best]


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["text_mean"])
def test_text_signature_returns_classes(saved: dict[str, Any], case: str) -> None:
    trained, _, path = saved[case]
    outputs = _outputs(path, "saved_model")
    # The signature encodes the first words of a long text, as training does.
    x = TextEncoder(_WORDS, _T).encode(np.array([text.encode() for text in _TEXTS], object))
    assert x[0].tolist() == [0] * _T and x[2].all()
    odds = np.exp(np.asarray(trained.predict(x), np.float64))
    expected = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs["default_probabilities"], expected, atol=1e-6)
    names = [name.decode() for name in outputs["default_class_name"]]
    assert names == [("no", "perhaps", "yes")[k] for k in expected.argmax(axis=1)]


@pytest.mark.nightly
@pytest.mark.parametrize("case", usually(["keyboard_cifg"], ["next_word_lstm", "keyboard_cifg"]))
def test_text_signature_returns_next_words(saved: dict[str, Any], case: str) -> None:
    trained, _, path = saved[case]
    outputs = _outputs(path, "saved_model")
    # The signature uses the last words of a long text.
    begins = [text.encode() for text in (*_TEXTS[:2], "on the mat on the cat"[-14:], _TEXTS[3])]
    assert begins[2] == b"mat on the cat"
    x = SentenceEncoder(_WORDS, _T).encode(np.array(begins, object)).x
    # Remove the id that marks the end after the words.
    x = np.where(x == len(_WORDS) + 3, 0, x)
    scores = np.asarray(trained.predict(x), np.float64)
    for row, begin in enumerate(begins):
        odds = np.exp(scores[row, len(begin.split())])
        shares = (odds / odds.sum())[1 : len(_WORDS) + 1]
        best = np.argsort(-shares)[:3]
        words = [_WORDS[k].encode() for k in best]
        assert outputs["default_words"][row].tolist() == words
        assert outputs["next_words"][row].tolist() == words[:2]
        np.testing.assert_allclose(outputs["default_probabilities"][row], shares[best], atol=1e-6)


def test_regression_returns_predictions_only(tmp_path: Path) -> None:
    model = model_from_keras(
        lambda: tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)]),
        loss=ColumnLoss(tf.keras.losses.MeanSquaredError(reduction="none")),
        example_spec={"x": tf.TensorSpec([None, 2]), "y": tf.TensorSpec([None])},
    )
    about = FORMATS["saved_model"].write(
        TrainedModel(model, model.initial_weights), tmp_path / "saved"
    )
    only = {"inputs": {"x": "float32[None, 2]"}, "outputs": {"predictions": "float32[None, 1]"}}
    assert about == {"signatures": {"predict": only, "serving_default": only}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tied_embedding", "format keras: Keras cannot save and load this model ("),
        ("within", "format keras: expected LSTM layers where Keras' own can take their place, f"),
    ],
)
def test_keras_format_rejects_unsupported_models(tmp_path: Path, name: str, message: str) -> None:
    model = _lstm_in_a_wrapper() if name == "within" else KINDS[name].model()
    assert golden.refusal(
        lambda: FORMATS["keras"].write(_trained(model), tmp_path / "m.keras")
    ).startswith(message)


def _lstm_in_a_wrapper() -> Model:
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([3, 2])
        both = tf.keras.layers.TimeDistributed(tf.keras.layers.Dense(2))(inputs)
        return tf.keras.Model(inputs, _Wrapper(LSTM(3))(both))

    return classification(build, [3, 2]).model()


class _Wrapper(tf.keras.layers.Wrapper):
    """A user's layer around a layer of this package."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.layer(inputs)


# --- Saved files are compared with the run's model


_NUM_EXAMPLES = 6


def _check(bias: float, change: Callable[[np.ndarray], Any], source: str = TEST) -> FileCheck:
    """Checks a saved file whose scores are changed; `bias` is added to the first class's bias."""
    examples = {
        "x": np.ones([_NUM_EXAMPLES, 2], np.float32),
        "y": np.array([0, 1, 2] * 2, np.int32),
        "domain_id": np.array([0, 1] * 3, np.int32),
    }
    clients = InMemoryClients({"only": examples})
    model = logistic_regression(2, 3)
    kernel, biases = model.initial_weights.trainable
    weights = ModelWeights([kernel, biases + np.array([bias, 0, 0], np.float32)], [])
    trained = TrainedModel(model, weights)

    def predict(x: Any) -> tf.Tensor:
        scores = np.array(trained.predict(x))
        change(scores)
        return tf.constant(scores)

    return check_file(trained, Task(("a", "b"), clients, clients, model), predict, source)


def _nothing(scores: np.ndarray) -> None:
    del scores


def _put(value: float, where: Any = (0, 0)) -> Callable[[np.ndarray], None]:
    def change(scores: np.ndarray) -> None:
        scores[where] = value

    return change


def _line(check: FileCheck) -> str:
    return saved_line(SavedFile("model", "tflite", "none", "m.tflite", 7, {}, check))


@pytest.mark.parametrize("bias", [0.0, -np.inf, np.inf, np.nan])
def test_check_accepts_equal_predictions(bias: float) -> None:
    check = _check(bias, _nothing)
    assert check.is_same and check.largest_difference == 0.0
    assert "predicts as the run's model does, by 0 at most on 6 test examples" in _line(check)


@pytest.mark.parametrize(("bias", "score"), [(0.0, np.nan), (np.inf, 0.0), (np.inf, -np.inf)])
def test_check_rejects_non_finite_predictions(bias: float, score: float) -> None:
    check = _check(bias, _put(score))
    assert not check.is_same and check.largest_difference is None
    assert "its predictions differ, some of them not finite, on" in _line(check)
    json.dumps(dataclasses.asdict(check), allow_nan=False)


@pytest.mark.parametrize(
    ("source", "examples"), [(TEST, "6 test examples"), (MADE_UP, "256 made-up examples")]
)
def test_check_reports_the_largest_difference(source: str, examples: str) -> None:
    def add(scores: np.ndarray) -> None:
        scores[0, 0] += 0.25

    check = _check(0.0, add, source)
    assert not check.is_same and bool(check.domains) == (source == TEST)
    assert check.largest_difference == pytest.approx(0.25, abs=1e-6)
    assert f"its predictions differ, by 0.25 at most on {examples}" in _line(check)
    assert _check(0.0, _nothing, source).is_same


def test_made_up_inputs_contain_every_valid_id() -> None:
    inputs = {
        "city": Whole("category ids", "city", ("Lima", "Oslo", "Rome")),
        "place": Whole("domain", values=("a", "b", "c")),
        "text": Whole("text", "text"),
        "mode": Whole("unknown"),
    }
    specs = {name: tf.TensorSpec([None, 5], tf.int32) for name in inputs}
    model = dataclasses.replace(logistic_regression(2, 3), example_spec={"x": specs})
    words = tuple("uvwxyz")
    trained = TrainedModel(
        model, model.initial_weights, words=words, inputs=ModelInputs(inputs, None)
    )
    drawn = made_up(trained)["x"]
    ids = {"city": 4, "place": 3, "text": 7, "mode": 2}
    assert {name: set(np.unique(x)) for name, x in drawn.items()} == {
        name: set(range(count)) for name, count in ids.items()
    }


def test_non_finite_metrics_are_null() -> None:
    check = _check(0.0, _put(np.nan, np.s_[:]))
    for measures in check.domains.values():
        assert measures["loss"]["file"] is None and np.isfinite(measures["loss"]["run"])
    json.dumps(dataclasses.asdict(check), allow_nan=False)


# --- A run writes Keras files


@pytest.mark.parametrize("name", ["dense", "nested", "frozen_normalization", "attention"])
def test_keras_file_predicts_like_the_run(tmp_path: Path, name: str) -> None:
    model, x = _zoo(name)
    (file,) = save_for_keras(tmp_path, _task(model), {"model": model.initial_weights}).saved
    expected = model.predict(model.initial_weights, x, False, tf.zeros([2], tf.int32))
    np.testing.assert_allclose(
        load_keras(tmp_path / file.path, {})(x), expected, rtol=1e-5, atol=1e-6
    )


def _task(model: Model) -> Task:
    none = InMemoryClients({})
    return Task(("a", "b"), none, none, model)


def _changed(weights: ModelWeights, by: float) -> ModelWeights:
    return ModelWeights([w + np.float32(by) for w in weights.trainable], weights.non_trainable)


def _loaded(path: Path) -> list[np.ndarray]:
    return tf.keras.models.load_model(path, compile=False).get_weights()


@pytest.mark.nightly
def test_unsupported_models_are_skipped_with_reasons(tmp_path: Path) -> None:
    model = KINDS["tied_embedding"].model()
    files = save_for_keras(tmp_path, _task(model), {"model": model.initial_weights})
    assert files.saved == [] and list(tmp_path.iterdir()) == []
    (reason,) = files.left_out.values()
    assert list(files.left_out) == ["model"]
    assert reason.startswith("Keras cannot save and load this model (")
    assert "\n" not in reason and not reason.startswith("--")


def test_ensemble_predictors_are_separate_files(tmp_path: Path) -> None:
    model = logistic_regression(2, 3)
    predictors = [_changed(model.initial_weights, by) for by in (1.0, 2.0)]
    mixed = ensemble(model, predictors, names=("young", "runs/old"))
    files = save_for_keras(tmp_path, _task(mixed), {"model": mixed.initial_weights})
    assert list(files.left_out) == ["model"]
    paths = [file.path for file in files.saved]
    assert paths == ["predictor_young.keras", "predictor_runs%2Fold.keras"]
    for path, weights in zip(paths, predictors):
        for array, expected in zip(_loaded(tmp_path / path), weights.trainable):
            np.testing.assert_array_equal(array, expected)


def test_equal_models_give_equal_keras_files(tmp_path: Path) -> None:
    """Keras counts a process's unnamed layers; these numbers must not change the file."""
    model = text_classifier(
        TextNetwork("mean", 4), num_classes=3, vocabulary_size=6, sequence_length=5
    )
    contents = []
    for name in ("first", "second"):
        files = save_for_keras(tmp_path, _task(model), {name: model.initial_weights})
        (file,) = files.saved
        contents.append((tmp_path / file.path).read_bytes())
        tf.keras.Model(x := tf.keras.Input([3]), tf.keras.layers.Attention()([x, x]))
    assert contents[0] == contents[1]
    save_for_keras(tmp_path, _task(model), {"third": _changed(model.initial_weights, 0.1)})
    assert (tmp_path / "third.keras").read_bytes() != contents[0]
