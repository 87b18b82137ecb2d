"""What tests of the fleet share: no machine loses its power in a test."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not be on the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
