"""What a run leaves for Keras: every model that Keras can hold, and why not the others."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.models.keras_zoo import KINDS
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.models import logistic_regression, model_from_keras
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.models.text_classifier import TextNetwork, text_classifier
from tff_agnostic.saving.save import save_for_keras
from tff_agnostic.tasks.task import Task


def _task(model: Model) -> Task:
    none = InMemoryClients({})
    return Task(("a", "b"), none, none, model)


def _changed(weights: ModelWeights, by: float) -> ModelWeights:
    return ModelWeights([w + np.float32(by) for w in weights.trainable], weights.non_trainable)


def _loaded(path: Path) -> list[np.ndarray]:
    return tf.keras.models.load_model(path, compile=False).get_weights()


def _refused() -> Model:
    kind = KINDS["tied_embedding"]
    spec = {"x": kind.x_spec, "y": kind.y_spec}
    return model_from_keras(kind.build, loss=kind.loss, example_spec=spec)


def test_what_keras_cannot_hold_is_left_out_and_told(tmp_path):
    model = _refused()
    files = save_for_keras(tmp_path, _task(model), {"model": model.initial_weights})
    assert files.saved == [] and list(tmp_path.iterdir()) == []
    (reason,) = files.left_out.values()
    assert list(files.left_out) == ["model"]
    assert reason.startswith("Keras cannot save and load this model (")
    assert "\n" not in reason and not reason.startswith("--")


def test_the_predictors_of_an_ensemble_are_files_of_their_own(tmp_path):
    model = logistic_regression(2, 3)
    predictors = [_changed(model.initial_weights, by) for by in (1.0, 2.0)]
    mixed = ensemble(model, predictors, names=("young", "runs/old"))
    files = save_for_keras(tmp_path, _task(mixed), {"model": mixed.initial_weights})
    assert list(files.left_out) == ["model"]
    paths = [file.path for file in files.saved]
    assert paths == ["predictor_young.keras", "predictor_runs%2Fold.keras"]
    for path, weights in zip(paths, predictors):
        for found, expected in zip(_loaded(tmp_path / path), weights.trainable):
            np.testing.assert_array_equal(found, expected)


def test_equal_models_have_equal_bytes_whenever_they_are_saved(tmp_path):
    """Layers of this package are made anew for each file, and Keras numbers what has no name."""
    model = text_classifier(
        TextNetwork("mean", 4), num_classes=3, vocabulary_size=6, sequence_length=5
    )
    contents = []
    for name in ("first", "second"):
        files = save_for_keras(tmp_path, _task(model), {name: model.initial_weights})
        (file,) = files.saved
        contents.append((tmp_path / file.path).read_bytes())
        # Keras counts on.
        tf.keras.Model(x := tf.keras.Input([3]), tf.where(x > 0, x, 0.0))
    assert contents[0] == contents[1]
    save_for_keras(tmp_path, _task(model), {"third": _changed(model.initial_weights, 0.1)})
    assert (tmp_path / "third.keras").read_bytes() != contents[0]
