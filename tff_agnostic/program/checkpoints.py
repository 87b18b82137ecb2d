"""Checkpoints: the whole server state of a round in one .npz file, written atomically.

The zip format holds a checksum of every array, so damage is noticed when a file is read.
"""

import dataclasses
import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tff_agnostic.errors import UserError
from tff_agnostic.program.files import atomic_file, make_folder, write_errors

_FORMAT = 1
_NAME = re.compile(r"round_(\d{8})\.npz")
_HEADER = "header"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A state as it was saved.

    Attributes:
        round_num: Rounds completed.
        leaves: The arrays of the state, in the order of `tf.nest.flatten`.
    """

    round_num: int
    leaves: tuple[np.ndarray, ...]

    def restore(self, template: Any, where: str) -> Any:
        """Returns the state in the structure of `template`.

        Raises:
            UserError: If the arrays differ from the template's in number, shape or dtype, as those
                of another model or algorithm do.
        """
        expected = [np.asarray(leaf) for leaf in tf.nest.flatten(template)]
        described = [f"{a.dtype}{list(a.shape)}" for a in expected]
        found = [f"{a.dtype}{list(a.shape)}" for a in self.leaves]
        if described != found:
            raise UserError(
                f"{where}: expected the state of this model and algorithm ({', '.join(described)}),"
                f" found {', '.join(found)}"
            )
        return tf.nest.pack_sequence_as(template, [leaf[()] for leaf in self.leaves])


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        folder: Where they are.
        keep: How many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, round_num: int, state: Any) -> None:
        """Saves a state, then removes what is older than the newest `keep`.

        Raises:
            UserError: If it cannot be written; earlier checkpoints stay.
        """
        make_folder(self._folder)
        arrays = {
            f"leaf_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(tf.nest.flatten(state))
        }
        header = json.dumps({"format": _FORMAT, "round": round_num, "leaves": len(arrays)})
        with atomic_file(self._folder / f"round_{round_num:08d}.npz") as file:
            np.savez(file, **{_HEADER: np.array(header)}, **arrays)
        for path in self._newest_first()[self._keep :]:
            with write_errors(path):
                path.unlink()

    def load_latest(self) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that can be read, or None if there is none.

        Damaged ones are passed over with a warning.

        Raises:
            UserError: If there are checkpoints but every one is damaged.
        """
        paths = self._newest_first()
        for path in paths:
            try:
                return read_checkpoint(path)
            except UserError as e:
                logging.warning("%s; trying the one before it", e)
        if paths:
            raise UserError(f"{self._folder}: every checkpoint is damaged")
        return None

    def _newest_first(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted((p for p in self._folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads one checkpoint file.

    Raises:
        UserError: If it is missing, damaged, half-written or of another format.
    """
    try:
        # Read at once: a file that is removed or replaced meanwhile cannot mix.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            header = json.loads(str(archive[_HEADER]))
            leaves = tuple(archive[f"leaf_{i:05d}"] for i in range(header["leaves"]))
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        raise UserError(f"{path}: damaged or not a checkpoint ({e})") from e
    if header["format"] != _FORMAT:
        raise UserError(f"{path}: expected checkpoint format {_FORMAT}, found {header['format']}")
    return Checkpoint(round_num=header["round"], leaves=leaves)


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Returns the newest readable checkpoint of a `checkpoints/` folder.

    Raises:
        UserError: If there is none.
    """
    checkpoint = CheckpointFolder(folder, keep=1).load_latest()
    if checkpoint is None:
        raise UserError(f"{folder}: expected checkpoints, found none")
    return checkpoint
