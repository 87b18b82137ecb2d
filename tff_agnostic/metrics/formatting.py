"""Numbers and names as text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.base.terminal import printable

# What stands in a table where there is no number.
UNDEFINED = "-"
_DECIMALS_OF_FACTORS = 2
_ELLIPSIS = "…"


def shown(value: float, unit: Unit) -> float:
    """Returns a number as people read it: shares in percent."""
    return 100 * value if unit is Unit.SHARE else value


def cell(value: float, unit: Unit, decimals: int) -> str:
    """Returns a number as text: shares in percent, factors with few decimals, "-" for NaN.

    Args:
        unit: What it is.
        decimals: Of a plain number; a share has as many before it is in percent.
    """
    if math.isnan(value):
        return UNDEFINED
    if unit is Unit.SHARE:
        decimals -= 2
    elif unit is Unit.FACTOR:
        decimals = _DECIMALS_OF_FACTORS
    return f"{shown(value, unit):.{decimals}f}"


def with_percent(title: str, unit: Unit, word: str = "%") -> str:
    """Returns a heading that says so where the numbers below it are in percent."""
    return f"{title}, {word}" if unit is Unit.SHARE else title


def signed(value: float, unit: Unit, decimals: int) -> str:
    """Returns a difference as text: a plus above 0, and no sign where it is 0 as it is shown."""
    text = cell(value, unit, decimals)
    if math.isnan(value):
        return text
    return f"{'+' * (value > 0)}{text}" if text.strip("-0.") else text.lstrip("-")


def points(unit: Unit) -> str:
    """Returns what stands behind a difference: " points" of shares, otherwise nothing."""
    return " points" if unit is Unit.SHARE else ""


def sentence(text: str) -> str:
    """Returns a text that begins with a capital and ends with a full stop."""
    return f"{capitalized(text)}."


def capitalized(text: str) -> str:
    """Returns a text that begins with a capital, and is otherwise as it was."""
    return f"{text[0].upper()}{text[1:]}"


def csv_text(rows: Iterable[Sequence[Any]], end: str = "\n") -> str:
    """Returns rows as a CSV file; RFC 4180 ends lines with a carriage return, too."""
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(rows)
    return text.getvalue()


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Returns names in one line each, of `width` characters at most, all of them different.

    The middle of a long name is left out: what names of one kind differ in is mostly at an end.
    Those that would become alike get a number.

    Args:
        names: The names, all different.
        width: At least 8.
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
