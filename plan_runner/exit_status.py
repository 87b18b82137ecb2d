"""Runs a command, and converts errors and signals to one-line messages and exit statuses."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Callable, NoReturn, Optional

from plan_runner.errors import PlanError
from plan_runner.terminal import printable

ERROR_STATUS = 2
# Shells report 128 + N as the exit status of a process that signal N ended.
_SIGNAL_STATUS = 128
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Error numbers of writes to a full disk, whose exceptions have no file name.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Terminated(BaseException):
    """Raised when a signal asks this process to exit, so that running code can clean up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises Terminated within a with block when a signal asks this process to exit."""

    def end(number: int, frame: Optional[FrameType]) -> NoReturn:
        del frame
        raise Terminated(number)

    previous = {number: signal.getsignal(number) for number in _ENDING}
    # Keep ignored signals ignored, such as SIGHUP under nohup.
    caught = [n for n, handler in previous.items() if handler not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, previous[number])


def run_command(
    run: Callable[[], Optional[int]], errors: tuple[type[Exception], ...] = (PlanError,)
) -> int:
    """Runs a command, and returns the exit status.

    Args:
        run: Returns the exit status; None counts as 0.
        errors: Exceptions to print as one line, with exit status 2.
    """
    try:
        with ended_by_signals():
            return run() or 0
    except errors as e:
        return print_error(str(e))
    except BrokenPipeError:
        # The reader has closed the pipe, so redirect the output that Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGNAL_STATUS + signal.SIGPIPE
    except OSError as e:
        # Only errors with a file name are about the user's files.
        if e.filename is None and e.errno not in _NO_ROOM:
            raise
        where = "" if e.filename is None else f"{e.filename}: "
        return print_error(f"{where}cannot read or write ({e.strerror})")
    except Terminated as e:
        print("interrupted", file=sys.stderr)
        return _SIGNAL_STATUS + e.number


def print_error(message: str) -> int:
    """Prints an error as one line, and returns the exit status 2."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return ERROR_STATUS
