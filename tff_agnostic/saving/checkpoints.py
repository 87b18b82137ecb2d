"""Checkpoints: the whole state of a round, and its models, in one .npz file, written atomically.

The zip format holds a checksum of every array, so damage is noticed when a file is read.
"""

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

# Folder of checkpoints in the folder of a run.
CHECKPOINTS = "checkpoints"

_FORMAT = 1
_NAME = re.compile(r"round_(\d{8})\.npz")
_HEADER = "header"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A state as it was saved.

    Attributes:
        round_num: Rounds completed.
        leaves: The arrays of the state, in the order of `tf.nest.flatten`.
        model_arrays: The arrays of each model, by its name, the main one first, in the order of the
            Keras model, whatever was frozen.
        data: `keyed_digest` of the digest of the examples that the state was trained on; "" if it
            was saved without.
        trained_with: What it is to be told by that it is of another run, in parts by their names;
            nothing where it was saved without.
        file: Where it was read from.
    """

    round_num: int
    leaves: tuple[np.ndarray, ...]
    model_arrays: Mapping[str, tuple[np.ndarray, ...]]
    data: str = ""
    trained_with: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    file: Optional[Path] = None

    def restore(self, template: Any, where: str) -> Any:
        """Returns the state in the structure of `template`."""
        expected, found = _described(tf.nest.flatten(template)), _described(self.leaves)
        if expected != found:
            raise UserError(
                f"{where}: expected the state of this model and algorithm ({', '.join(expected)}),"
                f" found {', '.join(found)}"
            )
        return tf.nest.pack_sequence_as(template, [leaf[()] for leaf in self.leaves])

    def models(
        self, template_weights: ModelWeights, where: str, frozen: Sequence[int] = ()
    ) -> dict[str, ModelWeights]:
        """Returns the weights of every model, by its name, the main one first.

        Args:
            where: Name of the checkpoint in messages.
            frozen: The `Model.frozen` of that model. What the run had frozen may be something else.
        """
        template_weights = as_in_keras(template_weights, frozen)
        expected = _described(tf.nest.flatten(template_weights))
        for arrays in self.model_arrays.values():
            found = _described(arrays)
            if expected != found:
                raise UserError(
                    f"{where}: expected the weights of this model ({', '.join(expected)}), found "
                    f"{', '.join(found)}"
                )
        return {
            name: with_frozen(tf.nest.pack_sequence_as(template_weights, list(arrays)), frozen)
            for name, arrays in self.model_arrays.items()
        }


def _described(arrays: Sequence[Any]) -> list[str]:
    return [f"{a.dtype}{list(a.shape)}" for a in map(np.asarray, arrays)]


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        keep: How many of the newest stay.
        frozen: The `Model.frozen` of the models that are saved.
        secret: Whether states hold a secret: files are then for their owner alone, and one that
            was saved outlasts a power cut.
        data: Digest of the examples that states are trained on; files hold it with a key, and only
            secret ones hold it.
        trained_with: What tells its states from those of other runs, as JSON holds it; equal runs
            have equal ones.
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
        """Saves a state, then removes checkpoints older than the newest `keep`.

        Checkpoints of later rounds were skipped when the run resumed: they are removed, too.

        Args:
            round_num: Rounds completed.
            models: The models of the state by name, the main one first.
        """
        make_folder(self._folder)
        # In memory first: on a full disk NumPy's zip file would write again in its destructor.
        content = io.BytesIO()
        in_keras = {name: as_in_keras(weights, self._frozen) for name, weights in models.items()}
        beside = {"data": self._data, "trained_with": self._trained_with}
        np.savez(content, **_arrays(round_num, state, in_keras, beside))
        saved = self._folder / f"round_{round_num:08d}.npz"
        _rename_aside(saved)
        with atomic_file(saved, owner_only=self._secret) as file:
            file.write(content.getbuffer())
        paths = self._newest_first()
        newest = paths.index(saved)
        if self._secret:
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
        for path in paths[:newest] + paths[newest + self._keep :]:
            _rename_aside(path)
            with write_errors(path):
                path.unlink(missing_ok=True)

    def load_latest(self) -> Optional[Checkpoint]:
        """Returns the newest checkpoint that can be read, or None if there is none.

        Damaged ones are passed over with a warning.
        """
        found = self._newest_readable()
        return None if found is None else found[1]

    def _newest_readable(self) -> Optional[tuple[Path, Checkpoint]]:
        error: Optional[UserError] = None
        for path in self._newest_first():
            if error is not None:
                logging.warning("%s; trying the one before it", error)
            try:
                return path, read_checkpoint(path)
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
    round_num: int, state: Any, models: Mapping[str, ModelWeights], beside: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a file: header, state, and parts of models that are not in the state.

    Empty entries of `beside` are left out of the header.
    """
    leaves = tf.nest.flatten(state)
    arrays = {f"leaf_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    # Parts of the state are not stored twice.
    name_of = {id(leaf): name for leaf, name in zip(leaves, arrays)}
    names_of: dict[str, list[str]] = {}
    for model, weights in models.items():
        names_of[model] = []
        for i, leaf in enumerate(tf.nest.flatten(weights)):
            name = name_of.get(id(leaf), f"model_{model}_{i:05d}")
            arrays.setdefault(name, np.asarray(leaf))
            names_of[model].append(name)
    header = {"format": _FORMAT, "round": round_num, "leaves": len(leaves), "models": names_of}
    header.update((name, value) for name, value in beside.items() if value)
    return {_HEADER: np.array(json.dumps(header)), **arrays}


def _rename_aside(path: Path) -> None:
    """Moves a folder away that has the name of a checkpoint; one with nothing in it is removed."""
    if path.is_symlink() or not path.is_dir():
        return
    with write_errors(path):
        if any(path.iterdir()):
            path.rename(path.with_name(f"{path.name}.moved"))
        else:
            path.rmdir()


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads one checkpoint file."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: expected a checkpoint, found something that is not a file")
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
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        raise UserError(f"{path}: expected a checkpoint, found other arrays ({e})") from e
    if round_num < 0:
        raise UserError(f"{path}: expected a checkpoint, found one of round {round_num}")
    return Checkpoint(round_num, leaves, models, data, trained_with, path)


def newest_checkpoint_file(folder: Path) -> Optional[Path]:
    """Returns the newest readable checkpoint of a `checkpoints/` folder; None if there is none."""
    found = CheckpointFolder(folder, keep=1)._newest_readable()
    return None if found is None else found[0]


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Returns the newest readable checkpoint of a `checkpoints/` folder."""
    checkpoint = CheckpointFolder(folder, keep=1).load_latest()
    if checkpoint is None:
        raise UserError(f"{folder}: expected checkpoints, found none")
    return checkpoint
