"""Parquet files and data frames, in batches of Arrow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.base.errors import UserError
from tff_agnostic.importing.columns import Block
from tff_agnostic.importing.files import check_unpacked, too_large_record
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Read, ReadLog, Rows
from tff_agnostic.importing.tables import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Table,
    table_format,
    table_rows,
)

# Number of rows in a batch with images, which may have a megabyte each.
_BATCH_IMAGES = 64
# Parquet's physical type of strings and bytes.
_TEXTS = "BYTE_ARRAY"
_BYTES_OF = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, _TEXTS: 4, "INT96": 12}


@contextlib.contextmanager
def _open_parquet(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Table]:
    with _opened(path) as file:
        yield Table(
            file.schema_arrow.names,
            lambda needed: _parquet_blocks(options, path, name, [*needed], file, log),
        )


@contextlib.contextmanager
def _opened(path: Path, **how: Any) -> Iterator[Any]:
    # Import on demand, as it takes time and no other format needs it.
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False, **how) as table:
            yield table
    except (pa.ArrowException, OSError) as e:
        reason = " ".join(str(e).split())
        raise UserError(
            f"{path}: expected a Parquet file, found a damaged or another file ({reason})"
        ) from e


def _parquet_blocks(
    options: ImportOptions, path: Path, name: str, needed: list[str], file: Any, log: ReadLog
) -> Iterator[Block]:
    texts = _checked_texts(options, path, needed, file.metadata)
    size, total = path.stat().st_size, file.metadata.num_rows
    number = unpacked = 0
    rows = _BATCH_IMAGES if options.image_columns else BLOCK_ROWS
    with _opened(path, read_dictionary=texts) as table:
        for batch in table.iter_batches(rows, columns=needed):
            before = number
            for piece, num_bytes in _pieces(batch, options, path):
                unpacked += num_bytes
                check_unpacked(path, size, unpacked, options)
                yield _to_block(piece, f"{name} row", number + 1)
                number += len(piece)
            log.advance(size * number // total - size * before // total)


def _to_block(batch: pa.RecordBatch, where: str, first: int) -> Block:
    """Returns a batch as a block.

    Args:
        where: Text before the row number in a row's location.
        first: Number of the first row.
    """
    columns = dict(zip(batch.schema.names, map(_plain, batch.columns)))
    return Block(columns, lambda k: f"{where} {first + k}")


def _plain(cells: pa.Array) -> pa.Array:
    """Decodes a dictionary array, and casts large strings and bytes to ordinary ones."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_large_string(cells.type):
        cells = cells.cast(pa.string())
    return cells.cast(pa.binary()) if pa.types.is_large_binary(cells.type) else cells


def _checked_texts(
    options: ImportOptions, path: Path, needed: Sequence[str], metadata: Any
) -> list[str]:
    """Checks a file's claimed sizes, and returns its columns of strings and bytes.

    These columns must be read as dictionaries: a few bytes of a file can repeat a string in all
    rows.
    """
    texts, unpacked = [], 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            where = chunk.path_in_schema
            if not any(where == name or where.startswith(f"{name}.") for name in needed):
                continue
            # Estimate the size in memory, as a run of equal values takes almost no bytes in files.
            in_memory = chunk.num_values * _BYTES_OF.get(chunk.physical_type, 1)
            unpacked += max(chunk.total_uncompressed_size, in_memory)
            if chunk.physical_type == _TEXTS and where not in texts:
                texts.append(where)
    check_unpacked(path, path.stat().st_size, unpacked, options)
    return texts


def _pieces(batch: Any, options: ImportOptions, path: Path) -> Iterator[tuple[Any, int]]:
    """Splits a batch into pieces of about `BLOCK_BYTES`; yields (piece, size in bytes)."""
    num_bytes = sum(map(_row_bytes, batch.columns))
    if num_bytes > BLOCK_BYTES and len(batch) > 1:
        half = len(batch) // 2
        yield from _pieces(batch.slice(0, half), options, path)
        yield from _pieces(batch.slice(half), options, path)
        return
    if num_bytes > max(BLOCK_BYTES, options.max_record_bytes):
        raise too_large_record(path, options)
    yield batch, num_bytes


def _row_bytes(column: Any) -> int:
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(_row_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _row_bytes(column.flatten())
    if not pa.types.is_dictionary(kind):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(column.indices.nbytes) + (pc.sum(lengths).as_py() or 0)


PARQUET = table_format((".parquet", ".pq"), _open_parquet)


def frame_reader(frame: Any) -> Read:
    """Returns the function that reads a data frame; see `Format.read`.

    Args:
        frame: A mapping from column names to arrays, a Hugging Face data set, or an object with
            Arrow's `__arrow_c_stream__` (a pandas or polars data frame, an Arrow table, a DuckDB
            relation).
    """

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        del paths
        table = _to_table(frame)

        def blocks(places: Mapping[str, int]) -> Iterator[Block]:
            selected = table.select([*places.values()]).rename_columns([*places])
            return frame_blocks(selected, "row", 1)

        yield from table_rows(options, Table(table.column_names, blocks), "the table", log)

    return read


def frame_blocks(frame: Any, where: str, first: int) -> Iterator[Block]:
    """Yields the rows of a data frame in blocks.

    Args:
        frame: The data frame; see `frame_reader`.
        where: Text before the row number in a row's location.
        first: Number of the first row.
    """
    for batch in _to_table(frame).to_batches(BLOCK_ROWS):
        yield _to_block(batch, where, first)
        first += len(batch)


def _to_table(frame: Any) -> pa.Table:
    if hasattr(frame, "with_format") and not hasattr(frame, "__arrow_c_stream__"):
        frame = frame.with_format("arrow")[:]
    try:
        if isinstance(frame, Mapping):
            return pa.table({str(name): _array(values) for name, values in frame.items()})
        if isinstance(frame, pa.Table) or hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as e:
        raise UserError(
            "expected a mapping of arrays, or a data frame of pandas, polars or Arrow, found "
            f"{type(frame).__name__} ({' '.join(str(e).split()):.200})"
        ) from e


def _array(values: Any) -> Any:
    """Returns a column as an Arrow array; matrix rows of several numbers become lists."""
    if isinstance(values, (pa.Array, pa.ChunkedArray, list)):
        return values
    array = np.asarray(values)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim != 2:
        return pa.array(array if array.ndim < 2 else array.tolist())
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return flat if array.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
