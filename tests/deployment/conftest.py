"""Exports shared by all tests."""

import fcntl
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from tests.deployment.kinds import make_request
from tff_agnostic.base.files import digest
from tff_agnostic.deployment.export import export

if TYPE_CHECKING:
    from tff_agnostic.runtimes.tff import TffRuntime


@pytest.fixture(scope="session")
def exported(
    tff_runtime: "TffRuntime", tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Returns a cached function that exports `make_request(...)` and returns the folder.

    All processes of a test run share the exports whose arguments have no address in their repr.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    kept: list[Any] = []

    def make(profile: str, **how: Any) -> Path:
        arguments = inspect.signature(make_request).bind(profile, **how)
        arguments.apply_defaults()
        key = repr((*arguments.args, *sorted(arguments.kwargs.items())))
        if " at 0x" in key:
            # An address identifies an object only in this process, and only while the object
            # exists.
            key = f"{os.getpid()} {key}"
            kept.append(arguments)
        folder = shared / "exports" / digest(key.encode()) / profile
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                export(folder, make_request(profile, **how), tff_runtime)
        return folder

    return make
