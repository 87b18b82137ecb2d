"""The models of a run as files: for Keras, as a SavedModel, or for TensorFlow Lite."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.algorithms.user_algorithm import OWN_CODE
from tff_agnostic.api.arguments import PathName, path_of, task_arguments
from tff_agnostic.errors import UserError
from tff_agnostic.files import write_json
from tff_agnostic.folders import check_free, new_folder
from tff_agnostic.run.folder import find_checkpoint
from tff_agnostic.run.options import path_fields
from tff_agnostic.run.results import CARD, model_card, result_after
from tff_agnostic.run.spec import inheriting
from tff_agnostic.saving.save import SavedFile, check_request, save_models
from tff_agnostic.saving.tflite import NOT_QUANTIZED
from tff_agnostic.tasks.task import DATA


def save_model(
    checkpoint: PathName,
    output_dir: PathName,
    formats: Sequence[str] = ("keras",),
    quantize: str = NOT_QUANTIZED,
    *,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    trust: bool = False,
    **task_options: Any,
) -> list[SavedFile]:
    """Saves every model of a checkpoint, and its card, as `./run save_model` does.

    Each file is loaded again, and compared with the run's model on test examples.

    Args:
        checkpoint: Folder of a run (its newest checkpoint), or one checkpoint file in it.
        output_dir: Folder to write; new or empty.
        formats: What to write: some of "keras", "saved_model" and "tflite".
        quantize: What weights are stored in by a second file for TensorFlow Lite: "int8" or
            "float16".
        data: Where the client store is now, if it has moved.
        data_dir: The same of the folder of raw files.
        trust: Whether Keras files that the run mixes may run code.
        **task_options: Flags of the task that are to be others, as where its files have moved to.

    Returns:
        The files, each with what was measured.

    Raises:
        UserError: If the checkpoint cannot be read, a format is unknown or cannot hold the model,
            or the folder is not free.
    """
    checkpoint_path, folder_path = Path(checkpoint), Path(output_dir)
    if isinstance(formats, str):
        raise UserError(f"formats: expected a list of formats, found the text {formats!r}")
    check_request(formats, quantize)
    check_free(folder_path, "--output_dir")
    saved_run, found = find_checkpoint(checkpoint_path)
    trained = saved_run.spec()
    options = task_arguments(trained.task, task_options)
    spec = inheriting(trained, {"trust": trust}, options, path_of(data_dir), path_of(data))
    task = spec.load_task()
    # As in evaluations: neither the examples nor the code that trains need be those of the run.
    parts = (trained.config, trained.algorithm)
    of_training = [field.name for part in parts for field in path_fields(part)]
    saved_run.check_fingerprint(task.fingerprint, others=(DATA, *OWN_CODE, *of_training))
    models = found.models(task.model.initial_weights, str(checkpoint_path), task.model.frozen)
    round_num = found.round_num
    with new_folder(folder_path, "--output_dir") as path:
        saved = save_models(path, task, models, formats, quantize)
        result = result_after(saved_run.folder, round_num)
        write_json(path / CARD, model_card(saved_run.folder, spec, task, round_num, result, saved))
    return saved
