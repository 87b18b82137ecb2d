"""Importing: files become a client store, as `./run import_data` makes it."""

from typing import Any

from tff_agnostic.importing.importer import run_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.run.process import is_shown
from tff_agnostic.settings import OptionTable


def import_data(show_progress: bool = True, **options: Any) -> ImportReport:
    """Makes a client store of files, as `./run import_data` does.

    Every flag of that command is an argument: `format="csv"`, `input=["examples.csv"]`,
    `output="clients.sqlite"`, `client_column="user"` and so on.

    Args:
        show_progress: Whether to show a bar on a terminal or in a notebook.
        **options: The flags; None is as if it were not given.

    Returns:
        What was read, and what became of it; `text()` is the report that the command prints.

    Raises:
        UserError: If an option is unknown, out of range or without effect, or the input is not as
            it has to be; there is no store then.
    """
    known = OptionTable.of("option of imports", [("", "", ImportOptions)])
    given = known.from_arguments(options)
    return run_import(ImportOptions(**given), list(given), show_progress and is_shown())
