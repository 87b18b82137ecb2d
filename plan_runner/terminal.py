"""Escapes control and invisible characters in output for terminals."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Zero-width joiners, as in Persian, Hindi or emoji, and the space of Chinese and Japanese.
_SPELLING = "\u200c\u200d\u3000"
_LAYOUT = "\n\t"


def printable(text: str, kept: str = "") -> str:
    """Replaces control and invisible characters in a string by escapes.

    Control characters could send commands to a terminal. Characters that reverse the direction of
    writing could make a name look like a different name.

    Args:
        kept: Additional characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _SPELLING or c in kept else c.encode("unicode_escape").decode()
        for c in text
    )


class _PrintableStream:
    """A text stream that applies `printable`, and writes the result to another stream."""

    def __init__(self, wrapped: TextIO) -> None:
        self._wrapped = wrapped

    def write(self, text: str) -> int:
        self._wrapped.write(printable(text, kept=_LAYOUT))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def escape_output() -> None:
    """Applies `printable` to all later output of this process."""
    sys.stdout, sys.stderr = (
        cast(TextIO, s if isinstance(s, _PrintableStream) else _PrintableStream(s))
        for s in (sys.stdout, sys.stderr)
    )
