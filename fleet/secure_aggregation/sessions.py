"""Files with the states of a party's sessions; a state is written before the party answers.

A completed session's file remains, without secrets, so that the session cannot run again. A folder
belongs to one party. Never restore an older copy of a file: the party could answer a stage twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.secure_aggregation.errors import SumError

_MARK = b"secure aggregation session 1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_SUFFIX = ".session"
_PARTIAL = ".partial_"
_LOCK = "lock"
# Fields of a state: numbers, bytes, and tuples of bytes, keyed by name.
Fields = dict[str, Any]


def encode(fields: Fields, tail: bytes) -> bytes:
    """Encodes a state, which consists of named fields and a tail of any length."""
    plain = {name: _as_json(value) for name, value in fields.items()}
    head = json.dumps(plain, sort_keys=True).encode()
    body = len(head).to_bytes(_LENGTH_BYTES, "big") + head + tail
    return _MARK + hashlib.sha256(body).digest() + body


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [item.hex() for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(bytes.fromhex(item) for item in value)
    return bytes.fromhex(value) if isinstance(value, str) else value


def decode(state: bytes, where: str) -> tuple[Fields, bytes]:
    """Returns the fields and the tail of an encoded state."""
    body = state[len(_MARK) + _DIGEST_BYTES :]
    checked = state[len(_MARK) : len(_MARK) + _DIGEST_BYTES]
    if not state.startswith(_MARK) or hashlib.sha256(body).digest() != checked:
        raise SumError(f"{where}: expected the state of a session, found {len(state)} other bytes")
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    plain = json.loads(body[_LENGTH_BYTES:end])
    return {name: _from_json(value) for name, value in plain.items()}, body[end:]


def sync_folder(folder: Path) -> None:
    """Waits until a folder's directory entries are on the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces a file atomically, and returns once the new content is on the disk."""
    file, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
    try:
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, mode)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    sync_folder(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Removes files that a killed `replace_file` did not complete, as they may contain secrets."""
    for partial in folder.glob(f"{_PARTIAL}*"):
        partial.unlink(missing_ok=True)


class SessionFolder:
    """Folder with the session states of one party.

    Args:
        folder: Path of the folder; created with mode 700 if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other processes and threads during a with block."""
        with self._one_line():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with self._one_line():
                fcntl.flock(file, fcntl.LOCK_EX)
                remove_partial_files(self._folder)
            yield
        finally:
            os.close(file)

    def read(self, session: bytes) -> tuple[Fields, bytes] | None:
        """Returns the state of a session; None if the session is unknown."""
        path = self._path(session)
        with self._one_line():
            try:
                state = path.read_bytes()
            except FileNotFoundError:
                return None
        return decode(state, str(path))

    def write(self, session: bytes, fields: Fields, tail: bytes) -> None:
        """Replaces the state of a session on the disk."""
        with self._one_line():
            replace_file(self._path(session), encode(fields, tail))

    def sessions(self) -> list[bytes]:
        """Returns the ids of all stored sessions."""
        with self._one_line():
            return sorted(bytes.fromhex(path.stem) for path in self._folder.glob(f"*{_SUFFIX}"))

    def erase(self, session: bytes) -> None:
        """Deletes the state of a session."""
        with self._one_line():
            self._path(session).unlink(missing_ok=True)

    def _path(self, session: bytes) -> Path:
        return self._folder / f"{session.hex()}{_SUFFIX}"

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SumError(
                f"{self._folder}: expected a folder to keep sessions in: {error.strerror}"
            ) from error
