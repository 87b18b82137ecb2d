"""A trained model as a Keras model in one .keras file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.plain_keras import classes_of, foreign_layers, plain_keras
from tff_agnostic.saving.trained_model import TrainedModel

_OURS = "tff_agnostic."


def with_trained_weights(trained: TrainedModel) -> tf.keras.Model:
    """Returns the Keras model of a model, with the trained values and of Keras' own layers.

    Raises:
        UserError: If one of this package's layers is in it where nothing can take its place.
    """
    keras_model = trained.model.keras_model
    if keras_model is None:
        raise UserError("--format=keras: expected a model made of a Keras model, found none")
    for variables, values in (
        (keras_model.trainable_weights, trained.weights.trainable),
        (keras_model.non_trainable_weights, trained.weights.non_trainable),
    ):
        for variable, value in zip(variables, values):
            variable.assign(value)
    plain = plain_keras(keras_model)
    ours = {n: kind for n, kind in foreign_layers(plain).items() if kind.startswith(_OURS)}
    if ours:
        name, kind = next(iter(ours.items()))
        raise UserError(
            f"--format=keras: expected {kind.rpartition('.')[2]} layers where Keras' own can take "
            f"their place, found {name} within another layer or a subclassed model: "
            "--format=saved_model and --format=tflite save it as it is"
        )
    return plain


def write(trained: TrainedModel, path: Path) -> dict[str, Any]:
    """Writes the file.

    Returns:
        The layers for which whoever loads it needs the user's code, if there are any.

    Raises:
        UserError: If Keras cannot save the model.
    """
    keras_model = with_trained_weights(trained)
    with _keras_errors():
        keras_model.save(path, save_format="keras")
    custom = foreign_layers(keras_model)
    return {"layers_that_need_code": custom} if custom else {}


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x.

    Raises:
        UserError: If Keras cannot load what it saved, as where a layer has no `get_config`.
    """
    assert trained.model.keras_model is not None
    with _keras_errors():
        keras_model = tf.keras.models.load_model(
            path, custom_objects=classes_of(trained.model.keras_model), compile=False
        )
    return lambda x: keras_model(x, training=False)


@contextlib.contextmanager
def _keras_errors() -> Iterator[None]:
    try:
        yield
    except (NotImplementedError, TypeError, ValueError) as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise UserError(
            f"--format=keras: Keras cannot save and load this model ({line.strip()}); "
            "--format=saved_model needs none of its layers' code"
        ) from e
