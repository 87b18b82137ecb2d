"""CSV files and JSON Lines, in blocks of rows."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import csv_field_limit
from tff_agnostic.importing import files
from tff_agnostic.importing.cells import plain_name
from tff_agnostic.importing.columns import Absent, Block, Cells, Columns
from tff_agnostic.importing.files import InputFile
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, RecordError, Rows, in_blocks
from tff_agnostic.importing.table_options import (
    ROW,
    check,
    check_columns,
    column_places,
    columns_in_errors,
    header_hint,
    needed_columns,
    resolve_occurrences,
)

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
# Limits of a block of rows that are Python objects.
BLOCK_ROWS = 1 << 12
BLOCK_BYTES = 1 << 22

# Called with options, a file, its name in messages and a log.
_ReadFile = Callable[[ImportOptions, Path, str, ReadLog], Iterator[Rows]]


def table_format(
    suffixes: Sequence[str],
    read_file: _ReadFile,
    names_in: Callable[[ImportOptions, Path], Sequence[str]],
) -> Format:
    """Returns a format whose files contain rows.

    Args:
        suffixes: Suffixes of the files that are read in a folder.
        read_file: Yields the rows of one file.
        names_in: Called with options and a file; returns the names of its columns.
    """

    def find_inputs(paths: Sequence[Path]) -> list[Path]:
        return files.expand(paths, suffixes)

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        for path in find_inputs(paths):
            yield from read_file(options, path, files.place_of(path, paths), log)

    def check_with_columns(options: ImportOptions) -> None:
        with columns_in_errors(options, lambda path: names_in(options, path), find_inputs):
            check(options)

    return Format(read, find_inputs, check_with_columns, has_groups=True)


def examples_of(
    options: ImportOptions, names: Sequence[str], blocks: Iterator[Block], log: ReadLog
) -> Iterator[Rows]:
    """Yields the examples of blocks.

    Args:
        options: Options of the import.
        names: The columns of the table.
        blocks: The rows of the table.
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
    """Yields rows in blocks; an error is raised after the block of the rows before it.

    Args:
        rows: Pairs of line number, and the row or its `RecordError`.
        columns_of: Called with rows; returns their columns.
        name: Name of the file in places.
        file: The file.
        options: Options of the import.
        log: Counts bad rows.
    """
    start = 0

    def good_rows() -> Iterator[tuple[int, Any]]:
        limit = math.inf if options.max_records is None else options.max_records
        left = limit - log.num_records
        for line, row in rows:
            if left <= 0:
                return
            left -= 1
            if isinstance(row, RecordError):
                log.num_records += 1
                log.bad(row)
            else:
                yield line, row

    def begins_block(block: Sequence[Any], row: Any) -> bool:
        nonlocal start
        del row
        is_complete = len(block) == BLOCK_ROWS or file.limits.unpacked - start > BLOCK_BYTES
        start = file.limits.unpacked if is_complete else start
        return is_complete

    for block in in_blocks(good_rows(), begins_block):
        lines = [line for line, _ in block]
        columns = columns_of([row for _, row in block])
        # Rows must not stay in memory while their columns become examples.
        block.clear()
        yield Block(columns, lambda k, lines=lines: f"{name}:{lines[k]}")  # type: ignore[misc]


@contextlib.contextmanager
def _csv_lines(
    options: ImportOptions, path: Path, log: ReadLog
) -> Iterator[tuple[InputFile, Any, list[str]]]:
    """Yields a file, the parser of its lines, and its header."""
    separator = options.sign_between or ("\t" if ".tsv" in path.suffixes else ",")
    with (
        csv_field_limit(options.max_record_bytes),
        files.open_input(path, options, log) as file,
    ):
        texts = files.decoded_lines(file, path, options)
        lines = csv.reader(texts, delimiter=separator, strict=True)
        with csv_errors(path, lines):
            header = next(lines, [])
        yield file, lines, [*map(plain_name, header)]


def _csv_names(options: ImportOptions, path: Path) -> list[str]:
    with _csv_lines(options, path, ReadLog()) as (_, _, header):
        return header


def _csv_rows(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Rows]:
    with _csv_lines(options, path, log) as (file, lines, header):
        options = resolve_occurrences(options, header)
        try:
            check_columns(options, header, path)
        except UserError as e:
            raise UserError(f"{e}{header_hint(header)}") from None
        places = column_places(header)
        needed = [column for column in needed_columns(options) if column in places]

        def columns_of(rows: Sequence[Sequence[str]]) -> Mapping[str, Cells]:
            cells = list(zip(*rows))
            return {column: pa.array(cells[places[column]], pa.string()) for column in needed}

        def rows() -> Iterator[tuple[int, Any]]:
            with csv_errors(path, lines):
                for values in lines:
                    file.limits.end_record()
                    number = lines.line_num
                    if len(values) == len(header):
                        yield number, values
                    elif values:
                        detail = f"expected {len(header)} columns, found {len(values)}"
                        reason = "wrong number of columns"
                        yield number, RecordError(f"{name}:{number}", reason, detail)

        blocks = _row_blocks(rows(), columns_of, name, file, options, log)
        yield from examples_of(options, [*places], blocks, log)


@contextlib.contextmanager
def csv_errors(path: Path, lines: Any) -> Iterator[None]:
    """Turns errors of a parser into a `UserError` with the line."""
    try:
        yield
    except csv.Error as e:
        raise UserError(f"{path}:{lines.line_num}: expected CSV, found: {e}") from e


CSV_SUFFIXES = tuple(
    f"{table}{packed}" for packed in ("", ".gz", ".bz2", ".zip") for table in (".csv", ".tsv")
)
CSV = table_format(CSV_SUFFIXES, _csv_rows, _csv_names)


def _jsonl_names(options: ImportOptions, path: Path) -> list[str]:
    with files.open_input(path, options, ReadLog()) as file:
        row = _parsed(next(files.decoded_lines(file, path, options), "{}"), f"{path}:1")
    if isinstance(row, RecordError):
        raise row
    return [*row]


def _jsonl_rows(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Rows]:
    names: set[str] = set()
    needed = needed_columns(options)
    with files.open_input(path, options, log) as file:
        texts = files.decoded_lines(file, path, options)

        def rows() -> Iterator[tuple[int, Any]]:
            for number, line in enumerate(texts, start=1):
                file.limits.end_record()
                if not line.isspace():
                    row = _parsed(line, f"{name}:{number}")
                    names.update(row if isinstance(row, dict) else ())
                    yield number, row

        def columns_of(kept: Sequence[dict[str, Any]]) -> Mapping[str, Cells]:
            return {
                column: _cells([row[column] if column in row else Absent([*row]) for row in kept])
                for column in needed
            }

        blocks = _row_blocks(rows(), columns_of, name, file, options, log)
        # Column names are only in the rows.
        for first in blocks:
            yield from examples_of(options, [*names], itertools.chain([first], blocks), log)


def _cells(values: list[Any]) -> Cells:
    """Returns values as an array of Arrow; unchanged if they are of several types, or lists."""
    if any(isinstance(value, (list, dict, Absent)) for value in values):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return values


def _parsed(line: str, place: str) -> dict[str, Any] | RecordError:
    try:
        row = json.loads(line)
        if _SURROGATE.search(line):
            # JSON can encode lone surrogates, which are not valid text.
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        detail = f"expected JSON, found: {str(e) or type(e).__name__}"
        return RecordError(place, "line that is no JSON", detail)
    if not isinstance(row, dict):
        detail = f"expected an object, found {type(row).__name__}"
        return RecordError(place, "line that is no object", detail)
    return row


JSONL = table_format((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _jsonl_rows, _jsonl_names)
