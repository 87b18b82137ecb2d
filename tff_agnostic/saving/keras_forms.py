"""Configurations of `.keras` files: what Keras 2 writes, in a form that Keras 3 reads as well.

Both read the same weights, and mostly the same words. Keras 3 knows no private module of Keras 2,
and no argument that it took away. One thing has no common form: the number of a call of a model
within a model, which Keras 2 counts from 1, and Keras 3 from 0.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

CONFIG = "config.json"
METADATA = "metadata.json"
_VERSION = "keras_version"
# The class of functional models is public in neither; that of all models makes them in both.
_FUNCTIONAL = ("keras.src.engine.functional", "Functional")
_MODEL = {"module": "keras", "class_name": "Model", "registered_name": "Model"}
_MODELS = (_FUNCTIONAL[1], "Model", "Sequential")
# Calls of TensorFlow on symbolic inputs, as Keras 2 has them, and the layer that is called with
# inputs by name: Keras 3 does not read those, nor the shapes that Keras 2 needs of them.
_OF_KERAS_2 = (
    *("TFOpLambda", "SlicingOpLambda", "InstanceMethod", "InstanceProperty", "ClassMethod"),
    "MultiHeadAttention",
)


def common_form(config: Any) -> Any:
    """Returns the configuration of a model with the same meaning in Keras 2, for both if it can."""
    if isinstance(config, list):
        return [common_form(item) for item in config]
    if not isinstance(config, dict):
        return config
    found = {key: common_form(value) for key, value in config.items()}
    if (found.get("module"), found.get("class_name")) == _FUNCTIONAL:
        found.update(_MODEL)
    arguments = found.get("config")
    if isinstance(arguments, dict) and found["class_name"] != "InputLayer":
        # The layer that has this shape is there beside it.
        arguments.pop("batch_input_shape", None)
        # Keras 3 takes no list of an axis of a normalisation, and Keras 2 a number as well.
        if found["class_name"] == "BatchNormalization":
            _put_one(arguments, "axis")
    for key in ("input_layers", "output_layers"):
        # A single one is one in Keras 3, and a list of one is a list.
        _put_one(found, key)
    if found.get("time_major") is False:
        del found["time_major"]
    return found


def _put_one(config: dict[str, Any], key: str) -> None:
    if isinstance(config.get(key), list) and len(config[key]) == 1:
        (config[key],) = config[key]


def is_for_both(config: Any) -> bool:
    """Returns whether a `common_form` is one: Keras 3 reads it."""
    return not _is_of_keras_2(config) and not _is_nested(config)


def needs_second_file(config: Any) -> bool:
    """Returns whether Keras 3 reads `for_keras_3` of a `common_form` of Keras 2, and not itself."""
    return not _is_of_keras_2(config) and _is_nested(config)


def _is_of_keras_2(config: Any) -> bool:
    return any(found.get("class_name") in _OF_KERAS_2 for found in _dicts(config))


def _is_nested(config: Any) -> bool:
    """Returns whether a functional model has models within it."""
    return any(_models_within(found) for found in _dicts(config) if "input_layers" in found)


def for_keras_3(config: Any) -> Any:
    """Returns a `common_form` of Keras 2 for Keras 3 alone, models within models included."""
    if isinstance(config, list):
        return [for_keras_3(item) for item in config]
    if not isinstance(config, dict):
        return config
    found = {key: for_keras_3(value) for key, value in config.items()}
    nested = _models_within(found)
    if nested and "input_layers" in found:
        for layer in found["layers"]:
            layer["inbound_nodes"] = _counted_from_0(layer["inbound_nodes"], nested)
        found["output_layers"] = _counted_from_0(found["output_layers"], nested)
    return found


def archive_for_keras_3(content: bytes) -> bytes:
    """Returns a `.keras` file of Keras 2 for Keras 3; of others, the same file."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(found, "w") as target:
        version = json.loads(source.read(METADATA)).get(_VERSION, "")
        if not str(version).startswith("2."):
            return content
        for name in source.namelist():
            data = source.read(name)
            if name == CONFIG:
                data = json.dumps(for_keras_3(common_form(json.loads(data)))).encode()
            target.writestr(zipfile.ZipInfo(name), data)
    return found.getvalue()


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _dicts(item)


def _models_within(config: dict[str, Any]) -> set[str]:
    layers = config.get("layers")
    return {
        layer["config"]["name"]
        for layer in (layers if isinstance(layers, list) else ())
        if layer.get("class_name") in _MODELS
    }


def _counted_from_0(value: Any, nested: set[str]) -> Any:
    """Returns nodes, or outputs: [layer, number of its call, number of its output, ...]."""
    if isinstance(value, dict):
        return {key: _counted_from_0(item, nested) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 2 and isinstance(value[0], str) and value[0] in nested:
        name, call, *rest = value
        return [name, call - 1, *(_counted_from_0(item, nested) for item in rest)]
    return [_counted_from_0(item, nested) for item in value]
