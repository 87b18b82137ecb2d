"""Agnostic federated averaging on TensorFlow Federated: one model that is good for every domain."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

__version__ = "1.0.0.dev0"
# The first and the last CPython; pyproject.toml has them, too.
_FIRST, _LAST = (3, 11), (3, 13)


def refusal_of_python(version: tuple[int, int]) -> str:
    """Returns why a CPython does not fit, in a line; nothing if it does."""
    if _FIRST <= version <= _LAST:
        return ""
    why = "is not supported any more" if version < _FIRST else "TensorFlow 2.21 has no wheels for"
    first, last, found = (f"{major}.{minor}" for major, minor in (_FIRST, _LAST, version))
    return f"expected CPython {first} to {last}, found {found}, which {why}"


def versions() -> dict[str, str]:
    """Returns the versions that an export depends on."""
    return {
        "tff_agnostic": __version__,
        "tensorflow": importlib.metadata.version("tensorflow"),
        "tensorflow_federated": _version_if_any("tensorflow-federated"),
        "python": platform.python_version(),
    }


@functools.cache
def of_checkout() -> dict[str, str]:
    """Returns the commit of a checkout, with a mark if files differ from it; empty without Git."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return {}
    describe = ("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    try:
        found = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": found.stdout.strip()}


def _version_if_any(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
