"""Reading .npz files that somebody else may have written, or that may be damaged."""

import io
from pathlib import Path

import numpy as np

from tff_agnostic.errors import UserError


def read_npz(path: Path, what: str = "an .npz file of plain arrays") -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file.

    Args:
        path: The file.
        what: What is expected, for messages.

    Raises:
        UserError: If it cannot be read, is damaged (the zip format has a checksum of every array),
            or holds pickled objects, which are refused because reading them runs code.
    """
    try:
        # Read at once: a file that is removed or replaced meanwhile cannot mix.
        content = io.BytesIO(path.read_bytes())
    except OSError as e:
        raise UserError(f"{path}: expected {what}, cannot read it: {e.strerror or e}") from e
    try:
        archive = np.load(content, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("a single array, as in .npy files")
        with archive:
            return {name: archive[name] for name in archive.files}
    except Exception as e:  # There is no list of what zip and npy raise on arbitrary bytes.
        raise UserError(
            f"{path}: expected {what}, found a damaged or another file ({_line(e)})"
        ) from e


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
