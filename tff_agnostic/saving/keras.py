"""Keras files: the same bytes for the same model, loaded in one place, and told apart.

The configuration in a file is what Keras 2 writes, in a form that Keras 3 reads as well. Both read
the same weights, and mostly the same words. Keras 3 knows no private module of Keras 2, and no
argument that it took away. One thing has no common form: the number of a call of a model within a
model, which Keras 2 counts from 1, and Keras 3 from 0.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import re
import tempfile
import types
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import atomic_file
from tff_agnostic.base.later import h5py, tf
from tff_agnostic.data.inputs import TABLE, inputs_json
from tff_agnostic.models.keras import as_in_keras
from tff_agnostic.models.keras_platform import (
    KERAS_3,
    classes_of,
    foreign_layers,
    keras_platform,
    layers_of,
    name_layers_afresh,
    plain_keras,
)
from tff_agnostic.saving.keras_guard import NotPlain, plain_file
from tff_agnostic.saving.trained_model import TrainedModel

_DATE = "date_saved"
# Bytes of metadata to read in search of a version.
_MAX_METADATA = 10_000
_SHARED = "shared_object_id"
# How their names end.
KERAS_FILES = (".keras", ".h5")
# Where the configuration of a Keras model names layers.
_NAMING = ("name", "inbound_nodes", "input_layers", "output_layers")
# Message for `NotPlain`, with the flag that mends it.
_EXPECTED = "a Keras model of Keras' own layers and of numbers"
_MEND = "--trust loads it, and lets it run code: for files of people you trust"
_OURS = "tff_agnostic."


def keras_archive(
    keras_model: tf.keras.Model, about: Mapping[str, Any] = types.MappingProxyType({})
) -> bytes:
    """Returns the content of the .keras file of a model: equal models have equal bytes.

    Args:
        about: What its metadata.json says beside what Keras says there.

    Raises:
        Exception: Whatever Keras, or a layer of a user's, raises where it cannot be saved.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        keras_platform().save(keras_model, path)
        return _without_circumstances(path.read_bytes(), about)


def _without_circumstances(content: bytes, about: Mapping[str, Any]) -> bytes:
    """Returns a .keras file for both releases of Keras if it can be one: see `common_form`.

    It has no dates, and small numbers in place of addresses.
    """
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(found, "w") as target:
        for name in sorted(source.namelist()):
            # Without a date it is that of the format's first day.
            data = source.read(name)
            if name == METADATA:
                data = _undated(data, about)
            elif name == CONFIG:
                data = _rewritten(data)
            target.writestr(zipfile.ZipInfo(name), data)
    return found.getvalue()


def _undated(metadata: bytes, about: Mapping[str, Any]) -> bytes:
    own = {k: v for k, v in json.loads(metadata).items() if k != _DATE}
    return json.dumps({**own, **about}).encode()


def _rewritten(config: bytes) -> bytes:
    numbers: dict[int, int] = {}

    def renumber(value: Any) -> Any:
        if isinstance(value, list):
            return [renumber(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: numbers.setdefault(item, len(numbers)) if key == _SHARED else renumber(item)
            for key, item in value.items()
        }

    return json.dumps(renumber(common_form(json.loads(config)))).encode()


def read_keras(
    file: Path, classes: Mapping[str, Any], flag: str, trust: bool = False
) -> tf.keras.Model:
    """Reads a Keras model that a user names.

    Args:
        classes: Classes of layers that it may have beside Keras' own, by name.
        flag: What names the file, for messages.
        trust: Whether the file may run code.
    """
    try:
        return load_keras(file, classes, trust)
    # Keras raises errors of many kinds.
    except Exception as e:
        own, written = importlib.metadata.version("keras"), _written_by(file)
        if written is not None and _major(written) > _major(own):
            raise UserError(
                f"{flag}: {file}: expected a file that Keras {own} reads, found one written by "
                f"Keras {written}: run with TFF_AGNOSTIC_PLATFORM=today, or save the model with "
                f"Keras {_major(own)}"
            ) from e
        if isinstance(e, NotPlain):
            raise UserError(f"{flag}: {file}: expected {_EXPECTED}, found {e} ({_MEND})") from e
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise UserError(
            f"{flag}: expected a Keras model, cannot load {file} ({line.strip()})"
        ) from e


def _written_by(file: Path) -> Optional[str]:
    """Returns the version of Keras that a file names as its writer; None if it names none."""
    version: Any = None
    # The file may be damaged, or made to do harm.
    with contextlib.suppress(Exception):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive, archive.open(METADATA) as member:
                version = json.loads(member.read(_MAX_METADATA)).get(_VERSION)
        else:
            with h5py.File(file, "r") as weights:
                version = weights.attrs.get(_VERSION)
    is_version = isinstance(version, str) and re.fullmatch(r"\d{1,3}\.[\w.]{1,20}", version)
    return version if is_version else None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def load_keras(file: Path, classes: Mapping[str, Any], trust: bool = False) -> tf.keras.Model:
    """Loads a Keras file: nothing else here does.

    Args:
        classes: Classes of layers that it may have beside Keras' own, by name.
        trust: Whether the file may run code, and is loaded whatever it holds.

    Raises:
        NotPlain: If it is not trusted, and holds more than Keras' own layers and numbers.
        Exception: Whatever Keras raises.
    """
    load = keras_platform().load
    if trust:
        with _for_this_keras(file) as source:
            return load(source, classes, safe_mode=False)
    with plain_file(file, classes) as checked, _for_this_keras(checked) as source:
        return load(source, classes, safe_mode=True)


@contextlib.contextmanager
def _for_this_keras(source: Any) -> Iterator[Any]:
    """Yields a file as it is, or in Keras 3 what it can load of a .keras file of Keras 2."""
    is_archive = isinstance(source, Path) and zipfile.is_zipfile(source)
    if not is_archive or keras_platform().release != KERAS_3:
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(archive_for_keras_3(source.read_bytes()))
        yield path


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
    # Names of layers built from here on do not depend on the process.
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
    """Writes the file, and a second one if Keras 3 needs one of its own.

    Returns:
        Which releases of Keras load it, the name of the second file, and the layers that need the
        user's code for loading, if there are any.

    Raises:
        NotForKeras: If Keras cannot save the model.
    """
    with _keras_errors():
        keras_model = with_trained_weights(trained)
        about_inputs = inputs_json(trained.inputs, trained.class_names, trained.words)
        content = keras_archive(keras_model, {TABLE: about_inputs})
    with atomic_file(path) as file:
        file.write(content)
    about: dict[str, Any] = _releases(content)
    if KERAS_3 not in about["loads_in"] and needs_second_file(_config(content)):
        second = path.with_name(f"{path.stem}_keras3{path.suffix}")
        with atomic_file(second) as file:
            file.write(archive_for_keras_3(content))
        about["for_keras_3"] = second.name
    custom = foreign_layers(keras_model)
    return {**about, "layers_that_need_code": custom} if custom else about


def _releases(content: bytes) -> dict[str, Any]:
    own = keras_platform().release
    is_of_both = own == KERAS_3 or is_for_both(_config(content))
    return {"loads_in": sorted({own, KERAS_3}) if is_of_both else [own]}


def _config(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return json.loads(archive.read(CONFIG))


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
        # For example an error of the disk, not of the model; or it has its message already.
        raise
    # Keras raises errors of many kinds, and so may layers of a user's.
    except Exception as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise NotForKeras(
            f"Keras cannot save and load this model ({line.strip()}); "
            "--format=saved_model needs none of its layers' code"
        ) from e


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
