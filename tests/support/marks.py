"""Parameters of tests, where some values run only with `./run test -m nightly`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest


def usually(chosen: Collection[Any], every: Iterable[Hashable]) -> list[Any]:
    """Returns a test's parameters, where values that are not in `chosen` are marked `nightly`.

    Args:
        chosen: Values, or tuples of values, that always run.
        every: All values, or tuples of values.

    Raises:
        ValueError: If a value in `chosen` is not in `every`.
    """
    values = list(every)
    if strangers := [value for value in chosen if value not in values]:
        raise ValueError(f"chosen: expected some of {values}, found {strangers}")
    return [_parameter(value, () if value in chosen else pytest.mark.nightly) for value in values]


def _parameter(value: Any, marks: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Returns a parameter's values in the selected tests of the fixture's module."""
    calls = (
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    )
    return list(dict.fromkeys(c.params[parameter] for c in calls if c and parameter in c.params))
