"""Reads small inputs as an import does."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import pytest

from tests import golden
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.importer import FORMATS, Import, checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog, Rows, SourceExample

REAL = Path(__file__).parents[2].parent / "shared" / "data"
Paths = Union[Path, Sequence[Path]]


def needs(name: str) -> Any:
    """Returns a mark that skips a test where a set of real data is absent."""
    return pytest.mark.skipif(not (REAL / name).exists(), reason=f"{name} is not in {REAL}")


def read(
    format_: str, paths: Paths, skip_bad: bool = False, **options: Any
) -> tuple[list[SourceExample], ReadLog]:
    """Returns all examples that a reader yields, and its log."""
    log = ReadLog(skip_bad)
    spec = FORMATS[format_]
    chosen = ImportOptions(format=format_, **options)
    spec.check(chosen)
    reading = spec.read(chosen, [paths] if isinstance(paths, Path) else paths, log)
    # Lazy reading bounds the memory.
    assert iter(reading) is reading
    return [example for rows in reading for example in source_examples(rows)], log


def source_examples(rows: Rows) -> Iterator[SourceExample]:
    """Yields rows as examples."""
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
    """Returns the one-line message with which an input is refused."""
    return golden.refusal(read, format_, paths, **options)


def job(format_: str, path: Path, output: Path, **options: Any) -> Import:
    """Returns an import whose options all count as given by the user."""
    chosen = ImportOptions(format=format_, input=(str(path),), output=str(output), **options)
    return checked_import(chosen, options.keys())


def stored_counts(store: Path) -> Counter[tuple[str, str, str]]:
    """Returns the number of a store's examples by (client, domain, split)."""
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
    """Returns the splits of each client of a store."""
    splits: dict[str, set[str]] = {}
    for client, _, split in stored_counts(store):
        splits.setdefault(client, set()).add(split)
    return splits
