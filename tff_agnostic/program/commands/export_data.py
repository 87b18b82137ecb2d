"""The command export_data: converts a client store to a file that TFF and fleet nodes read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Options
from tff_agnostic.data.store import ArrowStore, load_store
from tff_agnostic.data.tff_store import to_tff
from tff_agnostic.program.commands.command import Command, CommandArguments
from tff_agnostic.program.options.flag_table import flags_in_errors


@dataclasses.dataclass(frozen=True)
class ExportDataOptions(Options):
    """Flags of `export_data`.

    Attributes:
        data: The client store, as import_data makes it.
        output: The file to write; it must not exist yet.
        format: Format of the file: tff (the SQLite format of tff.simulation.datasets).
    """

    data: Path = dataclasses.field(kw_only=True)
    output: Path = dataclasses.field(kw_only=True)
    format: Literal["tff"] = "tff"


def export_data(given: CommandArguments) -> Path:
    """Converts a store to a file of another format; returns the file's path."""
    options: ExportDataOptions = given.args
    with flags_in_errors(options):
        store = load_store(options.data)
        if not isinstance(store, ArrowStore):
            raise UserError(f"{options.data}: expected a folder, found a file in TFF's format")
        to_tff(store, options.output)
    return options.output


def _show(path: Path) -> None:
    print(f"file: {path}")


EXPORT_DATA = Command("export_data", ExportDataOptions, export_data, _show)
