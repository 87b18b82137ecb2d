"""Saves the trained model of a run: for Keras, as a SavedModel, or for TensorFlow Lite.

Example: ./run save_model --checkpoint=runs/digits-agnostic_fed_avg-001 --output_dir=model
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tff_agnostic import api
from tff_agnostic.errors import UserError
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_data_flags,
    define_run_flags,
    define_task_option_flags,
    given_task_flags,
)
from tff_agnostic.run.process import run_app
from tff_agnostic.run.results import CARD, saved_lines
from tff_agnostic.saving.save import FORMATS
from tff_agnostic.saving.tflite import NOT_QUANTIZED, QUANTIZATIONS
from tff_agnostic.settings import path_flag


def define_flags() -> None:
    """Defines the flags of this binary."""
    flags.DEFINE_string(
        "checkpoint", None, "Folder of a run (its newest checkpoint), or one checkpoint file in it."
    )
    flags.DEFINE_list("format", ["keras"], f"What to write: some of {', '.join(FORMATS)}.")
    flags.DEFINE_string(
        "quantize",
        NOT_QUANTIZED,
        "What weights are stored in by a second file for TensorFlow Lite, beside the plain one: "
        f"{', '.join(QUANTIZATIONS)}.",
    )
    flags.DEFINE_string("output_dir", None, "Folder to write; new or empty.")
    define_run_flags(("trust",))
    # Where files have moved to.
    define_data_flags()
    define_task_option_flags()


def main(argv: Sequence[str]) -> None:
    """Saves every model of the checkpoint, and its card; prints a line for each file."""
    del argv
    checkpoint_path, output_dir = path_flag("checkpoint"), path_flag("output_dir")
    if checkpoint_path is None:
        raise UserError(
            "--checkpoint: expected the folder of a run or a checkpoint file, found none"
        )
    if output_dir is None:
        raise UserError("--output_dir: expected the folder to write, found none")
    saved = api.save_model(
        checkpoint_path,
        output_dir,
        flags.FLAGS.format,
        flags.FLAGS.quantize,
        data=data(),
        data_dir=data_dir(),
        trust=bool(flags.FLAGS.trust),
        **given_task_flags(),
    )
    for line in saved_lines(saved):
        print(line)
    print(f"model card: {Path(output_dir) / CARD}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
