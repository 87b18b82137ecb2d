"""Keras files: written with equal bytes for equal models, and checked before loading."""

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
    foreign_layers,
    keras_platform,
    layer_classes,
    model_layers,
    name_layers_afresh,
    plain_keras,
)
from tff_agnostic.saving.keras_guard import UnsafeKerasFile, open_checked
from tff_agnostic.saving.trained_model import TrainedModel

CONFIG = "config.json"
METADATA = "metadata.json"
_VERSION = "keras_version"
_DATE = "date_saved"
# Maximum number of bytes of metadata.json in which to look for the version of Keras.
_MAX_METADATA = 10_000
_SHARED = "shared_object_id"
KERAS_FILES = (".keras", ".h5")
# Keys of a Keras model's configuration; their values contain names of layers.
_NAMING = ("name", "inbound_nodes", "input_layers", "output_layers")
_EXPECTED = "a Keras model of Keras' own layers and of numbers"
_OURS = "tff_agnostic."


def keras_archive(
    keras_model: tf.keras.Model, about: Mapping[str, Any] = types.MappingProxyType({})
) -> bytes:
    """Returns the content of a model's .keras file; equal models have equal bytes.

    Args:
        about: Entries to add to metadata.json.

    Raises:
        Exception: Any error of Keras, or of a user's layer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        keras_platform().save(keras_model, path)
        return _without_circumstances(path.read_bytes(), about)


def _without_circumstances(content: bytes, about: Mapping[str, Any]) -> bytes:
    """Removes dates from a .keras file, and replaces memory addresses by small numbers."""
    target_bytes = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(target_bytes, "w") as target,
    ):
        for name in sorted(source.namelist()):
            # Every new `ZipInfo` has the same date.
            data = source.read(name)
            if name == METADATA:
                data = _undated(data, about)
            elif name == CONFIG:
                data = _rewritten(data)
            target.writestr(zipfile.ZipInfo(name), data)
    return target_bytes.getvalue()


def _undated(metadata: bytes, about: Mapping[str, Any]) -> bytes:
    undated = {k: v for k, v in json.loads(metadata).items() if k != _DATE}
    return json.dumps({**undated, **about}).encode()


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

    return json.dumps(renumber(json.loads(config))).encode()


class KerasFileError(UserError):
    """The error for a file that this process cannot load as a Keras model.

    Attributes:
        needs_trust: Whether loading the file requires permission to run its code.
    """

    def __init__(self, message: str, needs_trust: bool = False) -> None:
        super().__init__(message)
        self.needs_trust = needs_trust


def read_keras(file: Path, classes: Mapping[str, Any], *, trust: bool = False) -> tf.keras.Model:
    """Loads a user's Keras file; see `load_keras`.

    Args:
        classes: Classes of allowed layers in addition to Keras' own, by name.
        trust: Whether the file may run code.

    Raises:
        KerasFileError: If Keras cannot load the file, or loading it requires `trust`.
    """
    try:
        return load_keras(file, classes, trust)
    # Keras raises errors of many kinds.
    except Exception as e:
        release, written = importlib.metadata.version("keras"), _written_by(file)
        if written is not None and _major(written) != _major(release):
            platform = "reference" if _major(written) == 2 else "today"
            raise KerasFileError(
                f"{file}: expected a file that Keras {release} reads, found one written by "
                f"Keras {written}: run with TFF_AGNOSTIC_PLATFORM={platform}, or save the model "
                f"with Keras {_major(release)}"
            ) from e
        if isinstance(e, UnsafeKerasFile):
            raise KerasFileError(f"{file}: expected {_EXPECTED}, found {e}", True) from e
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise KerasFileError(f"expected a Keras model, cannot load {file} ({line.strip()})") from e


def _written_by(file: Path) -> Optional[str]:
    """Returns the version of Keras that wrote a file; None if the file has none."""
    version: Any = None
    # The file may be damaged or hostile.
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
    """Loads a Keras file.

    Args:
        classes: Classes of allowed layers in addition to Keras' own, by name.
        trust: Whether the file may run code.

    Raises:
        UnsafeKerasFile: If the file is not trusted, and contains more than layers and numbers.
        Exception: Any error of Keras.
    """
    load = keras_platform().load
    if trust:
        return load(file, classes, safe_mode=False)
    with open_checked(file, classes) as checked:
        return load(checked, classes, safe_mode=True)


def architecture_text(keras_model: tf.keras.Model) -> str:
    """Returns a string that is equal for models with equal layers; names of layers may differ.

    For a model without a configuration, the string contains the model's class and its weights'
    shapes.
    """
    try:
        config = keras_model.get_config()
    except NotImplementedError:
        kind = type(keras_model)
        shapes = [list(weight.shape) for weight in keras_model.weights]
        return f"{kind.__module__}.{kind.__qualname__} {shapes}"
    names = {layer.name: f"layer {k}" for k, layer in enumerate(model_layers(keras_model))}
    return json.dumps(_renamed(config, names, False), sort_keys=True, default=str)


def _renamed(value: Any, names: dict[str, str], is_naming: bool) -> Any:
    if isinstance(value, dict):
        return {k: _renamed(v, names, is_naming or k in _NAMING) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(v, names, is_naming) for v in value]
    return names.get(value, value) if is_naming and isinstance(value, str) else value


class NotForKeras(UserError):
    """The error for a model that cannot be saved as a .keras file.

    Attributes:
        reason: Cause of the error, in one line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"format keras: {reason}")
        self.reason = reason


def with_trained_weights(trained: TrainedModel) -> tf.keras.Model:
    """Returns the Keras model with trained weights, and with Keras' own layers instead of ours.

    Raises:
        NotForKeras: If a layer of this package cannot be replaced.
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
    # Restart the numbering of layers, so that names do not depend on the process.
    name_layers_afresh()
    plain = plain_keras(keras_model)
    ours = {n: kind for n, kind in foreign_layers(plain).items() if kind.startswith(_OURS)}
    if ours:
        name, kind = next(iter(ours.items()))
        raise NotForKeras(
            f"expected {kind.rpartition('.')[2]} layers where Keras' own can take "
            f"their place, found {name} within another layer or a subclassed model: "
            "the formats saved_model and tflite save it unchanged"
        )
    return plain


def write(trained: TrainedModel, path: Path) -> dict[str, Any]:
    """Writes a .keras file; returns layers that can only be loaded with the user's code, if any.

    Raises:
        NotForKeras: If Keras cannot save the model.
    """
    with _keras_errors():
        keras_model = with_trained_weights(trained)
        about_inputs = inputs_json(trained.inputs, trained.class_names, trained.words)
        content = keras_archive(keras_model, {TABLE: about_inputs})
    with atomic_file(path) as file:
        file.write(content)
    custom = foreign_layers(keras_model)
    return {"layers_that_need_code": custom} if custom else {}


def load(path: Path, trained: TrainedModel) -> Any:
    """Returns the saved model as a function of x.

    Raises:
        NotForKeras: If Keras cannot load its own file, e.g. because a layer lacks `get_config`.
    """
    assert trained.model.keras_model is not None
    with _keras_errors():
        keras_model = load_keras(path, layer_classes(trained.model.keras_model))
    return lambda x: keras_model(x, training=False)


@contextlib.contextmanager
def _keras_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, UserError):
        # Keep these errors as they are: a UserError is already clear, and an OSError is about the
        # disk.
        raise
    # Keras and users' layers raise errors of many kinds.
    except Exception as e:
        line = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise NotForKeras(
            f"Keras cannot save and load this model ({line.strip()}); "
            "the format saved_model needs none of its layers' code"
        ) from e
