"""JSON Lines: a JSON object in each line."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.importing.columns.columns import RowConverter, check
from tff_agnostic.importing.records import input_files
from tff_agnostic.importing.records.format import Format
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the lines of all files, one in memory at a time.

    Raises:
        UserError: If a file is not in UTF-8.
    """
    converter = RowConverter(options)
    for path in find_inputs(paths):
        yield from converter.examples(
            _rows(options, path, input_files.place_of(path, paths), log), log
        )


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the files, and those of folders whose names end as those of JSON Lines do."""
    return input_files.expand(paths, _SUFFIXES)


def _rows(
    options: ImportOptions, path: Path, name: str, log: ReadLog
) -> Iterator[tuple[str, dict[str, Any]]]:
    with input_files.open_input(path, options, log) as file:
        for number, line in enumerate(input_files.decoded_lines(file, path), start=1):
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


FORMAT = Format(
    summary="JSON Lines",
    read=read,
    find_inputs=find_inputs,
    check=check,
    has_groups=True,
)
