"""Text for terminals: control and invisible characters become escapes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, Union, cast

# Characters to keep, as they are part of words: joiners in Persian and Hindi words and in emoji,
# and the wide space of Chinese and Japanese.
_SPELLING = "\u200c\u200d\u3000"
_LAYOUT = "\n\t"


def printable(text: str, kept: str = "") -> str:
    """Returns text with control and invisible characters replaced by escapes.

    Control characters would break a page or command a terminal. Characters that reverse the
    direction of writing would make a name look like another.

    Args:
        kept: Further characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _SPELLING or c in kept else c.encode("unicode_escape").decode()
        for c in text
    )


class PrintableStream:
    """Escapes text, except line breaks and tabs, before it is written to a stream.

    Args:
        wrapped: The stream to write to; all calls except writes are passed on to it.
    """

    def __init__(self, wrapped: TextIO) -> None:
        # tqdm compares streams by this attribute, to clear a bar before it prints a line.
        self._wrapped = wrapped

    def write(self, text: str) -> int:
        """Writes text and returns its length."""
        self._wrapped.write(printable(text, kept=_LAYOUT))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes lines without adding line breaks."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def unescaped(stream: Union[TextIO, PrintableStream]) -> TextIO:
    """Returns the stream below a `PrintableStream`, for text that moves a terminal's cursor."""
    return stream._wrapped if isinstance(stream, PrintableStream) else stream


def escape_output() -> None:
    """Escapes all output of this process, as users' data may contain any names."""
    sys.stdout, sys.stderr = _escaping(sys.stdout), _escaping(sys.stderr)


def _escaping(stream: TextIO) -> TextIO:
    if isinstance(stream, PrintableStream):
        return cast(TextIO, stream)
    return cast(TextIO, PrintableStream(stream))
