"""CSV files, JSON Lines and Parquet files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import csv_field_limit
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import number_in
from tff_agnostic.importing.columns import RowConverter, check, check_columns, needed_columns
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import (
    Format,
    ReadLog,
    RecordError,
    SourceExample,
    check_unpacked,
    too_large_record,
)

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_BATCH_ROWS = 4096
# Rows of a batch with images, which may have a megabyte each.
_BATCH_IMAGES = 64
# Bytes of rows that are Python's objects at once.
_PIECE = 1 << 24
# Parquet's name of texts and bytes, and the sizes of its other types.
_TEXTS = "BYTE_ARRAY"
_BYTES_OF = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, _TEXTS: 4, "INT96": 12}

# (options, file, its name in messages, log) -> where each row is, and its values by column.
_Rows = Callable[[ImportOptions, Path, str, ReadLog], Iterator[tuple[str, dict[str, Any]]]]


def _table_format(summary: str, suffixes: Sequence[str], rows_of: _Rows) -> Format:
    """Returns a format of files of rows, with one row in memory at a time.

    Args:
        summary: One line for help texts.
        suffixes: How the names of the files end that are read of a folder.
        rows_of: Yields the rows of one file.
    """

    def find_inputs(paths: Sequence[Path]) -> list[Path]:
        return source.expand(paths, suffixes)

    def read(
        options: ImportOptions, paths: Sequence[Path], log: ReadLog
    ) -> Iterator[SourceExample]:
        converter = RowConverter(options)
        for path in find_inputs(paths):
            rows = rows_of(options, path, source.place_of(path, paths), log)
            yield from converter.examples(rows, log)

    return Format(summary, source.in_rows(read), find_inputs, check, has_groups=True)


def _csv_rows(
    options: ImportOptions, path: Path, name: str, log: ReadLog
) -> Iterator[tuple[str, dict[str, Any]]]:
    separator = options.sign_between or ("\t" if ".tsv" in path.suffixes else ",")
    with (
        csv_field_limit(options.max_record_bytes),
        source.open_input(path, options, log) as file,
    ):
        texts = source.decoded_lines(file, path, options.encoding)
        lines = csv.reader(texts, delimiter=separator, strict=True)
        try:
            header = next(lines, [])
            _check_header(options, header, path)
            for values in lines:
                file.end_record()
                if not values:
                    continue
                place = f"{name}:{lines.line_num}"
                if len(values) != len(header):
                    log.num_records += 1
                    log.bad(
                        RecordError(
                            place,
                            "wrong number of columns",
                            f"expected {len(header)} columns, found {len(values)}",
                        )
                    )
                    continue
                yield place, dict(zip(header, values))
        except csv.Error as e:
            raise UserError(f"{path}:{lines.line_num}: expected CSV, found: {e}") from e


def _check_header(options: ImportOptions, header: Sequence[str], path: Path) -> None:
    try:
        check_columns(options, header, path)
    except UserError as e:
        if all(number_in(text) is None for text in header):
            raise
        raise UserError(
            f"{e} (is that a row? the file needs a first line with the names of its columns)"
        ) from None


CSV = _table_format("CSV with a header line", (".csv", ".tsv", ".csv.gz", ".tsv.gz"), _csv_rows)


def _jsonl_rows(
    options: ImportOptions, path: Path, name: str, log: ReadLog
) -> Iterator[tuple[str, dict[str, Any]]]:
    with source.open_input(path, options, log) as file:
        texts = source.decoded_lines(file, path, options.encoding)
        for number, line in enumerate(texts, start=1):
            file.end_record()
            if line.isspace():
                continue
            place = f"{name}:{number}"
            try:
                row = _parsed(line, place)
            except RecordError as e:
                log.num_records += 1
                log.bad(e)
                continue
            yield place, row


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if _SURROGATE.search(line):
            # JSON can write half a character, which no text can hold.
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        found = str(e) or type(e).__name__
        raise RecordError(place, "line that is no JSON", f"expected JSON, found: {found}") from None
    if not isinstance(row, dict):
        raise RecordError(
            place, "line that is no object", f"expected an object, found {type(row).__name__}"
        )
    return row


JSONL = _table_format("JSON Lines", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _jsonl_rows)


def _parquet_rows(
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
    """Checks the sizes that a file claims, and returns the columns of texts and bytes.

    These are read as dictionaries: a few bytes of a file can put one text into all rows.
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


PARQUET = _table_format("Parquet", (".parquet",), _parquet_rows)
