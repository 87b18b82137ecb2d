"""Clients in memory, and runtimes that start at first use, for tests of combinations."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable

import pytest

from tff_agnostic.runtimes.options import CohortOptions, RayOptions
from tff_agnostic.runtimes.registry import RUNTIMES


class ClientsInMemory(dict[str, dict[str, Any]]):
    """Clients' examples by id."""

    @property
    def client_ids(self) -> list[str]:
        return list(self)

    def read(self, client_id: str) -> dict[str, Any]:
        return self[client_id]


@contextlib.contextmanager
def running_runtimes(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Yields a function that returns a started runtime by name: "tff", "ray" or a client mode."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(name: str) -> Any:
            if name == "tff":
                return request.getfixturevalue("tff_runtime")
            if name == "ray":
                return stack.enter_context(RUNTIMES["ray"].build(RayOptions(num_workers=1)))
            return stack.enter_context(RUNTIMES["cohort"].build(CohortOptions(client_mode=name)))

        yield get
