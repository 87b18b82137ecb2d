"""What tests of the binaries share."""

import pytest

from tests.binaries.harness import Caller


@pytest.fixture(scope="session")
def call(cohort_runtime, tff_runtime) -> Caller:
    """Calls binaries in this process, on the session's runtimes."""
    return Caller({"cohort": cohort_runtime, "tff": tff_runtime})


@pytest.fixture(scope="session")
def call_that_draws(cohort_runtime) -> Caller:
    """The same, with the plots of runs."""
    return Caller({"cohort": cohort_runtime}, draws=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, the current one, in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
