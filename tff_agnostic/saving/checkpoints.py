"""Checkpoints: one .npz file, written atomically, with the state and models after a round."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from absl import logging

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    atomic_file,
    keyed_digest,
    make_folder,
    read_npz,
    sync_folder,
    write_errors,
)
from tff_agnostic.base.later import tf
from tff_agnostic.models.keras import as_in_keras, with_frozen
from tff_agnostic.models.model import ModelWeights

# Name of the folder of checkpoints in a run's folder.
CHECKPOINTS = "checkpoints"

_FORMAT = 1
_NAME = re.compile(r"round_(\d{8})\.npz")
_HEADER = "header"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A saved state.

    Attributes:
        round_num: Number of completed rounds.
        leaves: Arrays of the state, in the order of `tf.nest.flatten`.
        model_arrays: Weights of each model, the main model first; each model's arrays are in the
            order of its Keras model.
        data: Keyed digest of the training examples, see `keyed_digest`; "" if unknown.
        trained_with: Settings that identify the run, by section and name; empty if unknown.
        file: Path of the checkpoint.
    """

    round_num: int
    leaves: tuple[np.ndarray, ...]
    model_arrays: Mapping[str, tuple[np.ndarray, ...]]
    data: str = ""
    trained_with: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    file: Optional[Path] = None

    def restore(self, template: Any, where: str) -> Any:
        """Returns the state in the structure of `template`."""
        _check_arrays(
            tf.nest.flatten(template),
            self.leaves,
            f"{where}: expected the state of this model and algorithm",
        )
        return tf.nest.pack_sequence_as(template, [leaf[()] for leaf in self.leaves])

    def models(
        self, template_weights: ModelWeights, where: str, frozen: Sequence[int] = ()
    ) -> dict[str, ModelWeights]:
        """Returns the weights of every model by name, the main one first.

        Args:
            where: Name of the checkpoint, for messages.
            frozen: `Model.frozen` of the model to load, which may differ from the run's.
        """
        template_weights = as_in_keras(template_weights, frozen)
        leaves = tf.nest.flatten(template_weights)
        for arrays in self.model_arrays.values():
            _check_arrays(leaves, arrays, f"{where}: expected the weights of this model")
        return {
            name: with_frozen(tf.nest.pack_sequence_as(template_weights, list(arrays)), frozen)
            for name, arrays in self.model_arrays.items()
        }


def _check_arrays(expected: Sequence[Any], actual: Sequence[Any], where: str) -> None:
    """Raises a `UserError` if two lists of arrays differ in dtypes or shapes."""
    one, other = (
        ", ".join(f"{array.dtype}{list(array.shape)}" for array in map(np.asarray, arrays))
        for arrays in (expected, actual)
    )
    if one != other:
        raise UserError(f"{where} ({one}), found {other}")


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        keep: Number of newest checkpoints to keep.
        frozen: `Model.frozen` of the saved models.
        secret: Whether states contain a secret. If so, only the owner can read the files, which are
            synced to disk.
        data: Digest of the training examples; files contain its `keyed_digest`.
        trained_with: Settings that identify the run, by section and name, as JSON values.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        frozen: Sequence[int] = (),
        secret: bool = False,
        data: str = "",
        trained_with: Optional[Mapping[str, Mapping[str, Any]]] = None,
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._frozen = frozen
        self._secret = secret
        self._data = keyed_digest(data) if data else ""
        self._trained_with = trained_with or {}

    def save(self, round_num: int, state: Any, models: Mapping[str, ModelWeights]) -> None:
        """Saves a state; then removes checkpoints of later rounds, and the oldest checkpoints.

        Args:
            round_num: Number of completed rounds.
            models: The models of the state by name, the main one first.
        """
        make_folder(self._folder)
        # Write to memory first: after a failed write to a full disk, the destructor of NumPy's zip
        # file would try to write again.
        content = io.BytesIO()
        in_keras = {name: as_in_keras(weights, self._frozen) for name, weights in models.items()}
        origin = {"data": self._data, "trained_with": self._trained_with}
        np.savez(content, **_arrays(round_num, state, in_keras, origin))
        saved = self._folder / f"round_{round_num:08d}.npz"
        with atomic_file(saved, owner_only=self._secret) as file:
            file.write(content.getbuffer())
        paths = [path for path in self._newest_first() if path.is_file()]
        newest = paths.index(saved)
        if self._secret:
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
        for path in paths[:newest] + paths[newest + self._keep :]:
            with write_errors(path):
                path.unlink(missing_ok=True)

    def load_latest(self) -> Optional[Checkpoint]:
        """Returns the newest readable checkpoint; None if there is none. Warns of damaged files."""
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


def _arrays(
    round_num: int, state: Any, models: Mapping[str, ModelWeights], origin: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a file: header, state, and model weights that are not in the state."""
    leaves = tf.nest.flatten(state)
    arrays = {f"leaf_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    # Do not store arrays of the state twice.
    array_names = {id(leaf): name for leaf, name in zip(leaves, arrays)}
    names_by_model: dict[str, list[str]] = {}
    for model, weights in models.items():
        names_by_model[model] = []
        for i, leaf in enumerate(tf.nest.flatten(weights)):
            name = array_names.get(id(leaf), f"model_{model}_{i:05d}")
            arrays.setdefault(name, np.asarray(leaf))
            names_by_model[model].append(name)
    header = {
        "format": _FORMAT,
        "round": round_num,
        "leaves": len(leaves),
        "models": names_by_model,
    }
    header.update((name, value) for name, value in origin.items() if value)
    return {_HEADER: np.array(json.dumps(header)), **arrays}


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads one checkpoint file."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: expected a checkpoint, found a folder or a device")
    arrays = read_npz(path, "a checkpoint")
    try:
        header = json.loads(str(arrays[_HEADER]))
        if header["format"] != _FORMAT:
            raise UserError(
                f"{path}: expected checkpoint format {_FORMAT}, found {header['format']}"
            )
        round_num = int(header["round"])
        leaves = tuple(arrays[f"leaf_{i:05d}"] for i in range(header["leaves"]))
        models = {
            model: tuple(arrays[name] for name in names)
            for model, names in header["models"].items()
        }
        data = str(header.get("data", ""))
        trained_with = {k: dict(part) for k, part in header.get("trained_with", {}).items()}
    except UserError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        raise UserError(f"{path}: expected a checkpoint, found arrays of another file ({e})") from e
    if round_num < 0:
        raise UserError(f"{path}: expected a checkpoint, found one of round {round_num}")
    return Checkpoint(round_num, leaves, models, data, trained_with, path)


def newest_checkpoint_file(folder: Path) -> Optional[Path]:
    """Returns the newest readable checkpoint of a `checkpoints/` folder; None if it has none."""
    checkpoint = CheckpointFolder(folder, keep=1).load_latest()
    return None if checkpoint is None else checkpoint.file


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Reads the newest readable checkpoint of a `checkpoints/` folder, which must have one."""
    checkpoint = CheckpointFolder(folder, keep=1).load_latest()
    if checkpoint is None:
        raise UserError(f"{folder}: expected checkpoints, found none")
    return checkpoint
