"""Reads .npz files that are untrusted or may be damaged."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.files import open_file

# How many times its size a file may have when unpacked, beyond the first bytes.
_MAX_RATIO = 200
_FREE_BYTES = 1 << 26


def read_npz(path: Path, what: str = "an .npz file of plain arrays") -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file.

    Args:
        what: The expected kind of file, for messages.
    """
    # Opened once: a file that is removed or replaced meanwhile cannot mix.
    with open_file(path, what) as file:
        try:
            _check_size(file)
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("a single array, as in .npy files")
            with archive:
                return {name: archive[name] for name in archive.files}
        except Exception as e:  # There is no list of what zip and npy raise on arbitrary bytes.
            raise UserError(
                f"{path}: expected {what}, found a damaged or another file ({_line(e)})"
            ) from e


def _check_size(file: IO[bytes]) -> None:
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    size = os.fstat(file.fileno()).st_size
    if unpacked > max(_FREE_BYTES, _MAX_RATIO * size):
        raise ValueError(
            f"{size} bytes that unpack to {unpacked}; np.savez writes arrays without packing them"
        )
    file.seek(0)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
