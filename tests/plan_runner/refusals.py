"""Error messages of the runner."""

from typing import Any, Callable

import pytest

from plan_runner.errors import PlanError


def refusal(function: Callable[..., Any], *arguments: Any, **settings: Any) -> str:
    """Returns the one-line message of the `PlanError` that a call raises."""
    with pytest.raises(PlanError) as error:
        function(*arguments, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)
