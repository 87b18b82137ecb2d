"""Input files: found, opened, counted and decoded, with messages that name file and place."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tff_agnostic.errors import UserError
from tff_agnostic.importing.records.reading import ReadLog

_BUFFER = 1 << 20
# No text file has a line like this; other files may have no line ends at all.
_MAX_LINE = 1 << 26


class _Counted(io.RawIOBase):
    """A file that tells a log how many bytes were read from it."""

    def __init__(self, file: Any, log: ReadLog) -> None:
        self._file = file
        self._log = log

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)
        self._log.advance(size)
        return size


@contextlib.contextmanager
def open_input(path: Path, log: ReadLog) -> Iterator[IO[bytes]]:
    """Yields an input file, unpacked if its name ends in .gz.

    Raises:
        UserError: If it cannot be read, or, while it is read in this block, is truncated or
            damaged.
    """
    with reading_errors(path), open(path, "rb", buffering=0) as raw:
        file: Any = io.BufferedReader(_Counted(raw, log), _BUFFER)
        if path.suffix == ".gz":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER)  # type: ignore[arg-type]
        yield file


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turns what reading a file raises into a `UserError` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise UserError(
            f"{path}: expected a whole .gz file, found a truncated or damaged one ({e})"
        ) from e
    except OSError as e:
        if e.filename is not None and str(e.filename) != str(path):
            raise
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e


def decoded_lines(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their ends, without a byte-order mark.

    Raises:
        UserError: If it is not UTF-8; the message names the line and the byte.
    """
    offset, number = 0, 0
    while line := file.readline(_MAX_LINE):
        number += 1
        if len(line) == _MAX_LINE and not line.endswith(b"\n"):
            raise UserError(f"{path}:{number}: expected text, found a line of over {_MAX_LINE} B")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as e:
            raise not_utf8(path, offset + e.start, line[e.start]) from e
        yield text[1:] if number == 1 and text.startswith("\ufeff") else text
        offset += len(line)


def not_utf8(path: Path, offset: int, byte: int) -> UserError:
    """Returns the error for a byte that is not UTF-8."""
    return UserError(f"{path}: expected UTF-8, found byte 0x{byte:02x} at offset {offset}")


def input_paths(names: Sequence[str]) -> list[Path]:
    """Returns the paths of --input.

    Raises:
        UserError: If there are none, one is named twice, or does not exist.
    """
    if not names or not all(names):
        raise UserError(f"--input: expected files or folders, found {','.join(names)!r}")
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.exists():
            raise UserError(f"--input: {path} does not exist")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError(f"--input: expected different files, found {','.join(names)!r}")
    return paths


def expand(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """Returns files as they are, and of folders the files below with these suffixes, sorted.

    Raises:
        UserError: If a folder has none, or a file is empty.
    """
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(f for f in path.rglob("*") if f.name.endswith(tuple(suffixes)))
            if not found:
                raise UserError(f"{path}: expected files {' or '.join(suffixes)}, found none")
        files += found
    for file in files:
        check_not_empty(file)
    return files


def check_not_empty(path: Path) -> None:
    """Raises a `UserError` if a file has no bytes."""
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(f"{path}: expected data, found an empty file")


def place_of(path: Path, inputs: Sequence[Path]) -> str:
    """Returns a file's name in places: below its input, so that moving that changes no split."""
    roots = [root for root in inputs if root in path.parents]
    return path.relative_to(roots[0]).as_posix() if roots else path.name
