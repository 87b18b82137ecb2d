"""The program on top of the library: flags, run folders, commands.

From Python, `run_settings` describes a run by options, `train_run` trains a run and writes its
folder, and `compare_runs` compares methods over several seeds.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agnostic.metrics.by_group import ByGroup
    from tff_agnostic.program.runs.finished import FinishedRun
    from tff_agnostic.program.runs.options import RunConfig
    from tff_agnostic.program.runs.train_run import run_settings, train_run
    from tff_agnostic.program.studies.compare import ComparedRuns, compare_runs

__all__ = [
    "ByGroup",
    "ComparedRuns",
    "FinishedRun",
    "RunConfig",
    "compare_runs",
    "run_settings",
    "train_run",
]

# Maps each public name to its module, which is imported on first use: a command's help needs none
# of these modules.
_MODULES = {
    "ByGroup": "metrics.by_group",
    "ComparedRuns": "program.studies.compare",
    "FinishedRun": "program.runs.finished",
    "RunConfig": "program.runs.options",
    "compare_runs": "program.studies.compare",
    "run_settings": "program.runs.train_run",
    "train_run": "program.runs.train_run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # TensorFlow reads this variable when it is first imported. A value that the caller has set has
    # precedence.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.filterwarnings("ignore", "pkg_resources is deprecated as an API", append=True)
    return getattr(importlib.import_module(f"tff_agnostic.{_MODULES[name]}"), name)
