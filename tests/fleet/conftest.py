"""Fixtures of the fleet's tests."""

from __future__ import annotations

import os

import pytest

from tests.plan_runner.conftest import exports

__all__ = ["exports", "no_waiting_for_disks"]


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces fsync, which is slow and matters only if a machine loses power."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
