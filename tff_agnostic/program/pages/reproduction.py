"""How a run is made again: the command, every setting, digests of data and code, versions."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.program.pages.blocks import Block, Command, Facts, Name, Paragraph, Part, Section
from tff_agnostic.program.pages.run_record import RunRecord

# What config.json has beside the settings.
NOT_FLAGS = ("format", "execution")


def reproduction_section(run: RunRecord, command: Optional[Sequence[str]]) -> Section:
    """Returns what is needed to train the same again; see `command_blocks`."""
    execution: dict[str, Any] = run.config.get("execution") or {}
    settings = {name: value for name, value in run.config.items() if name not in NOT_FLAGS}
    blocks = [
        *command_blocks(command, run.is_private),
        *_facts("Digests of what it was made of:", run.fingerprint),
        *versions_blocks(run),
        *_facts("All settings (config.json):", {f"--{n}": v for n, v in settings.items()}),
        *_facts("How rounds were executed, which can change last bits:", execution),
    ]
    return Section("again", "How to make it again", blocks)


def command_blocks(command: Optional[Sequence[str]], is_private: bool) -> list[Block]:
    """Returns a command, and what else it needs.

    Args:
        command: Its arguments; None where it is not known.
        is_private: Whether the noise of what it trains is a secret.
    """
    if not command:
        return [Paragraph("The command is not known here; all settings are below.")]
    but = ", but for the noise and the cohorts of private training, which are secret"
    return [
        Command(shlex.join(command)),
        Paragraph(
            "Files are named without their folders. Equal settings, data and versions give equal "
            f"numbers{but if is_private else ''}."
        ),
    ]


def versions_blocks(run: RunRecord) -> list[Block]:
    """Returns the versions of what trained; nothing where nobody recorded them."""
    return _facts("Versions:", run.about.get("versions") or {})


def _facts(title: str, values: Any) -> list[Block]:
    if not values:
        return []
    return [
        Paragraph(title),
        Facts([(name, setting_value(value)) for name, value in values.items()]),
    ]


def setting_value(value: Any) -> Part:
    """Returns the value of a setting as config.json has it; of files the names alone."""
    if value is None:
        return "not given"
    if isinstance(value, list):
        return Name(",".join(str(_without_folder(item)) for item in value))
    if isinstance(value, str):
        return Name(_without_folder(value))
    return json.dumps(value)


def _without_folder(value: Any) -> Any:
    # Where files lay on somebody's machine is nobody else's business.
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
