"""The run that a checkpoint, or a folder, belongs to."""

from pathlib import Path

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.saving.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint


def find_checkpoint(path: Path) -> tuple[RunFolder, Checkpoint]:
    """Returns the run that `path` belongs to, and the checkpoint that it names.

    Prints what has to be known of the privacy that the run claims, if anything.

    Raises:
        UserError: If there is none, it is damaged, or it is not of the run that its folder says.
    """
    is_folder = path.is_dir()
    folder = RunFolder(path if is_folder else path.absolute().parent.parent)
    checkpoint = newest_checkpoint(folder.checkpoints) if is_folder else read_checkpoint(path)
    folder.check_own(checkpoint)
    warning = folder.epsilon_warning()
    if warning is not None:
        print(f"note: {warning}")
    return folder, checkpoint


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
