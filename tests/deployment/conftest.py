"""Exports that tests share."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from tests.deployment.kinds import make_request
from tff_agnostic.deployment.export import export

if TYPE_CHECKING:
    from tff_agnostic.runtimes.tff import TffRuntime


@pytest.fixture(scope="session")
def exported(
    tff_runtime: "TffRuntime", tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Returns a function of `make_request`'s arguments; it exports once, and returns the folder."""
    made: dict[Any, Path] = {}

    def make(profile: str, **how: Any) -> Path:
        arguments = inspect.signature(make_request).bind(profile, **how)
        arguments.apply_defaults()
        key = (*arguments.args, *sorted(arguments.kwargs.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("exports") / profile
            export(made[key], make_request(profile, **how), tff_runtime)
        return made[key]

    return make
