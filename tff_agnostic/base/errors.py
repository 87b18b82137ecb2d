"""The exceptions that end in one line instead of a traceback, and words of such lines."""

from __future__ import annotations

from collections.abc import Sequence

from tff_agnostic.base.terminal import printable


class UserError(ValueError):
    """A value, file or flag is not what it has to be.

    The message is one line: what was expected, what was found, and where. Binaries print it without
    a traceback and exit with status 2; library users catch it as a `ValueError`.
    """

    def __str__(self) -> str:
        """Returns the message, whose names come from files and may hold what a terminal obeys."""
        return printable(super().__str__(), kept="\n")


class UserCodeError(UserError):
    """Code of a user's own Python file raised something.

    The message is a line that says what was running, then the trace of the user's lines as Python
    prints it, with its carets, which binaries print as it is.
    """


class ExecutionError(RuntimeError):
    """What executes rounds, such as a worker process, has failed or is not there.

    Not the user's mistake, and not one of the code: a worker may be killed for want of memory. What
    a run has saved is whole, and the run can go on. The message is one line.
    """


def some_of(names: Sequence[str], most: int) -> str:
    """Returns names in a line: `most` of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, as "1 round" and "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, several: str) -> str:
    """Returns the verb that goes with a number, as "has" with 1 and "have" with others."""
    return one if number == 1 else several
