"""Registry of commands: the module and the name of each.

A command is imported when it is requested: some need no TensorFlow, whose import takes seconds.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tff_agnostic.base.registry import Registry

# Program of the wheel; its first argument is the name of a command.
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
# plan_runner describes the options of this command.
OTHER_COMMANDS = ("run_plan",)
# Commands on data have no algorithms, so their flags cannot collide with a user's settings.
_ON_DATA = ("import_data", "export_data")


def command(name: str) -> Any:
    """Returns the `command.Command` of a name."""
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(f"tff_agnostic.program.{module}"), attribute)


@functools.cache
def own_flags() -> frozenset[str]:
    """Returns the commands' own flags.

    A user's algorithm cannot have settings of these names.
    """
    names = (name for name in COMMANDS if name not in _ON_DATA)
    return frozenset(flag for name in names for flag in command(name).options)
