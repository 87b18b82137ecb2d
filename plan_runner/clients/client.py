"""Clients: files of serialised examples."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message

from plan_runner.errors import PlanError, reason
from plan_runner.files.frames import check_frames
from plan_runner.files.limits import DEFAULT_LIMITS, Limits
from plan_runner.files.manifest import TensorType

SUFFIX = ".tfrecord"

_LISTS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_DTYPES = {name: dtype for dtype, name in _LISTS.items()}


@dataclasses.dataclass(frozen=True)
class Client:
    """A client, whose examples are read when it takes part.

    Attributes:
        name: Its name.
        path: Its TFRecord file.
        features: What its examples have.
        max_records: How many examples it may have.
    """

    name: str
    path: Path
    features: Mapping[str, TensorType]
    max_records: int = DEFAULT_LIMITS.max_records

    def examples(self) -> list[bytes]:
        """Returns its serialised examples.

        Raises:
            PlanError: If its file is damaged or has too many examples, or one lacks a feature or
                has a wrong one.
        """
        records = read_records(self.path, self.max_records)
        for number, record in enumerate(records, 1):
            _check_example(record, self.features, f"{self.path}, record {number}")
        return records


def clients_in(
    folder: Path, features: Mapping[str, TensorType], limits: Limits = DEFAULT_LIMITS
) -> dict[str, Client]:
    """Returns the clients whose files are in a folder, by name, in order.

    Args:
        folder: The folder.
        features: What examples have.
        limits: How many a client may have.

    Raises:
        PlanError: If there are none.
    """
    if not folder.is_dir():
        raise PlanError(f"{folder}: expected a folder with files NAME{SUFFIX}, found none")
    paths = {path.name[: -len(SUFFIX)]: path for path in folder.glob(f"*{SUFFIX}")}
    if not paths:
        raise PlanError(f"{folder}: expected files NAME{SUFFIX}, found no clients")
    most = limits.max_records
    return {name: Client(name, paths[name], features, most) for name in sorted(paths)}


def read_records(path: Path, max_records: int = DEFAULT_LIMITS.max_records) -> list[bytes]:
    """Returns the records of a TFRecord file, which may be empty.

    Raises:
        PlanError: If it is missing or damaged, or has more records.
    """
    check_frames(path, max_records)
    try:
        return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    except tf.errors.OpError as e:
        raise PlanError(f"{path}: expected a TFRecord file, cannot read it ({_short(e)})") from e


def _short(error: Any) -> str:
    # What comes after is about TensorFlow's nodes, which are not the reader's.
    return reason(ValueError(str(error.message).partition("}} ")[2] or str(error.message)))


def _check_example(record: bytes, features: Mapping[str, TensorType], where: str) -> None:
    try:
        found = tf.train.Example.FromString(record).features.feature
    except message.DecodeError as e:
        raise PlanError(f"{where}: expected a tf.train.Example, cannot parse it") from e
    for name, kind in features.items():
        expected = f"{where}: feature {name!r}: expected {kind}"
        if name not in found:
            raise PlanError(f"{expected}, found none")
        which = found[name].WhichOneof("kind")
        if which != _LISTS[kind.dtype]:
            raise PlanError(f"{expected}, found {_DTYPES.get(which, 'an empty feature')}")
        count = len(getattr(found[name], which).value)
        # Of a size that is open, any multiple will do.
        size = math.prod(size for size in kind.shape if size is not None)
        fits = count % size == 0 if None in kind.shape and size else count == size
        if not fits:
            raise PlanError(f"{expected}, found {count} values")
