"""Exceptions that commands print as one line without a traceback, and helpers for messages."""

from __future__ import annotations

from collections.abc import Sequence

from tff_agnostic.base.terminal import printable


class UserError(ValueError):
    """An error of the user's: an invalid value, file or flag.

    The message is one line with the place, the expected and the found value. Commands print it
    without a traceback and exit with status 2; library users catch it as a `ValueError`.
    """

    def __str__(self) -> str:
        """Returns the message; control characters, which names may contain, are escaped."""
        return printable(super().__str__(), kept="\n")


class UserCodeError(UserError):
    """An exception in a user's own Python file.

    The message names the code that was running. Commands print it unchanged, with Python's trace of
    the user's lines.
    """


class ExecutionError(RuntimeError):
    """A failure of the executor of rounds, such as a worker process.

    It is no fault of the user or the code: for example, a worker may be killed for lack of memory.
    Saved files are complete, and the run can resume. The message is one line.
    """


def some_of(names: Sequence[str], most: int) -> str:
    """Returns up to `most` names in one line, and the number of further names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, as "1 round" and "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, several: str) -> str:
    """Returns `one` for the number 1, otherwise `several`, such as "has" and "have"."""
    return one if number == 1 else several
