"""NumPy files, read in blocks of rows: arrays of features, labels, clients and domains.

Each row is one example. Arrays whose names end in _train, _heldout or _test go to that split.
"""

from __future__ import annotations

import contextlib
import math
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import LABEL, Record
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import (
    PIXELS,
    VECTOR,
    Labels,
    check_finite,
    is_images,
    name_in,
    to_float32,
    unit_interval,
)
from tff_agnostic.importing.columns import require_client_and_domain
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import (
    Format,
    ReadLog,
    RecordError,
    SourceExample,
    check_unpacked,
    too_large_record,
)

_BLOCK_ROWS = 1024
_SUFFIX = ".npy"
_MAX_FOUND = 200
_BLOCK_BYTES = 1 << 24


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the rows of all files, a block of rows in memory at a time."""
    columns = _columns(options)
    labels = Labels(options)
    for path in find_inputs(paths):
        with NpzColumns(path, options) as archive:
            for split, suffix in _parts(archive.names, columns, path):
                names = {role: name + suffix for role, name in columns.items()}
                part = source.place_of(path, paths) + suffix
                for start, rows in _rows(archive, names, log):
                    yield from _examples(rows, start, part, split, options, labels, log)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the .npz files."""
    return source.expand(paths, (".npz",))


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if columns are missing or superfluous."""
    if len(options.feature_columns) > 1:
        raise UserError(
            f"--feature_columns: expected the name of one array with --format=npz, found "
            f"{','.join(options.feature_columns)}"
        )
    require_client_and_domain(options)


def _columns(options: ImportOptions) -> dict[str, str]:
    """Returns the name of the array for each role."""
    columns = {
        "features": options.feature_columns[0] if options.feature_columns else "x",
        "label": options.label_column or "y",
        "client": options.client_column or "",
    }
    if options.domain_column is not None:
        columns["domain"] = options.domain_column
    return columns


def _parts(
    found: Sequence[str], columns: Mapping[str, str], path: Path
) -> list[tuple[Optional[str], str]]:
    """Returns the split and the suffix of the names of each part of a file."""
    suffixes = [("" if split is None else f"_{split}", split) for split in (*SPLIT_NAMES, None)]
    parts = [(split, suffix) for suffix, split in suffixes if columns["features"] + suffix in found]
    wanted = [name + suffix for _, suffix in parts for name in columns.values()]
    missing = [name for name in wanted or columns.values() if name not in found]
    if missing:
        raise UserError(
            f"{path}: expected an array {missing[0]} (or with _train and _test), found "
            f"{', '.join(found) or 'none'}"
        )
    return parts


class NpzColumns:
    """The arrays of an .npz file; a context manager.

    Args:
        options: Options of the import, with its limits.
    """

    def __init__(self, path: Path, options: ImportOptions) -> None:
        self._path = path
        self._options = options
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as e:  # There is no list of what zip raises on arbitrary bytes.
            raise self._damaged(e) from e
        names = [name for name in self._zip.namelist() if name.endswith(_SUFFIX)]
        self.names = [name[: -len(_SUFFIX)] for name in names]

    def __enter__(self) -> NpzColumns:
        """Does nothing more."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the file."""
        self._zip.close()

    def blocks(
        self, names: Sequence[str], num_rows: int
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yields the compressed size read so far, and the next rows of each array.

        Args:
            names: Which arrays; they have to have the same number of rows.
            num_rows: Rows of a block; fewer are read if they are large.
        """
        try:
            for member in (self._zip.getinfo(name + _SUFFIX) for name in names):
                check_unpacked(self._path, member.compress_size, member.file_size, self._options)
            # The archive stays open as long as one of its members does.
            with contextlib.ExitStack() as members:
                columns = {
                    name: _Column(members.enter_context(self._zip.open(name + _SUFFIX)), name)
                    for name in names
                }
                lengths = {name: column.num_rows for name, column in columns.items()}
                if len(set(lengths.values())) > 1:
                    found = ", ".join(f"{name} {length}" for name, length in lengths.items())
                    raise UserError(f"{self._path}: expected arrays of one length, found {found}")
                total = next(iter(lengths.values()))
                largest = max(column.row_bytes for column in columns.values())
                if largest > self._options.max_record_bytes:
                    raise too_large_record(self._path, self._options)
                num_rows = max(1, min(num_rows, _BLOCK_BYTES // max(1, largest)))
                compressed = sum(self._zip.getinfo(name + _SUFFIX).compress_size for name in names)
                for start in range(0, total, num_rows):
                    size = min(num_rows, total - start)
                    rows = {name: column.next_rows(size) for name, column in columns.items()}
                    yield compressed * (start + size) // total, rows
                for column in columns.values():
                    column.check_end()
        except UserError:
            raise
        except Exception as e:  # Nor of what npy does.
            raise self._damaged(e) from e

    def _damaged(self, error: Exception) -> UserError:
        # Some messages hold a part of the file.
        found = " ".join(str(error).split())[:_MAX_FOUND] or type(error).__name__
        return UserError(
            f"{self._path}: expected an .npz file of plain arrays, found a damaged or another file "
            f"({found})"
        )


def _rows(
    archive: NpzColumns, names: Mapping[str, str], log: ReadLog
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    start = before = 0
    for size, arrays in archive.blocks(list(dict.fromkeys(names.values())), _BLOCK_ROWS):
        yield start, {role: arrays[name] for role, name in names.items()}
        start += len(arrays[names["features"]])
        log.advance(size - before)
        before = size


def _examples(
    rows: Mapping[str, np.ndarray],
    start: int,
    part: str,
    split: Optional[str],
    options: ImportOptions,
    labels: Labels,
    log: ReadLog,
) -> Iterator[SourceExample]:
    features = rows["features"]
    images = is_images(features.dtype, features.shape[1:])
    if features.dtype.kind not in "iufb":
        raise UserError(f"{part}: expected numbers as features, found {features.dtype}")
    for role in ("label", "client", "domain"):
        if role in rows and rows[role].ndim != 1:
            shape = list(rows[role].shape[1:])
            raise UserError(f"{part}: expected one {role} in a row, found an array {shape}")
        if role in rows:
            _check_characters(rows[role], f"{part}: {role}", start)
    name = options.feature_name or (PIXELS if images else VECTOR)
    values = unit_interval(features) if images else to_float32(features)
    for i in range(len(values)):
        log.num_records += 1
        place = f"{part} row {start + i}"
        client = None
        try:
            client = _name(rows["client"][i], "client", place)
            domain = str(options.domain_name)
            if "domain" in rows:
                domain = _name(rows["domain"][i], "domain", place)
            label = labels.number_of(_plain(rows["label"][i], place), place)
            record = Record(
                client, domain, {name: check_finite(values[i], place), LABEL: label}, split
            )
        except RecordError as e:
            log.bad(e, client)
            continue
        yield SourceExample(record, place)


def _check_characters(texts: np.ndarray, what: str, start: int) -> None:
    """Checks that texts hold characters: NumPy takes any 32 bits for one."""
    if texts.dtype.kind != "U":
        return
    codes = texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    is_none = (codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))
    if is_none.any():
        at = int(np.argmax(is_none))
        row = start + at // (codes.size // len(texts))
        raise UserError(f"{what}: expected text, found the character {codes[at]:#x} in row {row}")


def _plain(value: Any, place: str) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as e:
        raise RecordError(
            place, "text that is not UTF-8", f"expected UTF-8, found byte 0x{value[e.start]:02x}"
        ) from None


def _name(value: Any, what: str, place: str) -> str:
    name = name_in(_plain(value, place), place)
    if name is None:
        raise RecordError(
            place,
            f"empty {what}",
            f"expected a name or number as {what}, found {value!r} (--bad_records=skip leaves out "
            "records without one)",
        )
    return name


FORMAT = Format(
    summary="NumPy .npz with arrays of features, labels, clients and domains",
    read=source.in_rows(read),
    find_inputs=find_inputs,
    check=check,
)


class _Column:
    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        version = np.lib.format.read_magic(self._file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, self._dtype = read_header(self._file)
        if self._dtype.hasobject:
            raise ValueError(f"{name} holds pickled objects, which are refused")
        if not shape or (fortran_order and len(shape) > 1):
            raise ValueError(f"{name} is a single value or an array in Fortran order")
        if min(shape) < 0:
            raise ValueError(f"{name} has the shape {shape}")
        self.num_rows = int(shape[0])
        self._row_shape = shape[1:]
        self.row_bytes = math.prod(self._row_shape) * self._dtype.itemsize

    def next_rows(self, count: int) -> np.ndarray:
        size = count * self.row_bytes
        content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends early")
        return np.frombuffer(content, self._dtype).reshape(count, *self._row_shape)

    def check_end(self) -> None:
        # Only where it is read to its end is its checksum looked at.
        if self._file.read(1):
            raise ValueError(f"{self._name} goes on after its {self.num_rows} rows")
