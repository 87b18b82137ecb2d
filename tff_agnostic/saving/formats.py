"""The formats that a trained model can be saved in."""

import dataclasses
from pathlib import Path
from typing import Any, Callable

from tff_agnostic.registry import Registry
from tff_agnostic.saving import keras_format, saved_model_format, tflite_format
from tff_agnostic.saving.trained_model import TrainedModel


@dataclasses.dataclass(frozen=True)
class Format:
    """How a trained model becomes a file or a folder, and how that is used again.

    Attributes:
        file_name: What follows the model's name in that of the file.
        write: (model, path) -> what is to be known of the file, for the model card.
        load: (path, model) -> a function from x to predictions in the model's form.
        quantizes: Whether `write` has an argument `quantize`.
    """

    file_name: str
    write: Callable[..., dict[str, Any]]
    load: Callable[[Path, TrainedModel], Callable[[Any], Any]]
    quantizes: bool = False


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "keras": Format(".keras", keras_format.write, keras_format.load),
        "saved_model": Format("_saved_model", saved_model_format.write, saved_model_format.load),
        "tflite": Format(".tflite", tflite_format.write, tflite_format.load, quantizes=True),
    },
)
