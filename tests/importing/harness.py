"""Reads small inputs as an import does."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import pytest

from tests import golden
from tff_agnostic.importing.importer import FORMATS, Import, checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog, SourceExample

REAL = Path(__file__).parents[2].parent / "shared" / "data"
Paths = Union[Path, Sequence[Path]]


def needs(name: str) -> Any:
    """Returns a mark that skips a test where a set of real data is absent."""
    return pytest.mark.skipif(not (REAL / name).exists(), reason=f"{name} is not in {REAL}")


def read(
    format_: str, paths: Paths, skip_bad: bool = False, **options: Any
) -> tuple[list[SourceExample], ReadLog]:
    """Returns all examples that a reader yields, and what it told."""
    log = ReadLog(skip_bad)
    spec = FORMATS[format_]
    chosen = ImportOptions(format=format_, **options)
    spec.check(chosen)
    reading = spec.read(chosen, [paths] if isinstance(paths, Path) else paths, log)
    # Nothing is read before it is asked for: that is what bounds the memory.
    assert iter(reading) is reading
    return list(reading), log


def refused(format_: str, paths: Paths, **options: Any) -> str:
    """Returns the message, one line, of an input that is refused."""
    return golden.refusal(read, format_, paths, **options)


def job(format_: str, path: Path, output: Path, **options: Any) -> Import:
    """Returns an import; its options count as given."""
    chosen = ImportOptions(format=format_, input=(str(path),), output=str(output), **options)
    return checked_import(chosen, options.keys())


def table(store: Path, sql: str) -> list[Any]:
    """Returns rows of a store."""
    with contextlib.closing(sqlite3.connect(store)) as database:
        return database.execute(sql).fetchall()
