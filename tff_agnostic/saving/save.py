"""Saves the models of a run in chosen formats, and checks every file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NamedTuple, Optional
from urllib.parse import quote

from tff_agnostic.base.options import OneOf, OptionError, Verbatim, check
from tff_agnostic.base.registry import Registry
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.saving import keras, tflite
from tff_agnostic.saving.keras import NotForKeras
from tff_agnostic.saving.tflite import NOT_QUANTIZED, QUANTIZATIONS
from tff_agnostic.saving.trained_model import TEST, FileCheck, TrainedModel, check_file
from tff_agnostic.tasks.task import Task

_KERAS = "keras"


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A file that was written.

    Attributes:
        model: Name of the model: "model", or that of a member of a family.
        format: Name of the format.
        quantize: Name of the quantisation.
        path: The file or folder, within the folder that was written to.
        num_bytes: Its size.
        about: Facts about it for the model card.
        check: Its comparison with the run's model; None if that was not measured.
    """

    model: str
    format: str
    quantize: str
    path: str
    num_bytes: int
    about: Mapping[str, Any]
    check: Optional[FileCheck]


def check_request(formats: Sequence[str], quantize: str) -> None:
    """Checks the formats to write, and that a quantization applies to one of them."""
    if not formats:
        raise OptionError("format", f"some of {', '.join(FORMATS)}", Verbatim("none"))
    for name in formats:
        check("format", Annotated[str, OneOf(FORMATS)], name)
    check("quantize", Annotated[str, OneOf(QUANTIZATIONS)], quantize)
    if quantize != NOT_QUANTIZED and not any(FORMATS[name].quantizes for name in formats):
        able = " or ".join(name for name, one in FORMATS.items() if one.quantizes)
        found = Verbatim(f"{quantize} with the format {','.join(formats)}")
        raise OptionError("quantize", f"none without the format {able}", found)


def save_models(
    folder: Path,
    task: Task,
    models: Mapping[str, ModelWeights],
    formats: Sequence[str],
    quantize: str = NOT_QUANTIZED,
    checked_on: str = TEST,
) -> list[SavedFile]:
    """Writes every model in every format.

    Args:
        folder: An existing folder.
        formats: Names of `FORMATS`.
        quantize: A name of `QUANTIZATIONS`; formats that can quantise write such a file next to
            the plain one.
        checked_on: Source of the examples that files are checked on; see `check_file`.
    """
    check_request(formats, quantize)
    saved = []
    for name, weights in models.items():
        trained = _trained(task, task.model, weights)
        for format_name in dict.fromkeys(formats):
            can_quantize = FORMATS[format_name].quantizes
            for quantization in dict.fromkeys(
                [NOT_QUANTIZED, quantize if can_quantize else NOT_QUANTIZED]
            ):
                saved.append(
                    _save(folder, task, trained, name, format_name, quantization, checked_on)
                )
    return saved


def _save(
    folder: Path,
    task: Task,
    trained: TrainedModel,
    name: str,
    format_name: str,
    quantize: str,
    checked_on: str,
) -> SavedFile:
    kind = FORMATS[format_name]
    plain = quantize == NOT_QUANTIZED
    path = folder / f"{name}{'' if plain else f'_{quantize}'}{kind.file_name}"
    about = kind.write(trained, path) if plain else kind.write(trained, path, quantize)
    check = check_file(trained, task, kind.load(path, trained), checked_on)
    return SavedFile(name, format_name, quantize, path.name, _size(path), about, check)


class KerasFiles(NamedTuple):
    """The models of a run as far as Keras can hold them.

    Attributes:
        saved: The files.
        left_out: Why there is no file of a model, in a line, by its name.
    """

    saved: list[SavedFile]
    left_out: dict[str, str]


def save_for_keras(folder: Path, task: Task, models: Mapping[str, ModelWeights]) -> KerasFiles:
    """Writes a .keras file of every model that Keras can hold, and reports the others.

    Of an ensemble the predictors are saved, each as `predictor_NAME.keras`. Nothing is measured.

    Args:
        folder: Where to; it exists.
    """
    trained = {name: _trained(task, task.model, weights) for name, weights in models.items()}
    kind = FORMATS[_KERAS]
    saved: list[SavedFile] = []
    left_out: dict[str, str] = {}
    for name, one in {**trained, **_predictors(task)}.items():
        path = folder / f"{name}{kind.file_name}"
        try:
            about = kind.write(one, path)
        except NotForKeras as e:
            left_out[name] = e.reason
            continue
        saved.append(SavedFile(name, _KERAS, NOT_QUANTIZED, path.name, _size(path), about, None))
    return KerasFiles(saved, left_out)


def _predictors(task: Task) -> dict[str, TrainedModel]:
    """Returns the Keras models that an ensemble mixes; nothing of other models."""
    ensemble = task.model
    if not isinstance(ensemble, EnsembleModel):
        return {}
    return {
        # Names may have slashes, as those of checkpoints do.
        f"predictor_{quote(name, safe='')}": _trained(task, model, weights)
        for name, (model, weights) in zip(ensemble.names, ensemble.predictors)
    }


def _trained(task: Task, model: Model, weights: ModelWeights) -> TrainedModel:
    # The task says what the inputs of its own model are; predictors of ensembles have theirs.
    inputs = task.inputs if model is task.model else None
    return TrainedModel(model, weights, task.class_names, task.words, inputs)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


@dataclasses.dataclass(frozen=True)
class Format:
    """How a trained model becomes a file or a folder, and how that is used again.

    Attributes:
        file_name: The part of the file's name after the model's name.
        write: (model, path) -> facts about the file, for the model card.
        load: (path, model) -> a function from x to predictions in the model's form.
        quantizes: Whether `write` has an argument `quantize`.
    """

    file_name: str
    write: Callable[..., dict[str, Any]]
    load: Callable[[Path, TrainedModel], Callable[[Any], Any]]
    quantizes: bool = False


def _write_saved_model(trained: TrainedModel, path: Path) -> dict[str, Any]:
    from tff_agnostic.saving import saved_model

    return saved_model.write(trained, path)


def _load_saved_model(path: Path, trained: TrainedModel) -> Callable[[Any], Any]:
    from tff_agnostic.saving import saved_model

    load: Callable[[Any], Any] = saved_model.load(path, trained)
    return load


# The module of SavedModels loads TensorFlow.
FORMATS: Registry[Format] = Registry(
    "format",
    {
        "keras": Format(".keras", keras.write, keras.load),
        "saved_model": Format("_saved_model", _write_saved_model, _load_saved_model),
        "tflite": Format(".tflite", tflite.write, tflite.load, quantizes=True),
    },
)
