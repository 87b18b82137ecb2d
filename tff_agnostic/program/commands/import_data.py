"""The command import_data: creates a client store from files, without TensorFlow."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Optional

from tff_agnostic.importing.importer import checked_import
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.program.commands.command import Command, CommandArguments
from tff_agnostic.program.options.flag_table import (
    flags_in_errors,
    flags_in_hints,
    hints_with_flags,
)
from tff_agnostic.program.options.process import Interrupted
from tff_agnostic.program.progress import LongWork


def import_data(given: CommandArguments) -> ImportReport:
    """Creates a client store from files."""
    options = given.args
    with _ended_by_sigterm(), flags_in_hints(ImportOptions), flags_in_errors(options):
        job = checked_import(options, given.names)
        with LongWork("import", job.num_bytes(), "B", visible=given.show_progress) as work:
            return job.run(ReadLog(options.bad_records == "skip", work.update, work.say))


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an exception within the context, so that temporary files are removed."""

    def stop(number: int, frame: Optional[FrameType]) -> None:
        del frame
        raise Interrupted("stopped: there is no store", number)

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set signal handlers.
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(report: ImportReport) -> None:
    print(hints_with_flags(report.text(), ImportOptions))
    print(f"\nstore: {report.store}")


IMPORT_DATA = Command("import_data", ImportOptions, import_data, _show)
