"""The command save_model: saves a run's models for Keras, TensorFlow or TensorFlow Lite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tff_agnostic.base.files import check_free
from tff_agnostic.program.commands.command_line import DataOptions, RunArguments, RunCommand
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.runs.results import CARD, saved_line
from tff_agnostic.program.runs.saved_models import SavedModels, save_run_models
from tff_agnostic.saving.save import check_request
from tff_agnostic.saving.tflite import NOT_QUANTIZED


@dataclasses.dataclass(frozen=True)
class SaveOptions(DataOptions):
    """Flags of `save_model`. If files have moved, flags of data and tasks give their new paths.

    Attributes:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        format: Formats to write: some of keras, saved_model, tflite.
        quantize: Number format of the weights in a second TensorFlow Lite file: int8 or float16;
            none writes no second file.
        output_dir: Folder to write; new or empty.
    """

    checkpoint: Path = dataclasses.field(kw_only=True)
    format: tuple[str, ...] = ("keras",)
    quantize: str = NOT_QUANTIZED
    output_dir: Path = dataclasses.field(kw_only=True)


def save_model(given: RunArguments) -> SavedModels:
    """Saves every model of a checkpoint, and a model card."""
    flags = given.args
    with flags_in_errors(flags):
        check_request(flags.format, flags.quantize)
    check_free(flags.output_dir, "--output_dir")
    return save_run_models(
        flags.checkpoint, flags.output_dir, flags.format, flags.quantize, given.based_on
    )


def _show(saved: SavedModels) -> None:
    for file in saved.files:
        print(saved_line(file))
    print(f"model card: {saved.path / CARD}")


SAVE_MODEL = RunCommand(
    "save_model", SaveOptions, save_model, _show, settings=("trust",), has_runtime=False
)
