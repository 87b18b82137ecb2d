"""What tests of secure aggregation share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power in a test: files need not be on the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
