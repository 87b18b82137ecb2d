"""Agnostic federated averaging on TensorFlow Federated: one model that is good for every domain."""

from __future__ import annotations

import importlib.metadata
import platform

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    """Returns the versions that an export depends on."""
    return {
        "tff_agnostic": __version__,
        "tensorflow": importlib.metadata.version("tensorflow"),
        "tensorflow_federated": importlib.metadata.version("tensorflow-federated"),
        "python": platform.python_version(),
    }
