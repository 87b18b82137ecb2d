"""Blocks of output in pages, and their comparison with the output of commands and of Python.

A comment in front of a block of text gives its kind:

    <!-- printed: whole -->         CI runs the unchanged command, and compares every line
    <!-- printed: form -->          CI runs the command shortened, and compares the lines on the
                                    page, without their numbers
    <!-- printed: 2026-11-24 -->    CI does not run it; the output is of that day
    <!-- not run -->                CI does not run the commands that the block shows

CI compares every line of output that follows a block of Python. `...` marks omitted lines.
"""

import re
from typing import NamedTuple

WHOLE, FORM = "whole", "form"
_BLOCK = re.compile(
    r"^(?:<!-- (?:printed: )?([\w -]+?) -->\n)?```(python|sh|text)\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"[+-]?\d(?:[\d,.]*\d)?(?:e[+-]?\d+)?")
_RULE = re.compile(r"-{2,}")
_LEFT_OUT = "..."


class Block(NamedTuple):
    """A block of a page; `kind` is the comment in front of the block, or ""."""

    language: str
    text: str
    kind: str


def blocks(page: str) -> list[Block]:
    return [Block(language, text, kind) for kind, language, text in _BLOCK.findall(page)]


def has_blocks(page: str) -> bool:
    return _BLOCK.search(page) is not None


def is_shown(printed: str, shown: str) -> bool:
    """Whether `shown` is the output `printed`; `...` in `shown` matches any lines."""
    pattern = re.escape(shown).replace(re.escape(f"{_LEFT_OUT}\n"), "(.*\n)*?")
    return re.fullmatch(pattern, printed) is not None


def is_shown_in_form(printed: str, shown: str) -> bool:
    """Whether the shown lines were printed in this order, apart from their numbers.

    The page may break a printed line, and omit lines between others.
    """
    parts = [part for line in shown.splitlines() for part in _form(line).split(_LEFT_OUT)]
    pattern = ".*".join(_by_itself(part.strip()) for part in parts if part)
    return re.search(pattern, _form(printed)) is not None


def _by_itself(words: str) -> str:
    """Returns a pattern that matches `words`, but no part of a longer word."""
    before = r"(?<!\w)" if words[:1].isalnum() else ""
    after = r"(?!\w)" if words[-1:].isalnum() else ""
    return f"{before}{re.escape(words)}{after}"


def _form(text: str) -> str:
    return " ".join(_RULE.sub("--", _NUMBER.sub("0", text)).split())
