"""Exports shared by the runner's tests."""

from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Returns an export per profile; tests must not change them."""
    from tests.plan_runner import plans
    from tests.plan_runner.exports import write_export

    folder = tmp_path_factory.mktemp("exports")
    return {
        "daf": write_export(folder / "daf", plans.daf_plan(), "daf"),
        "secure": write_export(folder / "secure", plans.secure_plan(), "secure"),
    }
