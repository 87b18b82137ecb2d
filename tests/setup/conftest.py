"""Checkouts on machines with and without uv and a Python."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import is_running
from tests.setup.checkout import FAKE_BAZEL, Checkout


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Checkout]:
    """A checkout on a machine with neither uv nor a Python."""
    checkout = Checkout(tmp_path)
    yield checkout
    pid_file = checkout.state / "install_pid"
    if pid_file.exists() and is_running(int(pid_file.read_text())):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@pytest.fixture
def checkout(bare: Checkout) -> Checkout:
    """A checkout on a machine with uv and a Python that fits."""
    bare.add_uv()
    bare.add_python("python3.11")
    return bare


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """A checkout whose environment is made."""
    assert checkout.run("setup").returncode == 0
    return checkout


@pytest.fixture
def bazel(tmp_path: Path) -> Checkout:
    """A checkout in a path that Bazel can work in, with a stand-in for Bazel."""
    checkout = Checkout(tmp_path)
    checkout.add_uv()
    checkout.add_python("python3.11")
    checkout.root = checkout.root.rename(tmp_path / "checkout")
    checkout.add_script("bazel", FAKE_BAZEL)
    assert checkout.run("setup").returncode == 0
    return checkout
