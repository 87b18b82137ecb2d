"""Keras files: loaded in one place, and told apart by what they compute."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.keras_slots import layers_of
from tff_agnostic.saving.keras_guard import NotPlain, plain_file

# How their names end.
KERAS_FILES = (".keras", ".h5")

# Where the configuration of a Keras model names layers.
_NAMING = ("name", "inbound_nodes", "input_layers", "output_layers")


# What `NotPlain` is told with, and what mends it.
_EXPECTED = "a Keras model of Keras' own layers and of numbers"
_MEND = "--trust loads it, and lets it run code: for files of people you trust"


def read_keras(
    file: Path, classes: Mapping[str, Any], flag: str, trust: bool = False
) -> tf.keras.Model:
    """Reads a Keras model that a user names.

    Args:
        file: A .keras or .h5 file.
        classes: Classes of layers that it may have beside Keras' own, by name.
        flag: What names the file, for messages.
        trust: Whether the file may run code.

    Raises:
        UserError: If Keras cannot load it, or it is not trusted and holds more than a model.
    """
    try:
        return load_keras(file, classes, trust)
    except NotPlain as e:
        raise UserError(f"{flag}: {file}: expected {_EXPECTED}, found {e} ({_MEND})") from e
    # Keras raises errors of many kinds.
    except Exception as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise UserError(
            f"{flag}: expected a Keras model, cannot load {file} ({line.strip()})"
        ) from e


def load_keras(file: Path, classes: Mapping[str, Any], trust: bool = False) -> tf.keras.Model:
    """Loads a Keras file: nothing else here does.

    Args:
        file: A .keras or .h5 file.
        classes: Classes of layers that it may have beside Keras' own, by name.
        trust: Whether the file may run code, and is loaded whatever it holds.

    Raises:
        NotPlain: If it is not trusted, and holds more than Keras' own layers and numbers.
        Exception: Whatever Keras raises.
    """
    if trust:
        return tf.keras.models.load_model(file, classes, compile=False, safe_mode=False)
    with plain_file(file, classes) as source:
        return tf.keras.models.load_model(source, classes, compile=False)


def architecture_text(keras_model: tf.keras.Model) -> str:
    """Returns a text that two models share if they compute the same of equal weights.

    Names of layers, which count up in the process that made a model, are not in it. Of a model
    without a configuration it is its class and the shapes of its weights.
    """
    try:
        config = keras_model.get_config()
    except NotImplementedError:
        kind = type(keras_model)
        shapes = [list(weight.shape) for weight in keras_model.weights]
        return f"{kind.__module__}.{kind.__qualname__} {shapes}"
    names = {layer.name: f"layer {k}" for k, layer in enumerate(layers_of(keras_model))}
    return json.dumps(_renamed(config, names, False), sort_keys=True, default=str)


def _renamed(value: Any, names: dict[str, str], is_naming: bool) -> Any:
    if isinstance(value, dict):
        return {k: _renamed(v, names, is_naming or k in _NAMING) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(v, names, is_naming) for v in value]
    return names.get(value, value) if is_naming and isinstance(value, str) else value
