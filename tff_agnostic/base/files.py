"""Atomic files and folders, digests, and numbered output folders.

A reader of a file sees its old or its new content, never a part.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import hmac
import io
import itertools
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from logging import WARNING
from pathlib import Path
from typing import IO, Any, Optional

import numpy as np
from absl import logging

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
_SCRATCH = ".scratch"
_SCRATCH_FOLDER = re.compile(rf"\..+\{_SCRATCH}\.(?P<pid>\d+)\.tmp")
# Number of hexadecimal digits of a digest: enough to distinguish the files of one user.
_DIGITS = 16
# Number of bytes of a keyed digest's key.
_KEY_BYTES = 32
_BLOCK = 1 << 20
# Maximum bytes of a text file: more than users or runs write, but finite for endless files.
_MAX_TEXT_BYTES = 1 << 28
# Limit of integers in JSON: larger numbers are not counts, and float64 cannot hold all of them.
_MAX_INT = 1 << 63
# Access mode of files with secrets.
OWNER_ONLY = 0o600
_FOLDER_OWNER_ONLY = 0o700
# Seconds between two attempts to lock a folder.
_TRY_AGAIN_SECONDS = 0.05
# Maximum ratio of unpacked to packed size, for files that unpack to more than `_FREE_BYTES`.
_MAX_RATIO = 200
_FREE_BYTES = 1 << 26


@contextlib.contextmanager
def atomic_file(path: Path, owner_only: bool = False) -> Iterator[IO[bytes]]:
    """Yields a file to write; it replaces `path` when the block ends without an exception.

    The content is on disk before it gets its name, so a crash leaves no half-written file.

    Args:
        owner_only: Whether only the file's owner may read it, even under its temporary name.
    """
    with write_errors(path):
        if path.is_dir():
            raise UserError(f"{path}: cannot write: expected the name of a file, found a folder")
        temporary = temporary_path(path)
        try:
            if owner_only:
                # A killed process with the same id may have left this file, which would keep its
                # access mode.
                temporary.unlink(missing_ok=True)
            with open(temporary, "wb", opener=_for_owner if owner_only else None) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, OWNER_ONLY)


def append_line(path: Path, line: str) -> None:
    """Appends a line to an owner-only file; returns when content and name are on disk."""
    with write_errors(path):
        with open(path, "ab", opener=_for_owner) as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, so that a power cut loses no new files."""
    with write_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """Returns a temporary path next to `path`, specific to this process."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yields a folder next to `path` that only its owner can access, and removes it at the end.

    It holds clients' examples while `path` is written. The next call removes a folder that a killed
    process left behind.
    """
    _remove_left_scratch_folders(path.parent)
    folder = temporary_path(path.with_name(f"{path.name}{_SCRATCH}"))
    folder.mkdir(mode=_FOLDER_OWNER_ONLY)
    try:
        with folder_lock(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_scratch_folders(parent: Path) -> None:
    for entry in os.scandir(parent):
        match = _SCRATCH_FOLDER.fullmatch(entry.name)
        if match is None or not entry.is_dir(follow_symlinks=False):
            continue
        # The lock detects processes in other containers. On file systems without locks, the process
        # id must suffice.
        if int(match["pid"]) != os.getpid() and _is_running(int(match["pid"])):
            continue
        # Another process may remove the folder first, and another user's folder cannot be opened.
        with contextlib.suppress(UserError), folder_lock(Path(entry)) as is_left:
            if is_left:
                shutil.rmtree(entry, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def is_temporary(path: Path) -> bool:
    """Returns whether a file is the temporary file of an interrupted process."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_new_or_empty(path: Path) -> bool:
    """Returns whether `path` does not exist, or is a folder with only temporary files."""
    if not path.exists():
        return True
    return path.is_dir() and all(map(is_temporary, path.iterdir()))


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically; see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON atomically; see `atomic_file`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def finite_or_none(value: float) -> Optional[float]:
    """Returns the number; None if it is NaN or infinite, as JSON has no such numbers."""
    return value if math.isfinite(value) else None


def named_path(where: str, text: str) -> Path:
    """Returns a user's path; `where` is the place to name in errors, such as "--output_dir"."""
    if not text:
        raise UserError(f"{where}: expected a path, found an empty one")
    if "\0" in text:
        raise UserError(f"{where}: expected a path, found one with a NUL character: {text!r:.200}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: expected a path in UTF-8, found {os.fsencode(text)!r:.200}"
        ) from None
    return Path(text)


def open_file(path: Path, what: str) -> IO[bytes]:
    """Opens a regular file to read; raises a `UserError` for devices, and for pipes, which block.

    Args:
        what: The expected kind of file, for messages, such as "a JSON file".
    """
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except FileNotFoundError as e:
        raise UserError(f"{path}: expected {what}, found none") from e
    except OSError as e:
        raise UserError(f"{path}: expected {what}, cannot read it ({e.strerror or e})") from e
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path}: expected {what}, found a pipe, a socket or a device")
    return file


def _without_waiting(path: str, flags: int) -> int:
    # Without this flag, opening a pipe blocks until another process opens it to write.
    return os.open(path, flags | os.O_NONBLOCK)


def read_file(path: Path, what: str, most: int = _MAX_TEXT_BYTES) -> bytes:
    """Returns the content of a file; see `open_file`.

    Args:
        what: The expected kind of file, for messages.
        most: Maximum number of bytes.
    """
    try:
        with open_file(path, what) as file:
            content = file.read(most + 1)
    except OSError as e:
        raise UserError(f"{path}: expected {what}, cannot read it ({e.strerror or e})") from e
    if len(content) > most:
        raise UserError(f"{path}: expected {what} of at most {most} bytes, found more")
    return content


def read_text(path: Path, what: str) -> str:
    """Returns the text of a UTF-8 file; see `read_file`."""
    try:
        return read_file(path, what).decode()
    except UnicodeDecodeError as e:
        byte = f"byte 0x{e.object[e.start]:02x} at position {e.start}"
        raise UserError(f"{path}: expected {what} in UTF-8, found {byte}") from e


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file."""
    text = read_text(path, "a JSON file")
    try:
        content = json.loads(
            text,
            object_pairs_hook=_with_each_name_once,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_bounded_int,
        )
    except UserError as e:
        raise UserError(f"{path}: {e}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path}: expected a JSON file, cannot read it ({e})") from e
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Reject repeated names: JSON's parser would silently use the last value.
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in result if names.count(name) > 1)
        raise UserError(f"expected each name once in an object, found {twice!r:.100} twice")
    return result


def _finite(text: str) -> float:
    # Python accepts NaN and Infinity, which are not JSON, and reads 1e999 as infinity.
    if not math.isfinite(value := float(text)):
        raise UserError(f"expected finite numbers, found {text:.100}")
    return value


def _bounded_int(text: str) -> int:
    if abs(value := int(text)) >= _MAX_INT:
        raise UserError(f"expected whole numbers of at most 63 bits, found {text:.100}")
    return value


@contextlib.contextmanager
def csv_field_limit(characters: int) -> Iterator[None]:
    """Sets the maximum length of CSV fields, which applies to all readers of a process."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents."""
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def folder_lock(path: Path, wait: bool = False, patience: float = 0.0) -> Iterator[bool]:
    """Locks a folder for this process while the context lasts.

    Args:
        wait: Whether to wait until no other process has the lock.
        patience: Seconds to wait for the lock if `wait` is false.

    Yields:
        Whether this process has the lock; always true on file systems without locks.
    """
    with write_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
    try:
        # The kernel releases the lock when this process exits, even if it is killed.
        is_ours = _locked(descriptor, wait, time.monotonic() + patience)
    except OSError as e:
        # Continue without a lock, as some file systems do not support locks.
        logging.warning("%s: cannot be kept from other processes: %s", path, e.strerror)
        is_ours = True
    try:
        yield is_ours
    finally:
        os.close(descriptor)


def _locked(descriptor: int, wait: bool, deadline: float) -> bool:
    """Tries to lock a file until a deadline; returns whether this process has the lock."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TRY_AGAIN_SECONDS)
        else:
            return True


@contextlib.contextmanager
def folder_to_write_in(path: Path) -> Iterator[None]:
    """Creates a folder and its parents; removes those that are empty at the end."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    try:
        yield
    finally:
        # This removes empty folders, the innermost first.
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def check_can_be_made(folder: Path, flag: str) -> None:
    """Raises a `UserError` with the flag if a file is in the way of a folder."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--{flag}: expected a folder at {existing}, found a file")


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Replaces errors of the operating system by a `UserError` that names `path`."""
    try:
        yield
    except OSError as e:
        raise UserError(f"{path}: cannot write: {e.strerror or e}") from e


def digest(content: bytes) -> str:
    """Returns a short digest of bytes: 16 hexadecimal digits of their SHA-256."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def content_digest(facts: Any, arrays: Iterable[Any] = ()) -> str:
    """Returns the SHA-256 of JSON values and of arrays, including their dtypes and shapes."""
    result = hashlib.sha256(json.dumps(facts).encode())
    for array in map(np.asarray, arrays):
        # If an array contains Python objects, such as strings, hash their values: the array's bytes
        # are only their addresses.
        content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        result.update(f"{array.dtype}{array.shape}".encode())
        result.update(content)
    return result.hexdigest()


def file_digest(path: Path) -> str:
    """Returns the `digest` of a file's content, which may be larger than memory."""
    result = hashlib.sha256()
    try:
        with open_file(path, "a file") as file:
            while block := file.read(_BLOCK):
                result.update(block)
    except OSError as e:
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e
    return result.hexdigest()[:_DIGITS]


def keyed_digest(content: str) -> str:
    """Returns "KEY:HMAC", a fresh key and a string's HMAC-SHA256, for owner-only files.

    Without the key, a guess of the string cannot be verified.
    """
    key = secrets.token_hex(_KEY_BYTES)
    return f"{key}:{_hmac(key, content)}"


def is_keyed_digest(keyed: str, content: str) -> bool:
    """Whether `keyed` is a `keyed_digest` of a string."""
    key, _, mac = keyed.partition(":")
    return mac == _hmac(key, content)


def _hmac(key: str, content: str) -> str:
    return hmac.new(key.encode(), content.encode(), hashlib.sha256).hexdigest()


def read_npz(path: Path, what: str = "an .npz file of plain arrays") -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file.

    Args:
        what: The expected kind of file, for messages.
    """
    # Open the file only once, so that a concurrent replacement cannot mix contents.
    with open_file(path, what) as file:
        try:
            _check_unpacked_size(file)
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("a single array, as in .npy files")
            with archive:
                return {name: archive[name] for name in archive.files}
        except Exception as e:  # zip and npy document no list of exceptions for arbitrary bytes.
            raise UserError(
                f"{path}: expected {what}, found a damaged or another file ({_error_line(e)})"
            ) from e


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to an .npz file, atomically."""
    # Write to memory first: if the disk is full, NumPy's zip file would write again
    # when Python deletes it.
    content = io.BytesIO()
    np.savez(content, **arrays)
    with atomic_file(path) as file:
        file.write(content.getbuffer())


def _check_unpacked_size(file: IO[bytes]) -> None:
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


def _error_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check_free(folder: Path, flag: str) -> None:
    """Raises a `UserError` unless a folder is new or empty."""
    with write_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{flag}: expected a new or empty folder, found {folder}")


@contextlib.contextmanager
def new_folder(folder: Path, flag: str) -> Iterator[Path]:
    """Yields a folder that replaces `folder` when the block ends without an exception."""
    check_free(folder, flag)
    parent = folder.absolute().parent
    partial = temporary_path(folder.absolute())
    with write_errors(folder):
        missing = [path for path in (parent, *parent.parents) if not path.exists()]
        try:
            partial.mkdir(parents=True)
            yield partial
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            for path in missing:
                # This keeps folders that are not empty.
                with contextlib.suppress(OSError):
                    path.rmdir()


@contextlib.contextmanager
def tensorflow_writes() -> Iterator[None]:
    """Raises an `OSError` instead of TensorFlow's errors about files that cannot be written.

    The error omits TensorFlow's path, as its folder is often temporary, as in `new_folder`.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(max(level, WARNING))
    try:
        yield
    except tf.errors.OpError as e:
        # The message is "PATH; REASON [Op:NAME]", sometimes followed by further lines.
        line = e.message.splitlines()[0]
        raise OSError(line.partition(" [Op:")[0].rpartition("; ")[2]) from e
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def output_folder(given: Optional[Path], parent: Path, name: str, resume: bool) -> Iterator[Path]:
    """Yields a folder for the output files of a command.

    Commands that start at the same time get different folders. At the end, a folder without files
    is removed.

    Args:
        given: Folder that the user names, which is yielded unchanged; None for a new numbered
            folder.
        parent: Folder that contains the numbered folders.
        name: Name of the numbered folders, without the number.
        resume: Whether to use the newest folder with files, if one exists.
    """
    folder = _newest_used(parent, name) if resume and given is None else given
    if folder is not None:
        yield folder
        return
    had_parent = parent.exists()
    path = claimed_folder(parent, name)
    try:
        yield path
    finally:
        # This removes only empty folders.
        with contextlib.suppress(OSError):
            path.rmdir()
            if not had_parent:
                parent.rmdir()


def claimed_folder(parent: Path, name: str) -> Path:
    """Creates and returns the next numbered folder; no other process gets the same one."""
    for number in itertools.count(max(_numbered(parent, name), default=0) + 1):
        path = parent / f"{name}-{number:03d}"
        make_folder(parent)
        with write_errors(path):
            try:
                path.mkdir()
            except (FileExistsError, FileNotFoundError):
                # Another process created this folder, or removed the parent, in the meantime.
                continue
            return path
    raise AssertionError("counting does not end")


def _newest_used(parent: Path, name: str) -> Optional[Path]:
    """Returns the newest numbered folder that has files; None if there is none."""
    numbered = _numbered(parent, name)
    with write_errors(parent):
        used = [n for n, path in numbered.items() if path.is_dir() and any(path.iterdir())]
    return numbered[max(used)] if used else None


def _numbered(parent: Path, name: str) -> dict[int, Path]:
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    with write_errors(parent):
        siblings = list(parent.iterdir()) if parent.is_dir() else []
    matches = ((pattern.fullmatch(path.name), path) for path in siblings)
    return {int(match[1]): path for match, path in matches if match}
