"""Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.importing.columns.columns import (
    RowConverter,
    check,
    check_columns,
    needed_columns,
)
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.input_files import check_unpacked, too_large_record
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, SourceExample

_BATCH_ROWS = 4096
# Of rows with images, which may be of a megabyte each.
_BATCH_IMAGES = 64
# Bytes of rows that are Python's objects at once.
_PIECE = 1 << 24
# Parquet's name of texts and bytes, and the sizes of its other types.
_TEXTS = "BYTE_ARRAY"
_BYTES_OF = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, _TEXTS: 4, "INT96": 12}


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the rows of all files, the needed columns of a row group in memory at a time.

    Raises:
        UserError: If a file is damaged, or lacks a column.
    """
    converter = RowConverter(options)
    for path in find_inputs(paths):
        yield from converter.examples(
            _rows(options, path, input_files.place_of(path, paths), log), log
        )


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the files, and those of folders whose names end in .parquet."""
    return input_files.expand(paths, (".parquet",))


def _rows(
    options: ImportOptions, path: Path, name: str, log: ReadLog
) -> Iterator[tuple[str, dict[str, Any]]]:
    # Imported here: it takes time to load, and no other format needs it.
    import pyarrow
    from pyarrow import parquet

    try:
        texts = _checked_texts(options, path)
        with parquet.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as table:
            size, total = path.stat().st_size, table.metadata.num_rows
            number = unpacked = 0
            rows = _BATCH_IMAGES if options.image_columns else _BATCH_ROWS
            for batch in table.iter_batches(rows, columns=needed_columns(options)):
                before = number
                for piece, num_bytes in _pieces(batch, options, path):
                    unpacked += num_bytes
                    check_unpacked(path, size, unpacked, options)
                    for row in piece.to_pylist():
                        number += 1
                        yield f"{name} row {number}", row
                log.advance(size * number // total - size * before // total)
    except (pyarrow.ArrowException, OSError) as e:
        raise _damaged(path, e) from e


def _checked_texts(options: ImportOptions, path: Path) -> list[str]:
    """Checks what a file says that it holds, and returns the columns of texts and bytes.

    These are read as dictionaries: a few bytes can say that one text is in all rows.
    """
    from pyarrow import parquet

    wanted, texts, unpacked = needed_columns(options), [], 0
    with parquet.ParquetFile(path, pre_buffer=False) as table:
        check_columns(options, table.schema_arrow.names, path)
        groups = [table.metadata.row_group(k) for k in range(table.metadata.num_row_groups)]
    for group in groups:
        for chunk in map(group.column, range(group.num_columns)):
            where = chunk.path_in_schema
            if not any(where == name or where.startswith(f"{name}.") for name in wanted):
                continue
            # Runs of equal values take no room in the file.
            in_memory = chunk.num_values * _BYTES_OF.get(chunk.physical_type, 1)
            unpacked += max(chunk.total_uncompressed_size, in_memory)
            if chunk.physical_type == _TEXTS and where not in texts:
                texts.append(where)
    check_unpacked(path, path.stat().st_size, unpacked, options)
    return texts


def _pieces(batch: Any, options: ImportOptions, path: Path) -> Iterator[tuple[Any, int]]:
    """Yields a batch in pieces of a few megabytes, each with its bytes as Python will have them."""
    num_bytes = sum(map(_bytes_of, batch.columns))
    if num_bytes <= _PIECE:
        yield batch, num_bytes
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half), options, path)
        yield from _pieces(batch.slice(half), options, path)
    elif num_bytes > options.max_record_bytes:
        raise too_large_record(path, options)
    else:
        yield batch, num_bytes


def _bytes_of(column: Any) -> int:
    from pyarrow import compute, types

    kind = column.type
    if types.is_struct(kind):
        return sum(map(_bytes_of, column.flatten()))
    if types.is_list(kind) or types.is_large_list(kind):
        return _bytes_of(column.flatten())
    if not types.is_dictionary(kind):
        return int(column.nbytes)
    size = int(column.indices.nbytes)
    if types.is_string(kind.value_type) or types.is_binary(kind.value_type):
        lengths = compute.binary_length(column.dictionary).take(column.indices)
        size += compute.sum(lengths).as_py() or 0
    return size


def _damaged(path: Path, error: Exception) -> UserError:
    found = " ".join(str(error).split())
    return UserError(f"{path}: expected a Parquet file, found a damaged or another file ({found})")


FORMAT = Format(
    summary="Parquet",
    read=read,
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)
