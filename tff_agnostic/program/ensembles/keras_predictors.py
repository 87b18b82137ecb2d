"""Base predictors that are Keras files: of any architecture, with the task's inputs and outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.losses import takes_scores
from tff_agnostic.models.mixtures.forms import form_of
from tff_agnostic.models.mixtures.holding import Architecture
from tff_agnostic.models.plain_keras import classes_of
from tff_agnostic.models.user_file import in_one_line
from tff_agnostic.models.user_model_check import described
from tff_agnostic.program.ensembles.base_predictor import (
    FLAG,
    BasePredictor,
    MixingTask,
    check_outputs,
    rows_of,
)
from tff_agnostic.saving.keras_files import architecture_text, read_keras

# Of the sum of probabilities.
_TOLERANCE = 1e-4


def keras_predictor(
    path: Path, mixing: MixingTask, known: Mapping[str, Architecture]
) -> BasePredictor:
    """Reads a Keras file as a base predictor.

    Where the task's model has scores, a file may have scores or probabilities: outputs that are not
    negative and sum to 1 are probabilities, and a single one is if its last layer's activation is
    a sigmoid.

    Args:
        path: A .keras or .h5 file.
        mixing: The task.
        known: Architectures of earlier files by their text: equal ones are one.

    Raises:
        UserError: If it cannot be loaded, is no function of the task's features, has other outputs
            than the task's model, or no probabilities where that has some.
    """
    model = mixing.task.model
    if not form_of(model).are_models:
        raise UserError(
            f"{FLAG}: {path}: expected a run or a file of base_predictors: the task's predictors "
            "are distributions of words, which Keras has no model of"
        )
    own = model.keras_model
    classes = {} if own is None else classes_of(own)
    keras_model = read_keras(path, classes, FLAG, mixing.trust)
    outputs = _outputs(path, keras_model, model.example_spec["x"])
    check_outputs(path, outputs, model)
    takes = takes_scores(model.loss)
    if outputs.shape.rank == 1 or outputs.shape[-1] == 1:
        from_scores = _has_score(path, keras_model, outputs, takes)
    else:
        from_scores = _has_scores(path, outputs, takes)
    text = f"{'scores' if from_scores else 'probabilities'} {architecture_text(keras_model)}"
    if text in known:
        architecture = known[text]
    else:
        try:
            architecture = Architecture(fixed_from_keras(keras_model, model), from_scores)
        except ValueError as e:
            raise UserError(f"{FLAG}: {path}: {e}") from e
    values = [weight.numpy() for weight in keras_model.weights]
    return BasePredictor(ModelWeights([], values), architecture, text)


def _outputs(path: Path, keras_model: tf.keras.Model, x_spec: Any) -> Any:
    try:
        return keras_model(rows_of(x_spec), training=False)
    # It is the file's own code that fails.
    except Exception as e:
        raise UserError(
            f"{FLAG}: {path}: expected a model of the task's features, x {described(x_spec)}, "
            f"found one that fails on them: {in_one_line(e)}"
        ) from e


def _has_scores(path: Path, outputs: tf.Tensor, takes: Optional[bool]) -> bool:
    """Returns whether outputs are scores; `takes` as of `takes_scores`."""
    if takes is None:
        return False
    values = np.asarray(outputs, np.float64)
    sums = values.sum(axis=-1)
    if np.all(values >= 0) and np.allclose(sums, 1, rtol=0, atol=_TOLERANCE):
        return False
    if not takes:
        raise UserError(
            f"{FLAG}: {path}: expected probabilities, as the task's model has them, found outputs "
            f"that sum to {sums.ravel()[0]:.4g}"
        )
    return True


def _has_score(
    path: Path, keras_model: tf.keras.Model, outputs: tf.Tensor, takes: Optional[bool]
) -> bool:
    """Returns whether a single output is the score of a class, and not its probability."""
    if takes is None or _ends_in_sigmoid(keras_model):
        return False
    values = np.asarray(outputs)
    if not takes and not np.all((values >= 0) & (values <= 1)):
        raise UserError(
            f"{FLAG}: {path}: expected probabilities, as the task's model has them, found the "
            f"output {values.ravel()[0]:.4g}"
        )
    return takes


def _ends_in_sigmoid(keras_model: tf.keras.Model) -> bool:
    (*_, last) = keras_model.layers
    return getattr(last, "activation", None) is tf.keras.activations.sigmoid
