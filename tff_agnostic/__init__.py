"""Agnostic federated averaging on TensorFlow Federated: one model that is good for every domain."""

from __future__ import annotations

import functools
import importlib
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agnostic.algorithms.agnostic_fed_avg import AgnosticFedAvgOptions, agnostic_fed_avg
    from tff_agnostic.computations.algorithm import Problem
    from tff_agnostic.computations.local_training import ClientTraining
    from tff_agnostic.computations.server import ServerUpdate
    from tff_agnostic.computations.tff_process import build_learning_process
    from tff_agnostic.domain_weights.ascent import LambdaPlayer
    from tff_agnostic.training.evaluate import evaluate
    from tff_agnostic.training.loop import Observer, train
    from tff_agnostic.training.problems import classification, regression

__all__ = [
    "AgnosticFedAvgOptions",
    "ClientTraining",
    "LambdaPlayer",
    "Observer",
    "Problem",
    "ServerUpdate",
    "agnostic_fed_avg",
    "build_learning_process",
    "classification",
    "evaluate",
    "regression",
    "train",
]

# Modules that define the public names; imported on first use, as help needs none of them.
_MODULES = {
    "AgnosticFedAvgOptions": "algorithms.agnostic_fed_avg",
    "ClientTraining": "computations.local_training",
    "LambdaPlayer": "domain_weights.ascent",
    "Observer": "training.loop",
    "Problem": "computations.algorithm",
    "ServerUpdate": "computations.server",
    "agnostic_fed_avg": "algorithms.agnostic_fed_avg",
    "build_learning_process": "computations.tff_process",
    "classification": "training.problems",
    "evaluate": "training.evaluate",
    "regression": "training.problems",
    "train": "training.loop",
}

__version__ = "1.0.0.dev0"
# The first and the last supported CPython, as in pyproject.toml.
_FIRST, _LAST = (3, 11), (3, 13)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def python_version_error(version: tuple[int, int]) -> str:
    """Returns a message if the package does not support a version of CPython; otherwise ""."""
    if _FIRST <= version <= _LAST:
        return ""
    why = "is not supported any more" if version < _FIRST else "TensorFlow 2.21 has no wheels for"
    first, last, current = (f"{major}.{minor}" for major, minor in (_FIRST, _LAST, version))
    return f"expected CPython {first} to {last}, found {current}, which {why}"


def versions() -> dict[str, str]:
    """Returns the versions that an export depends on."""
    return {
        "tff_agnostic": __version__,
        "tensorflow": _version_if_any("tensorflow"),
        "tensorflow_federated": _version_if_any("tensorflow-federated"),
        "python": platform.python_version(),
    }


@functools.cache
def checkout_commit() -> dict[str, str]:
    """Returns the commit of a checkout, with "-dirty" if files differ from it; {} without Git."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return {}
    describe = ("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    try:
        described = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": described.stdout.strip()}


def _version_if_any(package: str) -> str:
    # This import takes longer than all others of this module, and few callers need it.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
