"""Readers of CSV and JSON Lines, in blocks of rows."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import csv_field_limit
from tff_agnostic.importing import files
from tff_agnostic.importing.cells import CellError, plain_name
from tff_agnostic.importing.columns import Absent, Block, Cells, Columns
from tff_agnostic.importing.files import InputFile
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, Rows, in_blocks
from tff_agnostic.importing.table_options import (
    ROW,
    check,
    check_columns,
    column_places,
    columns_in_errors,
    needed_columns,
    resolve_occurrences,
)

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
# Maximum number of rows and of bytes in a block.
BLOCK_ROWS = 1 << 12
BLOCK_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns and rows of a file or data frame.

    Attributes:
        names: Names of the columns; without a header, the names in the rows read so far.
        blocks: Called with the index of each needed column by name; yields blocks of rows.
        has_header: Whether all rows have the same columns.
    """

    names: Sequence[str]
    blocks: Callable[[Mapping[str, int]], Iterator[Block]]
    has_header: bool = True


# Context manager that opens a table; called with (options, path, name in locations, log).
_OpenTable = Callable[[ImportOptions, Path, str, ReadLog], AbstractContextManager[Table]]


def table_format(suffixes: Sequence[str], open_table: _OpenTable) -> Format:
    """Returns the format of files that `open_table` opens.

    Args:
        suffixes: Suffixes of the files to read in a folder.
        open_table: Context manager that opens a file as a `Table`.
    """

    def find_inputs(paths: Sequence[Path]) -> list[Path]:
        return files.expand(paths, suffixes)

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        for path in find_inputs(paths):
            with open_table(options, path, files.input_place(path, paths), log) as table:
                yield from table_rows(options, table, path, log)

    def check_with_columns(options: ImportOptions) -> None:
        def names_in(path: Path) -> Sequence[str]:
            with open_table(options, path, path.name, ReadLog()) as table:
                return [*table.names]

        with columns_in_errors(options, names_in, find_inputs):
            check(options)

    return Format(read, find_inputs, check_with_columns, has_groups=True)


def table_rows(options: ImportOptions, table: Table, where: Any, log: ReadLog) -> Iterator[Rows]:
    """Yields the examples of a table.

    Args:
        where: Name of the table, for messages.
        log: Log that counts read and skipped rows.
    """
    places = {column: k for k, column in enumerate(needed_columns(options))}
    if table.has_header:
        options = resolve_occurrences(options, table.names)
        check_columns(options, table.names, where)
        indices = column_places(table.names)
        places = {c: indices[c] for c in needed_columns(options) if c in indices}
    columns: Optional[Columns] = None
    for block in table.blocks(places):
        if columns is None:
            rows_are_clients = options.client_column == ROW and ROW not in table.names
            log.rows_are_clients |= rows_are_clients
            columns = Columns(options, rows_are_clients)
        if options.max_records is not None:
            block = block.sliced(0, options.max_records - log.num_records)
        if len(block):
            yield from columns.rows(block, log)
        if log.num_records == options.max_records:
            # Stop before the next block is read, as reading it may raise an error.
            break
    if columns is not None:
        columns.end()


def _row_blocks(
    rows: Iterable[tuple[int, Any]],
    empty: Any,
    read_columns: Callable[[Sequence[Any]], Mapping[str, Cells]],
    name: str,
    file: InputFile,
) -> Iterator[Block]:
    """Yields rows in blocks.

    If `rows` raises a `UserError`, the block of the rows before the error is yielded first.

    Args:
        rows: Pairs (line number, row), with a `CellError` instead of an invalid row.
        empty: A row without values, which replaces invalid rows.
        read_columns: Called with rows; returns their columns.
        name: Name of the file in the locations of rows.
        file: The file, whose position limits the bytes of a block.
    """
    start = 0

    def begins_block(block: Sequence[Any], row: Any) -> bool:
        nonlocal start
        del row
        is_complete = len(block) == BLOCK_ROWS or file.limits.unpacked - start > BLOCK_BYTES
        start = file.limits.unpacked if is_complete else start
        return is_complete

    for block in in_blocks(rows, begins_block):
        lines = [line for line, _ in block]
        errors = {k: row for k, (_, row) in enumerate(block) if isinstance(row, CellError)}
        columns = read_columns([empty if k in errors else row for k, (_, row) in enumerate(block)])
        # Free the rows before their columns are converted to examples.
        block.clear()
        yield Block(columns, lambda k, lines=lines: f"{name}:{lines[k]}", errors)  # type: ignore[misc]


@contextlib.contextmanager
def _open_csv(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Table]:
    separator = options.sign_between or ("\t" if ".tsv" in path.suffixes else ",")
    with (
        csv_field_limit(options.max_record_bytes),
        files.open_input(path, options, log) as file,
    ):
        texts = files.decoded_lines(file, path, options)
        lines = csv.reader(texts, delimiter=separator, strict=True)
        with csv_errors(path, lines):
            header = next(lines, [])

        def rows() -> Iterator[tuple[int, Any]]:
            with csv_errors(path, lines):
                for values in lines:
                    file.limits.end_record()
                    if len(values) == len(header):
                        yield lines.line_num, values
                    elif values:
                        detail = f"expected {len(header)} columns, found {len(values)}"
                        yield lines.line_num, CellError("wrong number of columns", detail)

        def blocks(places: Mapping[str, int]) -> Iterator[Block]:
            def read_columns(values: Sequence[Sequence[Any]]) -> Mapping[str, Cells]:
                cells = list(zip(*values))
                return {column: pa.array(cells[k], pa.string()) for column, k in places.items()}

            return _row_blocks(rows(), [None] * len(header), read_columns, name, file)

        # Leave a column's name unchanged if the options contain it in this spelling.
        exact = needed_columns(options)
        yield Table([n if n in exact else plain_name(n) for n in header], blocks)


@contextlib.contextmanager
def csv_errors(path: Path, lines: Any) -> Iterator[None]:
    """Converts errors of a CSV parser to a `UserError` with the line number."""
    try:
        yield
    except csv.Error as e:
        raise UserError(f"{path}:{lines.line_num}: expected CSV, found: {e}") from e


CSV_SUFFIXES = tuple(
    f"{table}{packed}" for packed in ("", ".gz", ".bz2", ".zip") for table in (".csv", ".tsv")
)
CSV = table_format(CSV_SUFFIXES, _open_csv)


@contextlib.contextmanager
def _open_jsonl(options: ImportOptions, path: Path, name: str, log: ReadLog) -> Iterator[Table]:
    names: list[str] = []
    seen: set[str] = set()
    with files.open_input(path, options, log) as file:

        def rows() -> Iterator[tuple[int, Any]]:
            lines = files.decoded_lines(file, path, options)
            for number, line in enumerate(lines, start=1):
                file.limits.end_record()
                if not line.isspace():
                    row = _parsed(line)
                    if isinstance(row, dict):
                        names.extend(column for column in row if column not in seen)
                        seen.update(row)
                    yield number, row

        def blocks(places: Mapping[str, int]) -> Iterator[Block]:
            def read_columns(values: Sequence[dict[str, Any]]) -> Mapping[str, Cells]:
                return {
                    column: _cells([v[column] if column in v else Absent([*v]) for v in values])
                    for column in places
                }

            return _row_blocks(itertools.chain(first, others), {}, read_columns, name, file)

        others = rows()
        # Read the first row now, as only rows contain column names.
        first = [*itertools.islice(others, 1)]
        yield Table(names, blocks, has_header=False)


def _cells(values: list[Any]) -> Cells:
    """Converts values to an Arrow array; leaves them unchanged if types differ or are nested."""
    if any(isinstance(value, (list, dict, Absent)) for value in values):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return values


def _parsed(line: str) -> dict[str, Any] | CellError:
    try:
        row = json.loads(line)
        if _SURROGATE.search(line):
            # Reject lone surrogates, which JSON can encode but which are not valid text.
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        detail = f"expected JSON, found: {str(e) or type(e).__name__}"
        return CellError("line that is not JSON", detail)
    if not isinstance(row, dict):
        detail = f"expected an object, found {type(row).__name__}"
        return CellError("line that is not an object", detail)
    return row


JSONL = table_format((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), _open_jsonl)
