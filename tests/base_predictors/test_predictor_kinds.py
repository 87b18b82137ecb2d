"""Base predictors from Keras files, and from runs with another architecture than the task's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.comparing import assert_identical
from tests.support.stores import text_store, write_store
from tff_agnostic.base.files import read_json
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.boosting.predictor_store import OneArchitecture
from tff_agnostic.data.store_format import Record
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.program.base_predictors.files import MixingTask, with_base_predictors
from tff_agnostic.program.options.tasks import FORMAT, task_options
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

layers = tf.keras.layers
_SEED = tf.zeros([2], tf.int32)
_NEXT_WORD = {"network": "lstm:embedding=2,units=3", "sequence_length": 3}


@pytest.fixture(scope="module")
def digits() -> MixingTask:
    """The task digits, which has 64 pixels, ten classes and a model that returns scores."""
    context = TaskContext(0)
    return MixingTask(load_task("digits", {}, context), "digits", {}, context)


def _save(path: Path, *stack: Any, features: Any = 64) -> tf.keras.Model:
    path.parent.mkdir(exist_ok=True)
    model = tf.keras.Sequential([tf.keras.Input(np.atleast_1d(features)), *stack])
    model.save(path)
    return model


def _mixed(mixing: MixingTask, *paths: Path) -> Task:
    return with_base_predictors(mixing, EnsembleOptions(paths))


def _error(mixing: MixingTask, *paths: Path) -> str:
    return golden.refusal(_mixed, mixing, *paths)


def test_keras_files_with_any_architecture_are_mixed(digits, tmp_path):
    scores = [
        _save(tmp_path / name / "model.keras", layers.Dense(7, "relu"), layers.Dense(10))
        for name in ("a", "b")
    ]
    batch_norm = layers.BatchNormalization()
    softmax = _save(tmp_path / "c.h5", batch_norm, layers.Dense(10, "softmax"))
    paths = [tmp_path / "a" / "model.keras", tmp_path / "b" / "model.keras", tmp_path / "c.h5"]
    model = _mixed(digits, *paths).model
    assert model.names == ("a/model", "b/model", f"{tmp_path.name}/c")
    # Models that differ only in layer names have the same architecture.
    assert model.members.held.kinds == (0, 0, 1)
    x = np.random.default_rng(0).random([5, 64], np.float32)
    outputs = [tf.nn.softmax(m(x)) for m in scores] + [softmax(x, training=False)]
    predictions = model.predict(model.initial_weights, tf.constant(x), False, _SEED)
    np.testing.assert_allclose(np.exp(predictions), np.mean(outputs, axis=0), rtol=1e-5)


def test_adapted_normalization_keeps_its_statistics(digits, tmp_path):
    rng = np.random.default_rng(0)
    models, paths = [], []
    for k, shift in enumerate((0.0, 5.0)):
        normalization = layers.Normalization()
        normalization.adapt(rng.normal(shift, 1 + shift, [50, 64]))
        paths.append(tmp_path / f"m{k}.keras")
        models.append(_save(paths[-1], normalization, layers.Dense(10)))
    model = _mixed(digits, *paths).model
    x = rng.random([5, 64], np.float32)
    outputs = np.mean([tf.nn.softmax(m(x)) for m in models], axis=0)
    predictions = model.predict(model.initial_weights, tf.constant(x), False, _SEED)
    np.testing.assert_allclose(np.exp(predictions), outputs, rtol=1e-5)


@pytest.mark.nightly
def test_fingerprint_depends_on_architectures(digits, tmp_path):
    weights = digits.task.model.initial_weights
    CheckpointFolder(tmp_path / "run" / "checkpoints", 1).save(1, weights, {"model": weights})
    wide = _save(tmp_path / "wide.keras", layers.Dense(8, "relu"), layers.Dense(10))
    curved = _save(tmp_path / "curved.keras", layers.Dense(8, "tanh"), layers.Dense(10))
    curved.set_weights(wide.get_weights())
    curved.save(tmp_path / "curved.keras")
    one, other = (
        _mixed(digits, tmp_path / "run", tmp_path / name) for name in ("wide.keras", "curved.keras")
    )
    assert one.model.num_predictors == 2
    assert_identical(one.model.initial_weights, other.model.initial_weights)
    assert one.fingerprint != other.fingerprint
    assert _mixed(digits, tmp_path / "run", tmp_path / "wide.keras").fingerprint == one.fingerprint


def test_rejects_unsuitable_keras_files(digits, tmp_path):
    path = tmp_path / "m.keras"
    _save(path, layers.Dense(10), features=5)
    expected = f"--base_predictors: {path}: expected a model for the task's features, x [n, 64] "
    assert _error(digits, path).startswith(f"{expected}float32, found a model that fails on them: ")
    _save(path, layers.Dense(12))
    assert _error(digits, path) == (
        f"--base_predictors: {path}: expected outputs [n, 10] float32 like the task's model, "
        "found [n, 12] float32"
    )
    model = _save(path, layers.Dense(10))
    model.set_weights([np.full([64, 10], np.inf), np.zeros(10)])
    model.save(path)
    assert "m: expected finite numbers, found NaN or infinity" in _error(digits, path)
    _save(path, layers.Dense(10))
    assert "found 'twice/m' twice" in _error(
        digits, *[_copy(path, tmp_path / k / "twice" / "m.keras") for k in "ab"]
    )


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True)
    target.write_bytes(source.read_bytes())
    return target


def _mixing(name: str, data: Path, **options: Any) -> MixingTask:
    spec = resolve(name, {}, options, data=data)
    task = load_task(name, task_options(name, spec.task_options), TaskContext(0, None, data))
    return MixingTask(task, name, spec.task_options, TaskContext(0, None, data))


def _run(folder: Path, mixing: MixingTask, seed: int = 0) -> Path:
    """Writes a run's folder with random weights of a task's model, and returns the folder."""
    rng = np.random.default_rng(seed)
    model = mixing.task.model
    weights = ModelWeights(
        [rng.normal(size=w.shape).astype(w.dtype) for w in model.initial_weights[0]], []
    )
    CheckpointFolder(folder / "checkpoints", 1).save(3, weights, {"model": weights})
    (folder / "fingerprint.json").write_text(json.dumps(dict(mixing.task.fingerprint)))
    flags = resolve(mixing.name, {}, mixing.options, data=mixing.context.data).flags()
    (folder / "config.json").write_text(json.dumps({"format": FORMAT, **flags}))
    return folder


def test_runs_with_other_sizes_are_mixed(tmp_path):
    data = text_store(tmp_path / "s.sqlite")
    small, large = (
        _mixing("next_word", data, **{**_NEXT_WORD, "network": f"lstm:embedding=2,units={u}"})
        for u in (3, 5)
    )
    runs = [_run(tmp_path / "a", small, 1), _run(tmp_path / "b", large, 2)]
    model = _mixed(small, *runs).model
    assert model.members.held.kinds == (0, 1)
    assert model.members.held.architectures[0].model == small.task.model
    # An option of the data split leaves the architecture equal.
    same = _mixing("next_word", data, **_NEXT_WORD, test_split="heldout")
    single = _mixed(small, _run(tmp_path / "c", same), tmp_path / "a").model
    assert isinstance(single.members.held, OneArchitecture)


def test_rejects_unsuitable_runs(tmp_path):
    data = text_store(tmp_path / "s.sqlite")
    chosen = _mixing("next_word", data, **_NEXT_WORD)
    longer = _run(
        tmp_path / "a", _mixing("next_word", data, **{**_NEXT_WORD, "sequence_length": 4})
    )
    assert _error(chosen, longer) == (
        f"--base_predictors: {longer}: expected a model for the task's examples, x [n, 3] int32, "
        "found a model for x [n, 4] int32"
    )
    fewer = _run(tmp_path / "b", _mixing("next_word", data, **_NEXT_WORD, vocabulary=2))
    assert f"{fewer}: expected the vocabulary of this task" in _error(chosen, fewer)
    mixture = _run(tmp_path / "c", chosen)
    config = read_json(mixture / "config.json")
    (mixture / "config.json").write_text(json.dumps({**config, "base_predictors": ["x"]}))
    assert f"{mixture}: expected a run that trained a model, found an ensemble" in _error(
        chosen, mixture
    )
    (mixture / "config.json").write_text(json.dumps({**config, "task": "another"}))
    assert f"{mixture}: unknown task 'another'" in _error(chosen, mixture)
    keras = tmp_path / "m.keras"
    _save(keras, layers.Dense(3))
    words = _mixing("unigram", data)
    assert f"{keras}: expected a run or a file of base_predictors" in _error(words, keras)


_OWN_MODEL = """
import tensorflow as tf

def build_model(data):
    x = tf.keras.Input(data.x_shape)
    hidden = tf.keras.layers.Dense(UNITS, "ACTIVATION")(x)
    loss = tf.keras.losses.MeanSquaredError(reduction="none")
    return tf.keras.Model(x, tf.keras.layers.Dense(1)(hidden)), loss
"""


def _own_model(path: Path, units: int, activation: str = "tanh") -> str:
    text = _OWN_MODEL.replace("UNITS", str(units)).replace("ACTIVATION", activation)
    path.write_text(text)
    return str(path)


def test_runs_with_user_models_are_mixed(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        (split, Record("c", "d", {"x": rng.random(4, np.float32), "label": rng.random()}))
        for split in ("train", "test")
    ]
    data = write_store(tmp_path / "s.sqlite", records, "features")
    chosen = _mixing("custom", data, model=_own_model(tmp_path / "own.py", 2))
    curved = _mixing("custom", data, model=_own_model(tmp_path / "other.py", 2, "relu"))
    runs = [_run(tmp_path / "a", chosen), _run(tmp_path / "b", curved, 1)]
    model = _mixed(chosen, *runs).model
    assert model.members.held.kinds == (0, 1)
    assert model.mixture_loss == "squared"
    x = rng.normal(size=[6, 4]).astype(np.float32)
    (flat,) = model.initial_weights.non_trainable
    expected = []
    for part, activation in zip(np.split(flat, 2), (np.tanh, lambda v: np.maximum(v, 0))):
        kernel, bias, last, last_bias = np.split(part, [8, 10, 12])
        hidden = activation(x @ kernel.reshape(4, 2) + bias)
        expected.append(hidden @ last.reshape(2, 1) + last_bias)
    actual = model.predict(model.initial_weights, tf.constant(x), False, _SEED)
    np.testing.assert_allclose(actual, np.mean(expected, axis=0), rtol=1e-5, atol=1e-6)
    _own_model(tmp_path / "other.py", 2, "sigmoid")
    assert f"{runs[1]}: expected the model of this task" in _error(chosen, *runs)


_TWO_CLASSES = """
import tensorflow as tf

def build_model(data):
    last = tf.keras.layers.Dense(1, ACTIVATION)
    model = tf.keras.Sequential([tf.keras.Input(data.x_shape), last])
    scores = ACTIVATION is None
    return model, tf.keras.losses.BinaryCrossentropy(from_logits=scores, reduction="none")
"""


def test_single_output_without_sigmoid_is_a_score(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        (split, Record("c", "d", {"x": rng.random(4, np.float32), "label": k}))
        for split in ("train", "test")
        for k in (0, 1)
    ]
    data = write_store(tmp_path / "s.sqlite", records, "features", class_names=("no", "yes"))
    paths = [tmp_path / f"{name}.keras" for name in ("score", "probability")]
    score = _save(paths[0], layers.Dense(1), features=4)
    probability = _save(paths[1], layers.Dense(2, "relu"), layers.Dense(1, "sigmoid"), features=4)
    x = rng.normal(size=[9, 4]).astype(np.float32)
    expected = (tf.sigmoid(score(x)) + probability(x)) / 2
    chosen = tmp_path / "own.py"
    chosen.write_text(_TWO_CLASSES.replace("ACTIVATION", "None"))
    model = _mixed(_mixing("custom", data, model=str(chosen)), *paths).model
    scores = model.predict(model.initial_weights, tf.constant(x), False, _SEED)
    np.testing.assert_allclose(tf.sigmoid(scores), expected, rtol=1e-5)
    # A task with probabilities rejects predictors with scores.
    score.set_weights([np.full([4, 1], 9.0), np.full([1], 5.0)])
    score.save(paths[0])
    chosen.write_text(_TWO_CLASSES.replace("ACTIVATION", '"sigmoid"'))
    mixing = _mixing("custom", data, model=str(chosen))
    assert _error(mixing, *paths).startswith(
        f"--base_predictors: {paths[0]}: expected probabilities like the task's model, found "
    )
    model = _mixed(mixing, paths[1]).model
    actual = model.predict(model.initial_weights, tf.constant(x), False, _SEED)
    np.testing.assert_allclose(actual, probability(x), rtol=1e-5)
