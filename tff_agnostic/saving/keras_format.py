"""A trained model as a Keras model in one .keras file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.files import atomic_file
from tff_agnostic.models.frozen import as_in_keras
from tff_agnostic.models.keras_slots import name_layers_afresh
from tff_agnostic.models.plain_keras import classes_of, foreign_layers, plain_keras
from tff_agnostic.saving.keras_archive import keras_archive
from tff_agnostic.saving.keras_files import load_keras
from tff_agnostic.saving.trained_model import TrainedModel

_OURS = "tff_agnostic."


class NotForKeras(UserError):
    """A model cannot be a .keras file.

    Attributes:
        reason: Why, in a line without a flag.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"--format=keras: {reason}")
        self.reason = reason


def with_trained_weights(trained: TrainedModel) -> tf.keras.Model:
    """Returns the Keras model of a model, with the trained values and of Keras' own layers.

    Raises:
        NotForKeras: If one of this package's layers is in it where nothing can take its place.
    """
    keras_model = trained.model.keras_model
    if keras_model is None:
        raise NotForKeras("expected a model made of a Keras model, found none")
    weights = as_in_keras(trained.weights, trained.model.frozen)
    for variables, values in (
        (keras_model.trainable_weights, weights.trainable),
        (keras_model.non_trainable_weights, weights.non_trainable),
    ):
        for variable, value in zip(variables, values):
            variable.assign(value)
    # What is built now has the same names wherever and whenever it is.
    name_layers_afresh()
    plain = plain_keras(keras_model)
    ours = {n: kind for n, kind in foreign_layers(plain).items() if kind.startswith(_OURS)}
    if ours:
        name, kind = next(iter(ours.items()))
        raise NotForKeras(
            f"expected {kind.rpartition('.')[2]} layers where Keras' own can take "
            f"their place, found {name} within another layer or a subclassed model: "
            "--format=saved_model and --format=tflite save it as it is"
        )
    return plain


def write(trained: TrainedModel, path: Path) -> dict[str, Any]:
    """Writes the file.

    Returns:
        The layers for which whoever loads it needs the user's code, if there are any.

    Raises:
        NotForKeras: If Keras cannot save the model.
        UserError: If the file cannot be written.
    """
    with _keras_errors():
        keras_model = with_trained_weights(trained)
        content = keras_archive(keras_model)
    with atomic_file(path) as file:
        file.write(content)
    custom = foreign_layers(keras_model)
    return {"layers_that_need_code": custom} if custom else {}


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x.

    Raises:
        NotForKeras: If Keras cannot load what it saved, as where a layer has no `get_config`.
    """
    assert trained.model.keras_model is not None
    with _keras_errors():
        keras_model = load_keras(path, classes_of(trained.model.keras_model))
    return lambda x: keras_model(x, training=False)


@contextlib.contextmanager
def _keras_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, UserError):
        # Of the disk, say, which is no matter of the model; or it is told already.
        raise
    # Keras raises errors of many kinds, and so may layers of a user's.
    except Exception as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise NotForKeras(
            f"Keras cannot save and load this model ({line.strip()}); "
            "--format=saved_model needs none of its layers' code"
        ) from e
