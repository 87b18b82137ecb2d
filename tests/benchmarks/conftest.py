"""What tests of the benchmarks share."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, the current one, in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
