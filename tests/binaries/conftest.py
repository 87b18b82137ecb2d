"""Fixtures of the tests of commands."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Caller
from tests.support.platform import has_tff
from tff_agnostic.runtimes.cohort import CohortRuntime


@pytest.fixture(scope="session")
def call(cohort_runtime: CohortRuntime, request: pytest.FixtureRequest) -> Caller:
    """A caller of commands in this process, on the session's runtimes."""
    runtimes: dict[str, Any] = {"cohort": cohort_runtime}
    if has_tff():
        runtimes["tff"] = request.getfixturevalue("tff_runtime")
    return Caller(runtimes)


@pytest.fixture(scope="session")
def call_that_draws(cohort_runtime: CohortRuntime) -> Caller:
    """A caller like `call`, except that it draws the figures of pages."""
    return Caller({"cohort": cohort_runtime}, draws=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, set as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def three_rounds(call: Caller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a digits run with three checkpoints; tests must not change it."""
    from binaries import train

    path = tmp_path_factory.mktemp("digits") / "run"
    call.ok(
        *(train, "--task=digits", "--num_clients=6", "--num_test_clients=4"),
        *("--clients_per_round=3", "--rounds=3", "--checkpoint_every=1"),
        f"--output_dir={path}",
    )
    return path
