"""Reader of NumPy .npz files with arrays of features, labels, clients and domains.

Each row is an example. The suffixes _train, _heldout and _test of an array's name select a split.
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import open_file
from tff_agnostic.base.options import Verbatim
from tff_agnostic.importing import files
from tff_agnostic.importing.arrow_tables import frame_blocks
from tff_agnostic.importing.columns import Block
from tff_agnostic.importing.images import PIXELS, unit_interval
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, Rows
from tff_agnostic.importing.table_options import (
    VECTOR,
    columns_in_errors,
    needed_columns,
    require_client_and_domain,
)
from tff_agnostic.importing.tables import BLOCK_ROWS, Table, table_rows

_SUFFIX = ".npy"
_MAX_FOUND = 200


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
    """Yields the rows of all files, with the arrays of one file in memory at a time."""
    options = dataclasses.replace(
        options,
        feature_columns=options.feature_columns or ("x",),
        label_column=options.label_column or "y",
    )
    (features,) = options.feature_columns
    for path in find_inputs(paths):
        names, arrays = _arrays(path, options)
        suffixes = {f"_{split}": split for split in SPLIT_NAMES} | {"": None}
        parts = [suffix for suffix in suffixes if features + suffix in arrays]
        if not parts:
            raise UserError(
                f"{path}: expected an array {features} (or with _train and _test), found "
                f"{', '.join(names) or 'none'}"
            )
        for suffix in parts:
            named = {name: name + suffix for name in needed_columns(options)}
            part = {name: arrays[key] for name, key in named.items() if key in arrays}
            place = files.input_place(path, paths) + suffix
            header = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
            shaped, blocks = _blocks(part, features, place, options)
            for rows in table_rows(shaped, Table(header, blocks), place, log):
                split = pa.array([suffixes[suffix]] * len(rows), pa.string())
                yield dataclasses.replace(rows, split=split)
        log.advance(path.stat().st_size)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the .npz files."""
    return files.expand(paths, (".npz",))


def check(options: ImportOptions) -> None:
    """Raises an `OptionError` if columns are missing or superfluous."""
    if len(options.feature_columns) > 1:
        expected = "the name of one array with format=npz"
        names = Verbatim(",".join(options.feature_columns))
        raise options.error("feature_columns", expected, names)
    with columns_in_errors(options, lambda path: _arrays(path, options)[0], find_inputs):
        require_client_and_domain(options)


def _arrays(path: Path, options: ImportOptions) -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns the names of all arrays in a file, and the arrays that the options name."""
    endings = ("", *(f"_{split}" for split in SPLIT_NAMES))
    wanted = {name + ending for name in needed_columns(options) for ending in endings}
    arrays = {}
    try:
        with open_file(path, "a file") as file, zipfile.ZipFile(file) as archive:
            members = {m.filename.removesuffix(_SUFFIX): m for m in archive.infolist()}
            for name, member in members.items():
                if name not in wanted:
                    continue
                files.check_unpacked(path, member.compress_size, member.file_size, options)
                with archive.open(member) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
                    # Read to the end of the zip's member, where its checksum is verified.
                    if content.read(1):
                        raise ValueError(f"{name} continues after its last row")
                if (
                    math.prod(arrays[name].shape[1:]) * arrays[name].itemsize
                    > options.max_record_bytes
                ):
                    raise files.too_large_record(path, options)
    except UserError:
        raise
    except Exception as e:  # zip and npy document no list of exceptions for arbitrary bytes.
        # Truncate the message, which may contain a part of the file.
        reason = " ".join(str(e).split())[:_MAX_FOUND] or type(e).__name__
        raise UserError(
            f"{path}: expected an .npz file of plain arrays, found a damaged or another file "
            f"({reason})"
        ) from e
    return list(members), arrays


def _blocks(
    arrays: dict[str, np.ndarray], features: str, place: str, options: ImportOptions
) -> tuple[ImportOptions, Callable[[Mapping[str, int]], Iterator[Block]]]:
    """Returns the options with the features' name and shape, and the function `Table.blocks`."""
    count, *shape = arrays[features].shape or (0,)
    images = arrays[features].dtype == np.uint8 and len(shape) >= 2
    if arrays[features].dtype.kind not in "biuf":
        raise UserError(f"{place}: expected numbers as features, found {arrays[features].dtype}")
    options = dataclasses.replace(
        options,
        feature_name=options.feature_name or (PIXELS if images else VECTOR),
        feature_shape=tuple(shape) if len(shape) > 1 else (),
    )

    def blocks(places: Mapping[str, int]) -> Iterator[Block]:
        lengths = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in places}
        if set(lengths.values()) != {count}:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"{place}: expected arrays of one length, found {listed}")
        for start in range(0, count, BLOCK_ROWS):
            frame = {name: arrays[name][start : start + BLOCK_ROWS] for name in places}
            values = unit_interval(frame[features]) if images else frame[features]
            frame[features] = values.reshape(len(values), -1)
            yield from frame_blocks(frame, f"{place} row", start)

    return options, blocks


FORMAT = Format(
    read=read,
    find_inputs=find_inputs,
    check=check,
)
