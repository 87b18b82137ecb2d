"""NumPy files: arrays of features, labels, clients and domains, read into memory.

Each row is one example. Arrays whose names end in _train, _heldout or _test go to that split.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Verbatim
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import VECTOR, not_finite, to_float32
from tff_agnostic.importing.columns import ROW, Block, Columns, Errors, require_client_and_domain
from tff_agnostic.importing.images import PIXELS, is_images, unit_interval
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, Rows, check_unpacked, too_large_record

_BLOCK_ROWS = 1024
_SUFFIX = ".npy"
_MAX_FOUND = 200


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
    """Yields the rows of all files, the arrays of one split in memory at a time."""
    columns = _columns(options)
    rows_are_clients = options.client_column == ROW
    for path in find_inputs(paths):
        with source.reading_errors(path):
            names = _names(path)
        for split, suffix in _parts(names, columns, path):
            arrays = {role: _array(path, name + suffix, options) for role, name in columns.items()}
            part = source.place_of(path, paths) + suffix
            _check(arrays, path, part)
            log.advance(path.stat().st_size // len(names))
            named = dataclasses.replace(options, label_column=columns["label"])
            converter = Columns(named, rows_are_clients and "client" not in arrays)
            cells = {columns[role]: array for role, array in arrays.items() if role != "features"}
            for rows in _rows(arrays["features"], cells, part, named, converter, log):
                own = pa.array([split] * len(rows), pa.string())
                yield dataclasses.replace(rows, split=own)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the .npz files."""
    return source.expand(paths, (".npz",))


def check(options: ImportOptions) -> None:
    """Raises an `OptionError` if columns are missing or superfluous."""
    if len(options.feature_columns) > 1:
        expected = "the name of one array with format=npz"
        raise options.error(
            "feature_columns", expected, Verbatim(",".join(options.feature_columns))
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


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, UserError):
        raise
    except Exception as e:  # There is no list of what zip raises on arbitrary bytes.
        raise _damaged(path, e) from e
    return [name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]


def _parts(
    found: Sequence[str], columns: dict[str, str], path: Path
) -> list[tuple[Optional[str], str]]:
    """Returns the split and the suffix of the names of each part of a file."""
    suffixes = [("" if split is None else f"_{split}", split) for split in (*SPLIT_NAMES, None)]
    parts = [(split, suffix) for suffix, split in suffixes if columns["features"] + suffix in found]
    if columns["client"] == ROW and not any(ROW + suffix in found for _, suffix in parts):
        del columns["client"]
    wanted = [name + suffix for _, suffix in parts for name in columns.values()]
    missing = [name for name in wanted or columns.values() if name not in found]
    if missing:
        raise UserError(
            f"{path}: expected an array {missing[0]} (or with _train and _test), found "
            f"{', '.join(found) or 'none'}"
        )
    return parts


def _array(path: Path, name: str, options: ImportOptions) -> np.ndarray:
    """Returns an array of a file, after checking the sizes that it claims."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(name + _SUFFIX)
            check_unpacked(path, member.compress_size, member.file_size, options)
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, is_fortran, dtype = header(file)
                if dtype.hasobject:
                    raise ValueError(f"{name} holds pickled objects, which are refused")
                if not shape or min(shape) < 0:
                    raise ValueError(f"{name} has the shape {shape}")
                row_bytes = math.prod(shape[1:]) * dtype.itemsize
                if row_bytes > options.max_record_bytes:
                    raise too_large_record(path, options)
                size = shape[0] * row_bytes
                content = file.read(size)
                if len(content) < size:
                    raise EOFError("it ends early")
                # Only where it is read to its end is its checksum looked at.
                if file.read(1):
                    raise ValueError(f"{name} goes on after its {shape[0]} rows")
        array = np.frombuffer(content, dtype)
        # The last index of an array in Fortran order is the slowest.
        return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
    except UserError:
        raise
    except Exception as e:  # Nor of what npy does.
        raise _damaged(path, e) from e


def _damaged(path: Path, error: Exception) -> UserError:
    # Some messages hold a part of the file.
    found = " ".join(str(error).split())[:_MAX_FOUND] or type(error).__name__
    return UserError(
        f"{path}: expected an .npz file of plain arrays, found a damaged or another file ({found})"
    )


def _check(arrays: dict[str, np.ndarray], path: Path, part: str) -> None:
    """Checks types and shapes; labels, clients and domains [n, 1] become [n]."""
    lengths = {role: len(array) for role, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{role} {length}" for role, length in lengths.items())
        raise UserError(f"{path}: expected arrays of one length, found {found}")
    if arrays["features"].dtype.kind not in "iufb":
        raise UserError(f"{part}: expected numbers as features, found {arrays['features'].dtype}")
    for role in arrays.keys() - {"features"}:
        array = arrays[role]
        if array.ndim == 2 and array.shape[1] == 1:
            arrays[role] = array = array[:, 0]
        if array.ndim != 1:
            shape = list(array.shape[1:])
            raise UserError(f"{part}: expected one {role} in a row, found an array {shape}")
        _check_characters(array, f"{part}: {role}")


def _check_characters(texts: np.ndarray, what: str) -> None:
    """Checks that texts hold characters: NumPy takes any 32 bits for one."""
    if texts.dtype.kind != "U" or not texts.dtype.itemsize:
        return
    texts = np.ascontiguousarray(texts)
    codes = texts.view(np.dtype(f"{texts.dtype.byteorder}u4"))
    is_none = (codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))
    if is_none.any():
        at = int(np.argmax(is_none))
        row = at // (codes.size // len(texts))
        raise UserError(f"{what}: expected text, found the character {codes[at]:#x} in row {row}")


def _rows(
    features: np.ndarray,
    columns: Mapping[str, np.ndarray],
    part: str,
    options: ImportOptions,
    converter: Columns,
    log: ReadLog,
) -> Iterator[Rows]:
    images = is_images(features.dtype, features.shape[1:])
    name = options.feature_name or (PIXELS if images else VECTOR)
    for start in range(0, len(features), _BLOCK_ROWS):
        if options.max_records is not None and log.num_records >= options.max_records:
            return
        end = start + _BLOCK_ROWS
        if options.max_records is not None:
            end = min(end, start + options.max_records - log.num_records)
        values = features[start:end]
        values = unit_interval(values) if images else to_float32(values)
        flat = values.reshape(len(values), -1)
        errors: Errors = {}
        for row in np.flatnonzero(~np.isfinite(flat).all(axis=1)).tolist():
            at = int(np.flatnonzero(~np.isfinite(flat[row]))[0])
            errors[row] = not_finite(flat[row, at], f"as number {at + 1}")
        cells = {name: array[start:end].tolist() for name, array in columns.items()}
        block = Block(cells, lambda k, start=start: f"{part} row {start + k}")  # type: ignore[misc]
        yield from converter.with_features(block, {name: values}, errors, log)


FORMAT = Format(
    summary="NumPy .npz with arrays of features, labels, clients and domains",
    read=read,
    find_inputs=find_inputs,
    check=check,
)
