"""Files of base predictors: several models of one architecture, in one .npz file.

The zip format holds a checksum of every array, so damage is noticed when a file is read.
"""

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.data.npz import read_npz
from tff_agnostic.errors import UserError
from tff_agnostic.files import atomic_file

_FORMAT = 1
_HEADER = "header"
_KIND = "base predictors"


@dataclasses.dataclass(frozen=True)
class PredictorFile:
    """Base predictors as they were saved.

    Attributes:
        names: Of the q predictors.
        arrays: Their weights in the order of the model's, arrays [q, ...].
        fingerprint: What the weights depend on, such as the vocabulary; see `Task.fingerprint`.
        about: How they were made.
    """

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    fingerprint: Mapping[str, str]
    about: Mapping[str, Any]


def write_predictors(path: Path, predictors: PredictorFile) -> None:
    """Writes a file atomically.

    Raises:
        UserError: If it cannot be written.
    """
    header = {
        "kind": _KIND,
        "format": _FORMAT,
        "names": list(predictors.names),
        "arrays": len(predictors.arrays),
        "fingerprint": dict(predictors.fingerprint),
        "about": dict(predictors.about),
    }
    arrays = {f"array_{i:05d}": array for i, array in enumerate(predictors.arrays)}
    # In memory first: on a full disk NumPy's zip file would write again when it is collected.
    content = io.BytesIO()
    np.savez(content, **{_HEADER: np.array(json.dumps(header)), **arrays})
    with atomic_file(path) as file:
        file.write(content.getbuffer())


def is_predictor_file(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns whether the arrays of an .npz file are those of base predictors."""
    try:
        return bool(json.loads(str(arrays[_HEADER]))["kind"] == _KIND)
    except (LookupError, TypeError, ValueError):
        return False


def read_predictors(path: Path) -> PredictorFile:
    """Reads a file.

    Raises:
        UserError: If it is missing, damaged or of another kind.
    """
    arrays = read_npz(path, "a file of base predictors")
    if not is_predictor_file(arrays):
        raise UserError(f"{path}: expected a file of base predictors, found other arrays")
    header = json.loads(str(arrays[_HEADER]))
    file_format = header.get("format")
    if not isinstance(file_format, int) or file_format > _FORMAT:
        raise UserError(
            f"{path}: expected format {_FORMAT} at most, found {file_format}: it was written by a "
            "later release"
        )
    try:
        found = PredictorFile(
            tuple(map(str, header["names"])),
            tuple(arrays[f"array_{i:05d}"] for i in range(header["arrays"])),
            {str(name): str(value) for name, value in header["fingerprint"].items()},
            dict(header["about"]),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{path}: expected a file of base predictors, found other arrays") from e
    _check_names(path, found.names, found.arrays)
    return found


def _check_names(path: Path, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    if not names or not arrays or any(a.ndim == 0 or len(a) != len(names) for a in arrays):
        shapes = ", ".join(str(list(a.shape)) for a in arrays) or "none"
        raise UserError(
            f"{path}: expected arrays of {len(names)} base predictors, found arrays of shapes "
            f"{shapes}"
        )
