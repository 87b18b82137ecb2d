"""Which of many combinations the usual tests run; `./run test --exhaustive` runs all."""

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive


def usually(chosen: Collection[Any], every: Iterable[Hashable]) -> list[Any]:
    """Returns parameters of a test: `every` one, of which the usual tests run those in `chosen`.

    A parameter of several values is a tuple, in `chosen` as in `every`.

    Raises:
      ValueError: something is chosen that is not there.
    """
    values = list(every)
    if strangers := [value for value in chosen if value not in values]:
        raise ValueError(f"chosen, but not there: {strangers}")
    return [_parameter(value, value in chosen) for value in values]


def _parameter(value: Any, is_usual: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if is_usual else exhaustive)
