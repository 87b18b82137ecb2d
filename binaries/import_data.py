"""Makes a client store from files in a public format.

Example: ./run import_data --format=stackexchange --input=Posts.xml --output=clients.sqlite
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence, Set
from types import FrameType
from typing import Optional

from tff_agnostic.importing.importer import run_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.run.process import Interrupted, is_shown, run_app
from tff_agnostic.settings import OptionTable


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_import_flags()


def main(argv: Sequence[str]) -> None:
    """Imports as the flags say, and prints the report."""
    del argv
    options, given = options_from_flags()
    with ended_by_sigterm():
        report = run_import(options, given, is_shown())
    print(report.text())
    print(f"\nstore: {report.store}")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it, SIGTERM is an exception, so that temporary files are removed."""

    def stop(number: int, frame: Optional[FrameType]) -> None:
        del frame
        raise Interrupted("stopped: there is no store", number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


def define_import_flags() -> None:
    """Defines the fields of `ImportOptions` as flags.

    Their own defaults are None, so that what the user gave can be told from the rest.
    """
    OptionTable.of("flag", [("", "", ImportOptions)]).define()


def options_from_flags() -> tuple[ImportOptions, Set[str]]:
    """Returns the options that the parsed flags give, and the names of those that were given.

    Raises:
        UserError: If a value is out of range.
    """
    given = OptionTable.of("flag", [("", "", ImportOptions)]).from_flags()
    return ImportOptions(**given), given.keys()


if __name__ == "__main__":
    entry_point()
