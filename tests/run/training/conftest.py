"""Fixtures of the tests of training runs."""

from pathlib import Path

import pytest

from tests.support.runs import train
from tff_agnostic.runtimes.cohort import CohortRuntime


@pytest.fixture(scope="package")
def whole(cohort_runtime: CohortRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train(cohort_runtime, path)
    return path
