"""Completed runs, read from their folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.later import tf
from tff_agnostic.metrics.by_group import ByGroup, measures_by_group
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.keras_files import read_named_keras
from tff_agnostic.program.reports.run_record import read_run
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.saved_models import SavedModels, save_run_models
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.saving.save import FORMATS, check_request


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A completed run.

    Attributes:
        table: Final evaluation of the main model as a text table, with the domains' weights.
    """

    path: Path
    table: str

    @property
    def settings(self) -> RunSettings:
        """Settings of the run, as stored in its folder."""
        return RunFolder(self.path).spec()

    @property
    def result(self) -> dict[str, Any]:
        """Content of result.json."""
        return read_json(RunFolder(self.path).result)

    def by_group(self) -> ByGroup:
        """Returns the measures overall, per domain, and their spread over domains."""
        run = read_run(self.path)
        return measures_by_group(run.result, run.measures)

    def history(self) -> Mapping[str, np.ndarray]:
        """Returns the columns of metrics.csv by name: a number per round, NaN if missing."""
        return read_history(RunFolder(self.path).metrics)

    def keras_model(
        self,
        name: str = "model",
        custom_objects: Optional[Mapping[str, Any]] = None,
        trust: bool = False,
    ) -> tf.keras.Model:
        """Returns a trained model from the run's folder model/.

        Args:
            name: Name of the model, for runs that trained several models.
            custom_objects: Classes of the user's layers in the model, by name.
            trust: Whether the model may run code, such as Lambda layers.
        """
        folder, ending = RunFolder(self.path).model, FORMATS["keras"].file_name
        path = folder / f"{name}{ending}"
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in folder.glob(f"*{ending}")))
            raise UserError(f"{path}: expected a Keras model, found {names or 'none'} in {folder}")
        return read_named_keras(path, custom_objects or {}, "keras_model", trust)

    def save(
        self, folder: Union[str, Path], formats: Sequence[str] = ("keras",), quantize: str = "none"
    ) -> SavedModels:
        """Saves the models of the newest checkpoint, and a model card, as `./run save_model` does.

        Args:
            folder: Folder to write; new or empty.
            formats: Formats to write: some of "keras", "saved_model", "tflite".
            quantize: Number format of a second TensorFlow Lite file: "none", "int8" or "float16".
        """
        check_request(tuple(formats), quantize)
        return save_run_models(self.path, Path(folder), tuple(formats), quantize)
