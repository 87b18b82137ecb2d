"""Formats numbers, names and rows as text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.base.terminal import printable

# Text of an undefined number.
UNDEFINED = "-"
_FACTOR_DECIMALS = 2
_ELLIPSIS = "…"


def shown(value: float, unit: Unit) -> float:
    """Returns a number in the unit that readers see, percent for shares."""
    return 100 * value if unit is Unit.SHARE else value


def cell(value: float, unit: Unit, decimals: int) -> str:
    """Returns a number as text: shares in percent, factors with few decimals, "-" for NaN.

    Args:
        decimals: Number of decimals of a plain number; a share in percent has two fewer.
    """
    if math.isnan(value):
        return UNDEFINED
    if unit is Unit.SHARE:
        decimals -= 2
    elif unit is Unit.FACTOR:
        decimals = _FACTOR_DECIMALS
    return f"{shown(value, unit):.{decimals}f}"


def with_percent(title: str, unit: Unit, word: str = "%") -> str:
    """Appends `word` to the heading of numbers that are shares."""
    return f"{title}, {word}" if unit is Unit.SHARE else title


def signed(value: float, unit: Unit, decimals: int) -> str:
    """Returns a difference as text, with a plus above 0, and without a sign if it rounds to 0."""
    text = cell(value, unit, decimals)
    if math.isnan(value):
        return text
    return f"{'+' * (value > 0)}{text}" if text.strip("-0.") else text.lstrip("-")


def points(unit: Unit) -> str:
    """Returns the unit of a difference: " points" for shares, otherwise ""."""
    return " points" if unit is Unit.SHARE else ""


def sentence(text: str) -> str:
    """Returns a string as a sentence, with a capital and a full stop."""
    return f"{capitalized(text)}."


def capitalized(text: str) -> str:
    """Returns a string with a capital at the start."""
    return f"{text[0].upper()}{text[1:]}"


def csv_text(rows: Iterable[Sequence[Any]], end: str = "\n") -> str:
    """Returns rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(rows)
    return text.getvalue()


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Returns distinct names of at most `width` characters, each in one line.

    Long names lose their middle, as similar names mostly differ at an end. Equal results get a
    number.

    Args:
        width: Maximum number of characters, at least 8.
    """
    lines = [printable(" ".join(name.split())) for name in names]
    texts = [_short(line, width) for line in lines]
    taken: set[str] = set()
    for i, text in enumerate(texts):
        number = 1
        while texts[i] in taken:
            number += 1
            end = f" ({number})"
            texts[i] = _short(text, width - len(end)) + end
        taken.add(texts[i])
    return texts


def _short(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]
