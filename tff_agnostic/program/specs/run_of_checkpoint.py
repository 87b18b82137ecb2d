"""The run that a checkpoint, or a folder, belongs to."""

from pathlib import Path

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.saving.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint


def find_checkpoint(path: Path) -> tuple[RunFolder, Checkpoint]:
    """Returns the run that `path` belongs to, and the checkpoint that it names.

    Raises:
        UserError: If there is none, or it is damaged.
    """
    if path.is_dir():
        folder = RunFolder(path)
        return folder, newest_checkpoint(folder.checkpoints)
    return RunFolder(path.absolute().parent.parent), read_checkpoint(path)


def algorithm_of_checkpoint(path: Path) -> str:
    """Returns the algorithm of the run that a checkpoint belongs to, "" if that cannot be read."""
    return algorithm_of_run(RunFolder(path if path.is_dir() else path.absolute().parent.parent))


def algorithm_of_run(folder: RunFolder) -> str:
    """Returns the algorithm of the run in a folder, "" if there is none or it cannot be read."""
    try:
        flags = read_json(folder.config)
    except UserError:
        return ""
    algorithm = flags.get("algorithm", "")
    return algorithm if isinstance(algorithm, str) else ""
