"""Training that starts from a model that exists: a Keras model, or one of another run."""

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.frozen import as_in_keras, with_frozen
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.plain_keras import classes_of, plain_keras
from tff_agnostic.saving.checkpoints import read_checkpoint
from tff_agnostic.saving.keras_files import KERAS_FILES, read_keras

CHECKPOINT = ".npz"
# Suffixes of what a run can start from.
FILES = (CHECKPOINT, *KERAS_FILES)
# So many differences are told of a model that differs throughout.
_MAX_TOLD = 5


def model_to_start_from(path: Optional[str], model: Model, trust: bool = False) -> Model:
    """Returns a model with other initial weights.

    Args:
        path: A .keras or .h5 file, or a checkpoint, of whose models the main one is taken; None for
            the model as it is.
        model: The model.
        trust: Whether a Keras file may run code.

    Raises:
        UserError: If the file is none of these, or holds another model: its weights are named that
            have other shapes.
    """
    if path is None:
        return model
    file = Path(path)
    if file.suffix == CHECKPOINT:
        weights = _of_checkpoint(file, model)
    elif file.suffix in KERAS_FILES:
        weights = _of_keras(file, model, trust)
    else:
        raise UserError(
            f"--initial_model: expected a Keras model ({' or '.join(KERAS_FILES)}), a checkpoint "
            f"or the folder of a run, found {file}"
        )
    return dataclasses.replace(model, initial_weights=weights)


def _of_checkpoint(file: Path, model: Model) -> ModelWeights:
    checkpoint = read_checkpoint(file)
    arrays: Sequence[np.ndarray] = checkpoint.leaves
    if checkpoint.model_arrays is not None:
        arrays = next(iter(checkpoint.model_arrays.values()))
    template = as_in_keras(model.initial_weights, model.frozen)
    expected = tf.nest.flatten(template)
    if checkpoint.model_arrays is None:
        # The first arrays of a state of release 0.1.0 are the model.
        arrays = arrays[: len(expected)]
    _check_same(file, _names(model), expected, arrays)
    return with_frozen(tf.nest.pack_sequence_as(template, list(arrays)), model.frozen)


def _of_keras(file: Path, model: Model, trust: bool) -> ModelWeights:
    own = model.keras_model
    if own is None:
        raise UserError("--initial_model: expected a task with a Keras model, found another")
    found = read_keras(file, classes_of(own), "--initial_model", trust)
    values = [weight.numpy() for weight in found.weights]
    names = [_name(weight) for weight in own.weights]
    try:
        _check_same(file, names, own.weights, values)
    except UserError as e:
        if list(map(_shape, plain_keras(own).weights)) == list(map(_shape, values)):
            raise UserError(
                f"--initial_model: {file} has the layers of Keras that took the place of some when "
                "it was saved, whose weights cannot be taken back: name the run, or its checkpoint"
            ) from e
        raise
    value_of = {id(weight): value for weight, value in zip(own.weights, values)}
    weights = ModelWeights(
        [value_of[id(weight)] for weight in own.trainable_weights],
        [value_of[id(weight)] for weight in own.non_trainable_weights],
    )
    return with_frozen(weights, model.frozen)


def _check_same(
    file: Path, names: Sequence[str], expected: Sequence[Any], found: Sequence[Any]
) -> None:
    different = [
        f"{name or 'nothing'} {_shown(wanted)}, found {_shown(there)}"
        for name, wanted, there in zip_longest(names, expected, found)
        if wanted is None or there is None or _shape(wanted) != _shape(there)
    ]
    if different:
        more = f"; and {len(different) - _MAX_TOLD} more" if len(different) > _MAX_TOLD else ""
        told = "; ".join(different[:_MAX_TOLD])
        raise UserError(f"--initial_model: {file}: expected {told}{more}")


def _names(model: Model) -> list[str]:
    own = model.keras_model
    if own is None:
        return [f"weight {k}" for k in range(len(tf.nest.flatten(model.initial_weights)))]
    return [_name(weight) for weight in (*own.trainable_weights, *own.non_trainable_weights)]


def _name(weight: tf.Variable) -> str:
    name: str = weight.name
    return name.partition(":")[0]


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape)


def _shown(array: Any) -> str:
    return "nothing" if array is None else str(list(_shape(array)))
