"""Exit status of a command: errors in one line, and signals that end it."""

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
# Shells add this to a signal's number.
_SIGNAL_STATUS = 128
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Errors of writing to a full disk, which have no file name.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Terminated(BaseException):
    """A signal has asked this process to exit, after running code has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises Terminated when a signal asks this process to exit."""

    def end(number: int, frame: Optional[FrameType]) -> NoReturn:
        del frame
        raise Terminated(number)

    previous = {number: signal.getsignal(number) for number in _ENDING}
    # Programs started by nohup ignore a hang-up.
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
    """Runs a command; returns its status, 0 for None.

    Args:
        errors: Exceptions that print one line, with status 2.
    """
    try:
        with ended_by_signals():
            return run() or 0
    except errors as e:
        return print_error(str(e))
    except BrokenPipeError:
        # The reader closed the output, which Python flushes again at its end.
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
    """Prints an error in one line; returns its status."""
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return ERROR_STATUS
