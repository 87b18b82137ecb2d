"""CSV files, JSON Lines, Parquet files and data frames, in blocks of rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import csv_field_limit
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import number_in
from tff_agnostic.importing.columns import (
    ROW,
    Absent,
    Block,
    Cells,
    Columns,
    check,
    check_columns,
    needed_columns,
    resolve_occurrences,
)
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import (
    Format,
    InputFile,
    Read,
    ReadLog,
    RecordError,
    Rows,
    check_unpacked,
    too_large_record,
)

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
# Limits of a block of rows that are Python's objects.
_BLOCK_ROWS = 1 << 14
_BLOCK_BYTES = 1 << 24
# Rows of a batch with images, which may have a megabyte each.
_BATCH_IMAGES = 64
# Parquet's name of texts and bytes, and the sizes of its other types.
_TEXTS = "BYTE_ARRAY"
_BYTES_OF = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, _TEXTS: 4, "INT96": 12}

# Called with options, a file, its name in messages and a log.
_Open = Callable[[ImportOptions, Path, str, ReadLog], Iterator[Rows]]


def _table_format(summary: str, suffixes: Sequence[str], rows_of: _Open) -> Format:
    """Returns a format of files of rows.

    Args:
        summary: One line for help texts.
        suffixes: Ends of the names of the files that are read of a folder.
        rows_of: Yields the rows of one file.
    """

    def find_inputs(paths: Sequence[Path]) -> list[Path]:
        return source.expand(paths, suffixes)

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        for path in find_inputs(paths):
            yield from rows_of(options, path, source.place_of(path, paths), log)

    return Format(summary, read, find_inputs, check, has_groups=True)


def _converted(
    options: ImportOptions, names: Sequence[str], blocks: Iterator[Block], log: ReadLog
) -> Iterator[Rows]:
    """Yields the examples of blocks.

    Args:
        options: Options of the import.
        names: The columns of the table.
        blocks: Its rows.
        log: Counts the rows.
    """
    rows_are_clients = options.client_column == ROW and ROW not in names
    log.rows_are_clients |= rows_are_clients
    columns = Columns(options, rows_are_clients)
    for block in blocks:
        if len(block):
            yield from columns.rows(block, log)
    columns.end()


def _row_blocks(
    rows: Iterator[tuple[int, Any]],
    columns_of: Callable[[Sequence[Any]], Mapping[str, Cells]],
    name: str,
    file: InputFile,
    options: ImportOptions,
    log: ReadLog,
) -> Iterator[Block]:
    """Yields rows in blocks; an error comes after the block of the rows before it.

    Args:
        rows: Number of the line and the row, or the `RecordError` in its place.
        columns_of: Called with rows; returns their columns.
        name: Name of the file in places.
        file: The file.
        options: Options of the import.
        log: Counts bad rows.
    """
    kept: list[Any] = []
    lines: list[int] = []
    start = 0

    def block() -> Block:
        numbers = list(lines)
        made = Block(columns_of(kept), lambda k: f"{name}:{numbers[k]}")
        kept.clear()
        lines.clear()
        return made

    try:
        for line, row in rows:
            if (
                options.max_records is not None
                and log.num_records + len(kept) >= options.max_records
            ):
                break
            if isinstance(row, RecordError):
                if kept and not log.skips_bad:
                    yield block()
                log.num_records += 1
                log.bad(row)
                continue
            kept.append(row)
            lines.append(line)
            if len(kept) == _BLOCK_ROWS or file.num_bytes - start > _BLOCK_BYTES:
                start = file.num_bytes
                yield block()
    except UserError:
        if kept:
            yield block()
        raise
    if kept:
        yield block()


def _csv_rows(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Rows]:
    separator = options.sign_between or ("\t" if ".tsv" in path.suffixes else ",")
    with (
        csv_field_limit(options.max_record_bytes),
        source.open_input(path, options, log) as file,
    ):
        lines = csv.reader(
            source.decoded_lines(file, path, options), delimiter=separator, strict=True
        )
        with _csv_errors(path, lines):
            header = next(lines, [])
        options = resolve_occurrences(options, header)
        _check_header(options, header, path)
        places = _places(header)
        needed = [column for column in needed_columns(options) if column in places]

        def columns_of(rows: Sequence[Sequence[str]]) -> Mapping[str, Cells]:
            cells = list(zip(*rows))
            return {column: pa.array(cells[places[column]], pa.string()) for column in needed}

        def rows() -> Iterator[tuple[int, Any]]:
            with _csv_errors(path, lines):
                for values in lines:
                    file.end_record()
                    if len(values) == len(header):
                        yield lines.line_num, values
                    elif values:
                        detail = f"expected {len(header)} columns, found {len(values)}"
                        place = f"{name}:{lines.line_num}"
                        yield lines.line_num, RecordError(place, "wrong number of columns", detail)

        blocks = _row_blocks(rows(), columns_of, name, file, options, log)
        yield from _converted(options, [*places], blocks, log)


class _csv_errors:
    """Turns errors of the parser into a `UserError` with the line; a context manager."""

    def __init__(self, path: Path, lines: Any) -> None:
        self._path, self._lines = path, lines

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Raises the error."""
        if isinstance(error, csv.Error):
            place = f"{self._path}:{self._lines.line_num}"
            raise UserError(f"{place}: expected CSV, found: {error}") from error


def _places(header: Sequence[str]) -> dict[str, int]:
    """Returns the place of each column; of columns with one name, by NAME:1, NAME:2 and so on."""
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        is_single = header.count(name) == 1
        places[name if is_single else f"{name}:{header[: place + 1].count(name)}"] = place
    return places


def _check_header(options: ImportOptions, header: Sequence[str], path: Path) -> None:
    try:
        check_columns(options, header, path)
    except UserError as e:
        if all(number_in(text) is None for text in header):
            raise
        raise UserError(
            f"{e} (is that a row? the file needs a first line with the names of its columns)"
        ) from None


CSV_SUFFIXES = tuple(
    f"{table}{packed}" for packed in ("", ".gz", ".bz2", ".zip") for table in (".csv", ".tsv")
)
CSV = _table_format("CSV with a header line", CSV_SUFFIXES, _csv_rows)


def _jsonl_rows(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Rows]:
    found: set[str] = set()
    needed = needed_columns(options)
    with source.open_input(path, options, log) as file:
        texts = source.decoded_lines(file, path, options)

        def rows() -> Iterator[tuple[int, Any]]:
            for number, line in enumerate(texts, start=1):
                file.end_record()
                if line.isspace():
                    continue
                row: Union[dict[str, Any], RecordError]
                try:
                    row = _parsed(line, f"{name}:{number}")
                    found.update(row)
                except RecordError as e:
                    row = e
                yield number, row

        def columns_of(kept: Sequence[dict[str, Any]]) -> Mapping[str, Cells]:
            return {
                column: cells_of([row[column] if column in row else Absent([*row]) for row in kept])
                for column in needed
            }

        blocks = _row_blocks(rows(), columns_of, name, file, options, log)
        first = next(blocks, None)
        if first is not None:
            yield from _converted(options, [*found], _chained(first, blocks), log)


def _chained(first: Block, rest: Iterator[Block]) -> Iterator[Block]:
    yield first
    yield from rest


def cells_of(values: list[Any]) -> Cells:
    """Returns values as an array of Arrow; unchanged if they are of several types, or lists."""
    if any(isinstance(value, (list, dict, Absent)) for value in values):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return values


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


def _parquet_rows(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Rows]:
    # Imported here: it takes time to load, and no other format needs it.
    from pyarrow import parquet

    try:
        texts = _checked_texts(options, path)
        with parquet.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as table:
            names = table.schema_arrow.names
            blocks = _parquet_blocks(options, path, name, table, log)
            yield from _converted(options, names, blocks, log)
    except (pa.ArrowException, OSError) as e:
        raise _damaged(path, e) from e


def _parquet_blocks(
    options: ImportOptions, path: Path, name: str, table: Any, log: ReadLog
) -> Iterator[Block]:
    size, total = path.stat().st_size, table.metadata.num_rows
    number = unpacked = 0
    rows = _BATCH_IMAGES if options.image_columns else _BLOCK_ROWS
    needed = [column for column in needed_columns(options) if column in table.schema_arrow.names]
    for batch in table.iter_batches(rows, columns=needed):
        before = number
        for piece, num_bytes in _pieces(batch, options, path):
            unpacked += num_bytes
            check_unpacked(path, size, unpacked, options)
            yield _block_of(piece, f"{name} row", number, options, log)
            number += len(piece)
        log.advance(size * number // total - size * before // total)


def _block_of(
    batch: pa.RecordBatch, where: str, first: int, options: ImportOptions, log: ReadLog
) -> Block:
    """Returns the rows of a batch, as far as `max_records` allows.

    Args:
        batch: The rows.
        where: The beginning of their places.
        first: Index of the first one in its table.
        options: Options of the import.
        log: Has the number of records so far.
    """
    if options.max_records is not None:
        batch = batch.slice(0, max(0, options.max_records - log.num_records))
    columns = dict(zip(batch.schema.names, map(_plain, batch.columns)))
    return Block(columns, lambda k: f"{where} {first + k + 1}")


def _plain(cells: pa.Array) -> pa.Array:
    """Returns cells without dictionaries and large texts."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_large_string(cells.type):
        cells = cells.cast(pa.string())
    return cells.cast(pa.binary()) if pa.types.is_large_binary(cells.type) else cells


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
    if num_bytes <= _BLOCK_BYTES:
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


PARQUET = _table_format("Parquet", (".parquet", ".pq"), _parquet_rows)


def frame_reader(frame: Any) -> Read:
    """Returns the reader of a data frame.

    Args:
        frame: A mapping of arrays by column, or an object with Arrow's `__arrow_c_stream__`, such
            as a data frame of pandas or polars, a table of Arrow or a relation of DuckDB.
    """

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        del paths
        table = table_of(frame)
        names = table.column_names
        options = resolve_occurrences(options, names)
        check_columns(options, names, "the table")
        places = _places(names)
        needed = [places[column] for column in needed_columns(options) if column in places]
        table = table.select(needed).rename_columns([[*places][k] for k in needed])

        def blocks() -> Iterator[Block]:
            first = 0
            for batch in table.to_batches(_BLOCK_ROWS):
                yield _block_of(batch, "row", first, options, log)
                first += len(batch)

        yield from _converted(options, [*places], blocks(), log)

    return read


def table_of(frame: Any) -> pa.Table:
    """Returns a data frame as a table of Arrow."""
    if isinstance(frame, Mapping):
        return pa.table({str(name): _array(values) for name, values in frame.items()})
    if hasattr(frame, "with_format") and not hasattr(frame, "__arrow_c_stream__"):
        # A data set of Hugging Face.
        frame = frame.with_format("arrow")[:]
    if isinstance(frame, pa.Table):
        return frame
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as e:
        raise UserError(
            "expected a mapping of arrays, or a data frame of pandas, polars or Arrow, found "
            f"{type(frame).__name__} ({' '.join(str(e).split()):.200})"
        ) from e


def _array(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    array = values if isinstance(values, (np.ndarray, list)) else np.asarray(values)
    if isinstance(array, np.ndarray) and array.ndim > 1:
        return pa.array(array.tolist())
    return pa.array(array)
