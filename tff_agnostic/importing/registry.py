"""All formats by name."""

from tff_agnostic.importing.formats import (
    csv_table,
    idx,
    jsonl,
    leaf,
    npz,
    parquet,
    plays,
    stackexchange,
    text_folders,
)
from tff_agnostic.importing.records.format import Format
from tff_agnostic.registry import Registry

FORMATS: Registry[Format] = Registry(
    "format",
    {
        "stackexchange": stackexchange.FORMAT,
        "text_folders": text_folders.FORMAT,
        "plays": plays.FORMAT,
        "leaf": leaf.FORMAT,
        "csv": csv_table.FORMAT,
        "jsonl": jsonl.FORMAT,
        "parquet": parquet.FORMAT,
        "npz": npz.FORMAT,
        "idx": idx.FORMAT,
    },
)
