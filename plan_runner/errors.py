"""The exception of this package, and helpers for its messages."""

_LONGEST_REASON = 300


class PlanError(ValueError):
    """An export, a client's data or a flag is invalid, or a graph failed on it.

    The one-line message names the place, the expected value and the found value.
    """


def reason(error: BaseException) -> str:
    """Returns an exception's message without line breaks, shortened to 300 characters."""
    text = " ".join(str(error).split())
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON] + "..."
    return text or type(error).__name__


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun in singular or plural, such as "1 round" or "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
