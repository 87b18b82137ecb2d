"""Parameters of tests; some of them run only with `./run test -m nightly`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest


def usually(chosen: Collection[Any], every: Iterable[Hashable]) -> list[Any]:
    """Returns the parameters of a test: those outside of `chosen` have the marker `nightly`.

    Several values that belong together are a tuple in both.

    Raises:
      ValueError: `every` lacks one of `chosen`.
    """
    values = list(every)
    if strangers := [value for value in chosen if value not in values]:
        raise ValueError(f"chosen: expected some of {values}, found {strangers}")
    return [_parameter(value, () if value in chosen else pytest.mark.nightly) for value in values]


def _parameter(value: Any, marks: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Returns the values of a parameter in those tests of the fixture's module that run."""
    calls = (
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    )
    return list(dict.fromkeys(c.params[parameter] for c in calls if c and parameter in c.params))
