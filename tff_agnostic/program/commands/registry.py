"""Registry of commands: the module and the variable that define each command.

A command's module is imported on request. Some commands need no TensorFlow, whose import takes
seconds.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tff_agnostic.base.registry import Registry

# Program that the wheel installs; its first argument is the name of a command.
PROGRAM = "tff-agnostic"
COMMANDS: Registry[str] = Registry(
    "command",
    {
        "base_predictors": "commands.base_predictors:BASE_PREDICTORS",
        "compare": "studies.compare:COMPARE",
        "evaluate": "commands.evaluate:EVALUATE",
        "export": "commands.export:EXPORT",
        "export_data": "commands.export_data:EXPORT_DATA",
        "frontier": "studies.frontier_command:FRONTIER",
        "import_data": "commands.import_data:IMPORT_DATA",
        "import_state": "commands.import_state:IMPORT_STATE",
        "privacy": "commands.privacy:PRIVACY",
        "recommend": "studies.recommend:RECOMMEND",
        "report": "studies.report:REPORT_COMMAND",
        "reproduce": "experiments.reproduce:REPRODUCE",
        "save_model": "commands.save_model:SAVE_MODEL",
        "train": "commands.train:TRAIN",
        "tune": "studies.tune:TUNE",
    },
)
# The package plan_runner defines this command and its flags.
OTHER_COMMANDS = ("run_plan",)
# Commands on data train nothing, so their flags cannot collide with those of a user's algorithm.
_ON_DATA = ("import_data", "export_data")


def command(name: str) -> Any:
    """Imports and returns the `command.Command` with a name."""
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(f"tff_agnostic.program.{module}"), attribute)


@functools.cache
def own_flags() -> frozenset[str]:
    """Returns the commands' own flags, which a user's algorithm cannot have as settings."""
    names = (name for name in COMMANDS if name not in _ON_DATA)
    return frozenset(flag for name in names for flag in command(name).options)
