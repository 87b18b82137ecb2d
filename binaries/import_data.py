"""Makes a client store from files in a public format.

Example: ./run import_data --format=stackexchange --input=Posts.xml --output=clients.sqlite
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Optional

from tqdm import tqdm

from tff_agnostic.files import make_folder, write_json
from tff_agnostic.importing.flags import define_import_flags, options_from_flags
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.importing.records.reading import ReadLog
from tff_agnostic.program.cli import run_app
from tff_agnostic.program.interrupts import Interrupted


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_import_flags()


def main(argv: Sequence[str]) -> None:
    """Imports as the flags say, and prints the report."""
    del argv
    options, given = options_from_flags()
    job = checked_import(options, given)
    with (
        ended_by_sigterm(),
        tqdm(total=job.num_bytes(), unit="B", unit_scale=True, disable=None, desc="read") as bar,
    ):
        report = job.run(ReadLog(options.bad_records == "skip", bar.update, bar.set_description))
    if options.report is not None:
        make_folder(Path(options.report).parent)
        write_json(Path(options.report), report.to_json())
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


if __name__ == "__main__":
    entry_point()
