"""Input files: decompression, size limits, text decoding, and paths."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Callable, Optional, cast

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import open_file
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.importing.options import FREE_MB, MB, UTF_8, ImportOptions
from tff_agnostic.importing.source import ReadLog

_BUFFER = 1 << 20


class InputFile(io.BufferedReader):
    """An input file with size limits, which is decompressed while it is read.

    Attributes:
        limits: Counter of the bytes in the file and in its current record.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        super().__init__(limits, _BUFFER)


class Limits(io.RawIOBase):
    """An unbuffered input file that rejects large records and decompression bombs.

    Args:
        path: Path of the file; its suffix determines the decompression.
        packed: The opened file, possibly compressed.
        options: Options of the import, with the limits.
        log: Log that counts the bytes read from the file.

    Attributes:
        unpacked: Number of decompressed bytes read so far.
    """

    def __init__(self, path: Path, packed: IO[bytes], options: ImportOptions, log: ReadLog) -> None:
        self.unpacked = 0
        self._record_start = 0
        self._path = path
        self._packed = packed
        self._options = options
        self._log = log
        self._place = 0
        self._packed_size = os.fstat(packed.fileno()).st_size
        unpack = _UNPACK.get(path.suffix.lower())
        self._is_packed = unpack is not None
        self._file: Any = packed if unpack is None else unpack(path, packed)

    def check_claimed(self, size: int) -> None:
        """Checks the decompressed size that the file claims, before reading its content."""
        if self._is_packed:
            check_unpacked(self._path, self._packed_size, size, self._options)

    def end_record(self) -> None:
        """Starts a new record, whose size counts from 0."""
        self._record_start = self.unpacked

    def readable(self) -> bool:
        """See `io.RawIOBase.readable`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase.readinto`."""
        size: int = self._file.readinto(buffer)
        self.unpacked += size
        place = self._packed.tell()
        self._log.advance(place - self._place)
        self._place = place
        if self.unpacked - self._record_start > self._options.max_record_bytes + _BUFFER:
            raise too_large_record(self._path, self._options)
        if self._is_packed:
            check_unpacked(self._path, place, self.unpacked, self._options)
        return size


def _unzipped(path: Path, file: Any) -> Any:
    """Opens the only file in a zip archive."""
    archive = zipfile.ZipFile(file)
    names = [name for name in archive.namelist() if not name.endswith("/")]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise UserError(
            f"{path}: expected an archive of one file, found {', '.join(names[:3]) or 'none'}"
        )
    return archive.open(names[0])


# Decompression functions by suffix of the file.
_UNPACK: Mapping[str, Callable[[Path, Any], Any]] = {
    ".gz": lambda _, file: gzip.GzipFile(fileobj=file),
    ".bz2": lambda _, file: bz2.BZ2File(file),
    ".zip": _unzipped,
}


def check_unpacked(path: Path, packed: int, unpacked: int, options: ImportOptions) -> None:
    """Checks the decompressed size of an input, or of one of its parts.

    Args:
        packed: Compressed size in bytes.
        unpacked: Decompressed size in bytes, as counted or as claimed by the file.
    """
    if unpacked > options.max_unpacked_mb * MB:
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_mb} MB when unpacked "
            f"(max_unpacked_mb), found more"
        )
    if unpacked > max(FREE_MB * MB, options.max_unpacked_ratio * packed):
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_ratio} times its size when unpacked "
            f"(max_unpacked_ratio), found {unpacked / MB:.0f} MB in {packed / MB:.3g} MB"
        )


def too_large_record(path: Path, options: ImportOptions) -> UserError:
    """Returns the error for a record with more bytes than the options allow."""
    return UserError(
        f"{path}: expected records of at most {options.max_record_mb} MB (max_record_mb), found "
        "a larger one"
    )


@contextlib.contextmanager
def open_input(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[InputFile]:
    """Opens an input file, and decompresses it if its name ends in .gz, .bz2 or .zip."""
    with reading_errors(path), open_file(path, "a file") as packed:
        yield InputFile(Limits(path, packed, options, log))


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Converts errors while reading a file to a `UserError` with its path."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as e:
        raise _damaged(path, e) from e
    except OSError as e:
        if e.filename is not None and str(e.filename) != str(path):
            raise
        if e.errno is None and path.suffix in _UNPACK:
            raise _damaged(path, e) from e
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: expected a whole {path.suffix} file, found a truncated or damaged one ({error})"
    )


def decoded_lines(
    file: IO[bytes], path: Path, options: Optional[ImportOptions] = None
) -> Iterator[str]:
    """Yields the lines of a text file, with their line ends, without a byte-order mark.

    Args:
        path: Path of the file, for messages.
        options: Options with the encoding; None for UTF-8 only.
    """
    if options is not None:
        start = cast(Any, file).peek(_LONGEST_MARK)
        for mark, result in _NO_TEXT.items():
            if start.startswith(mark):
                raise UserError(f"{path}: expected text, found {result}")
    errors = "strict" if options is None else options.encoding_errors
    if options is None or options.encoding == UTF_8:
        yield from _utf8_lines(file, path, errors, has_options=options is not None)
        return
    # Find lines in the decoded text: bytes of a line end may be parts of other characters.
    with io.TextIOWrapper(cast(BinaryIO, file), options.encoding, errors, newline="") as lines:
        number = 0
        try:
            for line in lines:
                number += 1
                yield line
        except UnicodeError as e:
            raise UserError(
                f"{path}: expected text in {options.encoding} (encoding), found invalid bytes "
                f"after line {number} ({e})"
            ) from e


def _utf8_lines(file: IO[bytes], path: Path, errors: str, has_options: bool) -> Iterator[str]:
    number = 0
    while line := file.readline():
        number += 1
        try:
            text = line.decode("utf-8", errors)
        except UnicodeDecodeError as e:
            hint = _other_encoding(line, number) if has_options else ""
            column = len(line[: e.start].decode("utf-8")) + 1
            raise not_utf8(path, number, column, line[e.start], hint) from e
        yield text[1:] if number == 1 and text.startswith("\ufeff") else text


def _other_encoding(line: bytes, number: int) -> str:
    """Returns advice on a file with a line that is not UTF-8."""
    if number == 1 and line.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return " (it begins as UTF-32 does: save it as UTF-8)"
    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return " (it begins as UTF-16 does: encoding=utf-16 reads it)"
    try:
        line.decode("cp1252")
    except UnicodeDecodeError:
        return " (encoding_errors=replace replaces it)"
    return " (encoding=cp1252 is for what Excel writes; encoding_errors=replace replaces it)"


def not_utf8(path: Path, line: int, column: int, byte: int, hint: str = "") -> UserError:
    """Returns the error for a byte that is not UTF-8."""
    return UserError(
        f"{path}:{line}: expected UTF-8, found byte 0x{byte:02x} in column {column}{hint}"
    )


# Descriptions of formats that are not text, by the first bytes of a file.
_NO_TEXT = {
    b"PK\x03\x04": "an archive, as spreadsheets are (save the sheet as CSV; a zipped CSV is read "
    "if its name ends in .zip)",
    b"PAR1": "a Parquet file (format=parquet reads it)",
    b"BZh": "a bzip2 file (it is read if its name ends in .bz2)",
    b"\x1f\x8b": "a gzip file (it is read if its name ends in .gz)",
    b"\x80\x04\x95": "a pickle, which may run code (write the table as Parquet or CSV)",
    b"\x80\x05\x95": "a pickle, which may run code (write the table as Parquet or CSV)",
    b"\xd0\xcf\x11\xe0": "a spreadsheet (save the sheet as CSV)",
    b"SQLite format 3": "an SQLite database (write the table as CSV or Parquet)",
}
_LONGEST_MARK = max(map(len, _NO_TEXT))


def input_paths(options: ImportOptions) -> list[Path]:
    """Returns the paths in the option `input`, after checking that they exist."""
    names = options.input
    if not names or not all(names):
        result = ",".join(names) if names else Verbatim("none")
        raise options.error("input", "files or folders", result)
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.exists():
            raise options.error("input", "files or folders", Verbatim(f"nothing at {path}"))
    if len({path.resolve() for path in paths}) < len(paths):
        raise options.error("input", "different files", ",".join(names))
    return paths


def expand(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """Returns the given files, and the files with these suffixes in the given folders, sorted."""
    endings = tuple(suffix.lower() for suffix in suffixes)
    files: list[Path] = []
    for path in paths:
        result = [path]
        if path.is_dir():
            result = sorted(f for f in path.rglob("*") if f.name.lower().endswith(endings))
            if not result:
                raise UserError(f"{path}: expected files {' or '.join(suffixes)}, found none")
        files += result
    seen: set[Path] = set()
    for file in files:
        check_is_file(file)
        if file.resolve() in seen:
            raise OptionError("input", "each file once", Verbatim(f"{file} in several inputs"))
        seen.add(file.resolve())
    return files


def check_is_file(path: Path) -> None:
    """Raises a `UserError` if a path is not a regular file, or is an empty one."""
    with open_file(path, "a file") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise UserError(f"{path}: expected data, found an empty file")


def input_place(path: Path, inputs: Sequence[Path]) -> str:
    """Returns a file's path within its input folder, so that moving the folder keeps splits."""
    roots = [root for root in inputs if root in path.parents]
    return path.relative_to(roots[0]).as_posix() if roots else path.name
