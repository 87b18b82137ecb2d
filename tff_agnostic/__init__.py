"""Agnostic federated averaging on TensorFlow Federated: one model that is good for every domain."""

from __future__ import annotations

import importlib.metadata
import platform

__version__ = "0.4.0.dev0"


def versions() -> dict[str, str]:
    """Returns the versions that an export depends on."""
    return {
        "tff_agnostic": __version__,
        "tensorflow": importlib.metadata.version("tensorflow"),
        "tensorflow_federated": _version_if_any("tensorflow-federated"),
        "python": platform.python_version(),
    }


def _version_if_any(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
