"""Checkpoints: the whole server state of a round in one .npz file, written atomically.

The zip format holds a checksum of every array, so damage is noticed when a file is read.
"""

import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from tff_agnostic.data.npz import read_npz
from tff_agnostic.errors import UserError
from tff_agnostic.files import atomic_file, make_folder, write_errors
from tff_agnostic.models.functional import ModelWeights

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
        expected, found = _described(tf.nest.flatten(template)), _described(self.leaves)
        if expected != found:
            raise UserError(
                f"{where}: expected the state of this model and algorithm ({', '.join(expected)}),"
                f" found {', '.join(found)}"
            )
        return tf.nest.pack_sequence_as(template, [leaf[()] for leaf in self.leaves])

    def restore_weights(self, template: ModelWeights, where: str) -> ModelWeights:
        """Returns the model's weights, which every algorithm's state starts with.

        Raises:
            UserError: If they are those of another model.
        """
        expected = _described(tf.nest.flatten(template))
        found = _described(self.leaves[: len(expected)])
        if expected != found:
            raise UserError(
                f"{where}: expected the weights of this model ({', '.join(expected)}), found "
                f"{', '.join(found)}"
            )
        return tf.nest.pack_sequence_as(template, list(self.leaves[: len(expected)]))


def _described(arrays: Sequence[Any]) -> list[str]:
    return [f"{a.dtype}{list(a.shape)}" for a in map(np.asarray, arrays)]


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

        What is there of later rounds was passed over when the run went on: it is removed, too.

        Raises:
            UserError: If it cannot be written; earlier checkpoints stay.
        """
        make_folder(self._folder)
        arrays = {
            f"leaf_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(tf.nest.flatten(state))
        }
        header = json.dumps({"format": _FORMAT, "round": round_num, "leaves": len(arrays)})
        # In memory first: on a full disk NumPy's zip file would write again when it is collected.
        content = io.BytesIO()
        np.savez(content, **{_HEADER: np.array(header)}, **arrays)
        saved = self._folder / f"round_{round_num:08d}.npz"
        with atomic_file(saved) as file:
            file.write(content.getbuffer())
        paths = self._newest_first()
        newest = paths.index(saved)
        for path in paths[:newest] + paths[newest + self._keep :]:
            with write_errors(path):
                path.unlink()

    def load_latest(self) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that can be read, or None if there is none.

        Damaged ones are passed over with a warning.

        Raises:
            UserError: If there are checkpoints but every one is damaged; the message says how.
        """
        error: Optional[UserError] = None
        for path in self._newest_first():
            if error is not None:
                logging.warning("%s; trying the one before it", error)
            try:
                return read_checkpoint(path)
            except UserError as e:
                error = e
        if error is not None:
            raise UserError(f"every checkpoint is damaged; the oldest is {error}")
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
    arrays = read_npz(path, "a checkpoint")
    try:
        header = json.loads(str(arrays[_HEADER]))
        leaves = tuple(arrays[f"leaf_{i:05d}"] for i in range(header["leaves"]))
        file_format, round_num = header["format"], int(header["round"])
    except (KeyError, TypeError, ValueError) as e:
        raise UserError(f"{path}: expected a checkpoint, found other arrays ({e})") from e
    if file_format != _FORMAT:
        raise UserError(f"{path}: expected checkpoint format {_FORMAT}, found {file_format}")
    return Checkpoint(round_num, leaves)


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Returns the newest readable checkpoint of a `checkpoints/` folder.

    Raises:
        UserError: If there is none.
    """
    checkpoint = CheckpointFolder(folder, keep=1).load_latest()
    if checkpoint is None:
        raise UserError(f"{folder}: expected checkpoints, found none")
    return checkpoint
