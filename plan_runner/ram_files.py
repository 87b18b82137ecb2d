"""Files in this process's memory, in TensorFlow's file system `ram://`.

Graphs read and write checkpoints by their paths. If the server adds noise, these checkpoints
contain the noise's key and sums without noise. Files on a disk would remain if the process is
killed.
"""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Union

import tensorflow as tf

_ROOT = "ram://plan_runner"


class RamFile:
    """A file or folder in memory, with the methods of `pathlib.Path` that this package calls.

    Args:
        path: Path in `ram://`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __truediv__(self, name: Union[str, os.PathLike]) -> RamFile:
        """Returns a file of this folder."""
        return RamFile(f"{self._path}/{os.fspath(name)}")

    def __str__(self) -> str:
        """Returns the path in TensorFlow's notation."""
        return self._path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.rpartition("/")[2]

    def with_name(self, name: str) -> RamFile:
        """Returns a file with this name in the same folder."""
        return RamFile(f"{self._path.rpartition('/')[0]}/{name}")

    def is_file(self) -> bool:
        """Whether the file exists."""
        return tf.io.gfile.exists(self._path) and not tf.io.gfile.isdir(self._path)

    def read_bytes(self) -> bytes:
        """Returns the content."""
        with tf.io.gfile.GFile(self._path, "rb") as file:
            return bytes(file.read())

    def write_bytes(self, content: bytes) -> None:
        """Writes the content."""
        with tf.io.gfile.GFile(self._path, "wb") as file:
            file.write(content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file."""
        if not missing_ok or self.is_file():
            tf.io.gfile.remove(self._path)

    def stat(self) -> types.SimpleNamespace:
        """Returns an object with the size as `st_size`, like `os.stat_result`."""
        return types.SimpleNamespace(st_size=int(tf.io.gfile.stat(self._path).length))


# File that a graph reads or writes, on the disk or in memory.
File = Union[Path, RamFile]


def empty_folder(name: str) -> RamFile:
    """Creates a folder in memory, or empties an existing one."""
    path = f"{_ROOT}/{name}"
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)
    tf.io.gfile.makedirs(path)
    return RamFile(path)
