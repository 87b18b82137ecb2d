"""The one exception of this package, and words of its messages."""

_LONGEST_REASON = 300


class PlanError(ValueError):
    """An export, a client's data or a flag is invalid, or a graph failed on it.

    The message is one line: what was expected, what was found, and where.
    """


def reason(error: BaseException) -> str:
    """Returns the message of an exception, as a part of one line."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON] + "..."
    return text or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, as "1 round" and "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
