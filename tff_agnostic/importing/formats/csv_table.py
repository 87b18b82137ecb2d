"""CSV files with a header line; tabs separate the columns of `.tsv` files."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.files import csv_field_limit
from tff_agnostic.importing.columns.columns import RowConverter, check, check_columns
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the rows of all files, one in memory at a time.

    Raises:
        UserError: If a file is no CSV in UTF-8, or lacks a column.
    """
    converter = RowConverter(options)
    for path in find_inputs(paths):
        yield from converter.examples(
            _rows(options, path, input_files.place_of(path, paths), log), log
        )


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the files, and those of folders whose names end as those of CSV files do."""
    return input_files.expand(paths, _SUFFIXES)


def _rows(
    options: ImportOptions, path: Path, name: str, log: ReadLog
) -> Iterator[tuple[str, dict[str, Any]]]:
    separator = "\t" if ".tsv" in path.suffixes else ","
    with (
        csv_field_limit(options.max_record_bytes),
        input_files.open_input(path, options, log) as file,
    ):
        lines = csv.reader(input_files.decoded_lines(file, path), delimiter=separator, strict=True)
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
        if not any(map(_is_number, header)):
            raise
        raise UserError(
            f"{e} (is that a row? the file needs a first line with the names of its columns)"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


FORMAT = Format(
    summary="CSV with a header line",
    read=read,
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)
