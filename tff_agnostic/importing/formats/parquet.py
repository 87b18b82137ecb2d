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
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, SourceExample

_BATCH_ROWS = 4096
# Of rows with images, which may be of a megabyte each.
_BATCH_IMAGES = 64


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
        with parquet.ParquetFile(path, pre_buffer=False) as table:
            check_columns(options, table.schema_arrow.names, path)
            size, total = path.stat().st_size, table.metadata.num_rows
            number = 0
            rows = _BATCH_IMAGES if options.image_columns else _BATCH_ROWS
            for batch in table.iter_batches(rows, columns=needed_columns(options)):
                before = number
                for row in batch.to_pylist():
                    number += 1
                    yield f"{name} row {number}", row
                log.advance(size * number // total - size * before // total)
    except (pyarrow.ArrowException, OSError) as e:
        raise _damaged(path, e) from e


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
