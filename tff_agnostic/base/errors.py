"""Exceptions that commands print as one line without a traceback, and helpers for messages."""

from __future__ import annotations

from collections.abc import Sequence

from tff_agnostic.base.terminal import printable


class UserError(ValueError):
    """A value, file or flag is invalid.

    The message is one line: expected and found values, and the place. Binaries print it without a
    traceback and exit with status 2; library users catch it as a `ValueError`.
    """

    def __str__(self) -> str:
        """Returns the message, escaped, as names from files may contain control characters."""
        return printable(super().__str__(), kept="\n")


class UserCodeError(UserError):
    """Code in a user's own Python file raised an exception.

    The message names the running code. Binaries print it unchanged, with Python's trace of the
    user's lines.
    """


class ExecutionError(RuntimeError):
    """The executor of rounds, such as a worker process, failed or is unavailable.

    Neither the user nor the code is at fault: a worker may be killed for lack of memory, for
    example. Saved files of a run are complete, and the run can resume. The message is one line.
    """


def some_of(names: Sequence[str], most: int) -> str:
    """Returns names as a list in one line: up to `most` names, and the number of the rest."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, as "1 round" and "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, several: str) -> str:
    """Returns the verb form for a number, such as "has" for 1 and "have" for others."""
    return one if number == 1 else several
