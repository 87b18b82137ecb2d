"""How numbers stand in tables."""

import math

from tff_agnostic.quantities import Unit

# What stands in a table where there is no number.
UNDEFINED = "-"

_DECIMALS_OF_FACTORS = 2


def shown(value: float, unit: Unit) -> float:
    """Returns a number as people read it: shares in percent."""
    return 100 * value if unit is Unit.SHARE else value


def cell(value: float, unit: Unit, decimals: int) -> str:
    """Returns a number as text: shares in percent, factors with few decimals, "-" for NaN.

    Args:
        value: The number.
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
