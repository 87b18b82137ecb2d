"""What tests of the benchmarks share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one, in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
