"""Saving as a command: the models of a run for Keras, as a SavedModel, or for TensorFlow Lite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tff_agnostic.aggregations.private_sum import PrivacyOptions
from tff_agnostic.base.files import check_free, new_folder, write_json
from tff_agnostic.program.commands.command_line import DataOptions, GivenRun, RunCommand
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.runs.folder import find_checkpoint
from tff_agnostic.program.runs.results import CARD, model_card, result_after, saved_line
from tff_agnostic.saving.save import SavedFile, check_request, save_models
from tff_agnostic.saving.tflite import NOT_QUANTIZED
from tff_agnostic.saving.trained_model import MADE_UP, TEST


@dataclasses.dataclass(frozen=True)
class SaveOptions(DataOptions):
    """The flags of `save_model`; those of data and tasks say where files have moved to.

    Attributes:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        format: What to write: some of keras, saved_model, tflite.
        quantize: Number format of the weights in a second TensorFlow Lite file; none writes the
            plain file only. One of none, int8, float16.
        output_dir: Folder to write; new or empty.
    """

    checkpoint: Path = dataclasses.field(kw_only=True)
    format: tuple[str, ...] = ("keras",)
    quantize: str = NOT_QUANTIZED
    output_dir: Path = dataclasses.field(kw_only=True)


@dataclasses.dataclass(frozen=True)
class SavedModels:
    """The files of a run's models, each with what was measured, and the folder that they are in."""

    path: Path
    files: list[SavedFile]


def save_model(given: GivenRun) -> SavedModels:
    """Saves every model of a checkpoint, and its card.

    Each file is loaded again, and compared with the run's model on test examples. Files of private
    runs are compared on made-up examples: metrics of test examples would be exact.
    """
    own = given.own
    with flags_in_errors(own):
        check_request(own.format, own.quantize)
    check_free(own.output_dir, "--output_dir")
    saved_run, checkpoint = find_checkpoint(own.checkpoint)
    spec = given.inheriting(saved_run.spec())
    task = spec.load_task()
    saved_run.check_weights_fit(task)
    models = checkpoint.models(task.model.initial_weights, str(own.checkpoint), task.model.frozen)
    with new_folder(own.output_dir, "--output_dir") as path:
        checked_on = MADE_UP if isinstance(spec.privacy, PrivacyOptions) else TEST
        saved = save_models(path, task, models, own.format, own.quantize, checked_on)
        result = result_after(saved_run.folder, checkpoint.round_num)
        card = model_card(saved_run.folder, spec, task, checkpoint.round_num, result, saved)
        write_json(path / CARD, card)
    return SavedModels(own.output_dir, saved)


def _show(saved: SavedModels) -> None:
    for file in saved.files:
        print(saved_line(file))
    print(f"model card: {saved.path / CARD}")


SAVE_MODEL = RunCommand(
    "save_model", SaveOptions, save_model, _show, settings=("trust",), has_runtime=False
)
