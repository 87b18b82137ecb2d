"""All formats by name."""

from __future__ import annotations

from tff_agnostic.importing import idx, leaf, npz, stackexchange, tables, text_folders
from tff_agnostic.importing.source import Format
from tff_agnostic.registry import Registry

FORMATS: Registry[Format] = Registry(
    "format",
    {
        "stackexchange": stackexchange.FORMAT,
        "text_folders": text_folders.FORMAT,
        "plays": text_folders.PLAYS,
        "leaf": leaf.FORMAT,
        "csv": tables.CSV,
        "jsonl": tables.JSONL,
        "parquet": tables.PARQUET,
        "npz": npz.FORMAT,
        "idx": idx.FORMAT,
    },
)
