"""Runtimes, which execute rounds; all implement `runtime.Runtime`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.options import CohortOptions, RayOptions
    from tff_agnostic.runtimes.tff import TffRuntime

__all__ = ["CohortOptions", "CohortRuntime", "RayOptions", "TffRuntime"]

_MODULES = {
    "CohortOptions": "options",
    "CohortRuntime": "cohort",
    "RayOptions": "options",
    "TffRuntime": "tff",
}


def __getattr__(name: str) -> Any:
    # Import on first use, because Ray's workers import this package and need no TFF.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
