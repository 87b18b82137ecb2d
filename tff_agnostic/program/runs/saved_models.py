"""Saves the models of a run's checkpoint for other programs, with a model card."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tff_agnostic.aggregations.private_sum import PrivacyOptions
from tff_agnostic.base.files import new_folder, write_json
from tff_agnostic.program.runs.folder import find_checkpoint
from tff_agnostic.program.runs.results import CARD, model_card, result_after
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.saving.save import SavedFile, save_models
from tff_agnostic.saving.trained_model import MADE_UP, TEST


@dataclasses.dataclass(frozen=True)
class SavedModels:
    """The files of a run's models.

    Attributes:
        files: Each file with its size and its comparison with the run's model.
    """

    path: Path
    files: list[SavedFile]


def save_run_models(
    checkpoint: Path,
    output_dir: Path,
    formats: Sequence[str],
    quantize: str,
    current: Callable[[RunSettings], RunSettings] = lambda spec: spec,
) -> SavedModels:
    """Saves every model of a checkpoint, and a model card.

    Each file is loaded and compared with the run's model on test examples. For private runs the
    examples are made up, as metrics of test examples would be exact.

    Args:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        output_dir: Folder to write; new or empty.
        formats: Formats to write: some of "keras", "saved_model", "tflite".
        quantize: Number format of a second TensorFlow Lite file: "none", "int8" or "float16".
        current: Called with the settings of the run; returns them with the current paths of files.
    """
    saved_run, states = find_checkpoint(checkpoint)
    spec = current(saved_run.spec())
    task = spec.load_task()
    saved_run.check_weights_fit(task)
    models = states.models(task.model.initial_weights, str(checkpoint), task.model.frozen)
    with new_folder(output_dir, "--output_dir") as path:
        examples = MADE_UP if isinstance(spec.privacy, PrivacyOptions) else TEST
        files = save_models(path, task, models, formats, quantize, examples)
        result = result_after(saved_run.folder, states.round_num)
        card = model_card(saved_run.folder, spec, task, states.round_num, result, files)
        write_json(path / CARD, card)
    return SavedModels(output_dir, files)
