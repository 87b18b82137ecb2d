"""Helpers that read small inputs through the importer."""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.importer import FORMATS, Import, checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog, Rows, SourceExample

REAL = Path(__file__).parents[2].parent / "shared" / "data"
Paths = Union[Path, Sequence[Path]]


def needs(name: str) -> Any:
    """Returns a marker that skips a test if the real data set `name` is absent."""
    return pytest.mark.skipif(not (REAL / name).exists(), reason=f"{name} is not in {REAL}")


def read(
    format_: str, paths: Paths, skip_bad: bool = False, **options: Any
) -> tuple[list[SourceExample], ReadLog]:
    """Returns the examples and the log from reading `paths` in a format."""
    log = ReadLog(skip_bad)
    spec = FORMATS[format_]
    chosen = ImportOptions(format=format_, **options)
    spec.check(chosen)
    reading = spec.read(chosen, [paths] if isinstance(paths, Path) else paths, log)
    # A list would hold the whole input in memory.
    assert iter(reading) is reading
    return [example for rows in reading for example in source_examples(rows)], log


def source_examples(rows: Rows) -> Iterator[SourceExample]:
    """Yields each row of `rows` as a `SourceExample`."""
    for k in range(len(rows)):
        features = {
            name: column[k].as_py()
            if not isinstance(column, np.ndarray)
            else column[k]
            if column.ndim > 1
            else column[k].item()
            for name, column in rows.features.items()
        }
        client, domain, split = (c[k].as_py() for c in (rows.client, rows.domain, rows.split))
        record = Record(client, domain, features, split)
        group = None if rows.group is None else rows.group[k].as_py()
        yield SourceExample(record, rows.place(k), group)


def refused(format_: str, paths: Paths, **options: Any) -> str:
    return golden.refusal(read, format_, paths, **options)


def job(format_: str, path: Path, output: Path, **options: Any) -> Import:
    """Returns an import of `path`; all `options` count as set by the user."""
    chosen = ImportOptions(format=format_, input=(str(path),), output=str(output), **options)
    return checked_import(chosen, options.keys())


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def stored_counts(store: Path) -> Counter[tuple[str, str, str]]:
    """Returns the number of examples in a store for each (client, domain, split)."""
    opened = ArrowStore(store)
    return Counter(
        {
            (client, domain, split): n
            for split in opened.splits()
            for client, row in zip(opened.client_ids(split), opened.domain_table(split).tolist())
            for domain, n in zip(opened.description.domains, row)
            if n
        }
    )


def stored_splits(store: Path) -> dict[str, set[str]]:
    """Returns the splits in which each client of a store has examples."""
    splits: dict[str, set[str]] = {}
    for client, _, split in stored_counts(store):
        splits.setdefault(client, set()).add(split)
    return splits
