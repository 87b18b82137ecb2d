"""Saves the models of a run in several formats, and checks every file."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NamedTuple, Optional
from urllib.parse import quote

from tff_agnostic.base.options import OneOf, OptionError, Verbatim, check
from tff_agnostic.base.registry import Registry
from tff_agnostic.boosting.ensemble import EnsembleModel
from tff_agnostic.models.model import Model, ModelWeights
from tff_agnostic.saving.keras import NotForKeras
from tff_agnostic.saving.tflite import NOT_QUANTIZED, QUANTIZATIONS
from tff_agnostic.saving.trained_model import TEST, FileCheck, TrainedModel, check_file
from tff_agnostic.tasks.task import Task

_KERAS = "keras"


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A saved model.

    Attributes:
        model: Name of the model: "model", or a family member's name.
        quantize: Name of the quantisation; see `QUANTIZATIONS`.
        path: Name of the file or folder.
        num_bytes: Size of the file or folder.
        about: Facts about the file for the model card.
        check: Comparison of the file with the run's model; None if they were not compared.
    """

    model: str
    format: str
    quantize: str
    path: str
    num_bytes: int
    about: Mapping[str, Any]
    check: Optional[FileCheck]


def check_request(formats: Sequence[str], quantize: str) -> None:
    """Checks the names of formats, and that the quantization applies to at least one of them."""
    if not formats:
        raise OptionError("format", f"some of {', '.join(FORMATS)}", Verbatim("none"))
    for name in formats:
        check("format", Annotated[str, OneOf(FORMATS)], name)
    check("quantize", Annotated[str, OneOf(QUANTIZATIONS)], quantize)
    if quantize != NOT_QUANTIZED and not any(FORMATS[name].quantizes for name in formats):
        able = " or ".join(name for name, one in FORMATS.items() if one.quantizes)
        given = Verbatim(f"{quantize} with the format {','.join(formats)}")
        raise OptionError("quantize", f"none without the format {able}", given)


def save_models(
    folder: Path,
    task: Task,
    models: Mapping[str, ModelWeights],
    formats: Sequence[str],
    quantize: str = NOT_QUANTIZED,
    checked_on: str = TEST,
) -> list[SavedFile]:
    """Writes every model in every format, and checks the files.

    Args:
        folder: Existing folder for the files.
        formats: Names of formats; see `FORMATS`.
        quantize: A name of `QUANTIZATIONS`. Formats that support quantization get an additional
            file with it.
        checked_on: Source of the examples for the checks; see `check_file`.
    """
    check_request(formats, quantize)
    saved = []
    for name, weights in models.items():
        trained = _trained(task, task.model, weights)
        for format_name in dict.fromkeys(formats):
            more = [quantize] if FORMATS[format_name].quantizes else []
            for quantization in dict.fromkeys([NOT_QUANTIZED, *more]):
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
    is_plain = quantize == NOT_QUANTIZED
    path = folder / f"{name}{'' if is_plain else f'_{quantize}'}{kind.file_name}"
    about = kind.write(trained, path, **({} if is_plain else {"quantize": quantize}))
    check = check_file(trained, task, kind.load(path, trained), checked_on)
    return SavedFile(name, format_name, quantize, path.name, _size(path), about, check)


class KerasFiles(NamedTuple):
    """The models of a run in the format of Keras.

    Attributes:
        saved: Saved files.
        left_out: One-line reason for each model without a file.
    """

    saved: list[SavedFile]
    left_out: dict[str, str]


def save_for_keras(folder: Path, task: Task, models: Mapping[str, ModelWeights]) -> KerasFiles:
    """Writes a .keras file of every model that Keras can save, without comparing predictions.

    The predictors of an ensemble are saved as `predictor_NAME.keras`.
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
    """Returns the predictors of an ensemble; empty for other models."""
    ensemble = task.model
    if not isinstance(ensemble, EnsembleModel):
        return {}
    return {
        # Quote names: a predictor's name may be the path of a checkpoint, which has slashes.
        f"predictor_{quote(name, safe='')}": _trained(task, model, weights)
        for name, (model, weights) in zip(ensemble.names, ensemble.predictors)
    }


def _trained(task: Task, model: Model, weights: ModelWeights) -> TrainedModel:
    # `task.inputs` describes only the inputs of `task.model`.
    inputs = task.inputs if model is task.model else None
    return TrainedModel(model, weights, task.class_names, task.words, inputs)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)


@dataclasses.dataclass(frozen=True)
class Format:
    """A file format of trained models.

    Attributes:
        file_name: Suffix of the file's name.
        module: Name of the format's module, which is imported on use, as some modules load
            TensorFlow.
        quantizes: Whether `write` has an argument `quantize`.
    """

    file_name: str
    module: str
    quantizes: bool = False

    def write(self, trained: TrainedModel, path: Path, **options: Any) -> dict[str, Any]:
        """Writes a model; returns facts for the model card."""
        about: dict[str, Any] = self._module().write(trained, path, **options)
        return about

    def load(self, path: Path, trained: TrainedModel) -> Callable[[Any], Any]:
        """Returns a function from x to predictions in the model's structure."""
        predict: Callable[[Any], Any] = self._module().load(path, trained)
        return predict

    def _module(self) -> Any:
        return importlib.import_module(f"{__package__}.{self.module}")


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "keras": Format(".keras", "keras"),
        "saved_model": Format("_saved_model", "saved_model"),
        "tflite": Format(".tflite", "tflite", quantizes=True),
    },
)
