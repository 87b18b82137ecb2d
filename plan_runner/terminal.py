"""Text for terminals: escapes instead of control and invisible characters."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Joiners of letters in Persian or Hindi words and of emoji, and the space of Chinese and Japanese.
_SPELLING = "\u200c\u200d\u3000"
_LAYOUT = "\n\t"


def printable(text: str, kept: str = "") -> str:
    """Returns text in which controls and invisible characters are written as escapes.

    Controls would command a terminal, and characters that reverse the direction of writing would
    make a name look like another one.

    Args:
        kept: Further characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _SPELLING or c in kept else c.encode("unicode_escape").decode()
        for c in text
    )


class _PrintableStream:
    """A text stream that writes `printable` text of several lines to another stream."""

    def __init__(self, wrapped: TextIO) -> None:
        self._wrapped = wrapped

    def write(self, text: str) -> int:
        """Writes text; returns its length."""
        self._wrapped.write(printable(text, kept=_LAYOUT))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes lines, which have their ends."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped stream."""
        return getattr(self._wrapped, name)


def escape_output() -> None:
    """Lets this process print only `printable` text."""
    sys.stdout, sys.stderr = (
        cast(TextIO, s if isinstance(s, _PrintableStream) else _PrintableStream(s))
        for s in (sys.stdout, sys.stderr)
    )
