"""What a run takes over from an earlier one, and what the two may differ in."""

import dataclasses
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.program.specs.run_spec import RunSpec, resolve
from tff_agnostic.program.specs.setting_paths import path_fields, path_of
from tff_agnostic.settings import flag_of
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import DATA, option_flag

# Said first where runs differ.
_CHIEF = ("task", "algorithm", "aggregation")
# What a run that goes on may have otherwise, and what is told of it.
CHANGEABLE: Mapping[str, str] = {
    flag_of(field): field.metadata["may_change"]
    for field in dataclasses.fields(RunConfig)
    if "may_change" in field.metadata
}


def inheriting(
    earlier: RunSpec,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path],
    data: Optional[Path],
) -> RunSpec:
    """Returns the run that is as an earlier one wherever nothing else is given.

    Args:
        earlier: The earlier run.
        given: Settings that the user gave, by flag.
        task_options: Options of its task that were given.
        data_dir: Folder with the task's files, if it was given.
        data: The client store, if it was given.

    Raises:
        UserError: As `run_spec.resolve` does.
    """
    return resolve(
        earlier.task,
        given,
        {**earlier.task_options, **task_options},
        data_dir or path_of(earlier.data_dir),
        data or path_of(earlier.data),
        inherited=earlier.settings(),
    )


def differences(earlier: RunSpec, spec: RunSpec, known_content: Container[str]) -> list[str]:
    """Returns what makes a run another one than the earlier one, such as "--seed is 0 there...".

    Args:
        earlier: The earlier run.
        spec: The run.
        known_content: Names in the fingerprint of the earlier run: files that it knows may be
            anywhere, as whoever reads them compares what is in them.
    """
    there, here = earlier.flags(), spec.flags()
    free = {*CHANGEABLE, *_found_by_content(spec, known_content)}
    # What only one of them has belongs to another algorithm or aggregation, which is told.
    names = sorted({*here} & {*there}, key=lambda name: (name not in _CHIEF, name))
    different = [name for name in names if here[name] != there[name] and name not in free]
    if {*different} & {*_CHIEF}:
        # Another one has other defaults.
        different = [name for name in different if name in _CHIEF or name in spec.given]
    return [
        f"--{name} is {shown(there[name])} there and {shown(here[name])} here" for name in different
    ]


def changes(earlier: RunSpec, spec: RunSpec) -> list[str]:
    """Returns a line for each setting that has changed, as it may, and that is to be known of."""
    there, here = earlier.settings(), spec.settings()
    return [
        f"--{flag} was {shown(there[flag])} until now and is {shown(here[flag])}: {told}"
        for flag, told in CHANGEABLE.items()
        if told and there[flag] != here[flag]
    ]


def _found_by_content(spec: RunSpec, known_content: Container[str]) -> set[str]:
    """Returns the flags of files of which the content is known."""
    by_flag = {"data": DATA, "data_dir": DATA}
    for field in path_fields(TASKS[spec.task].options):
        by_flag[option_flag(spec.task, field)] = field.name
    for part in (spec.config, spec.algorithm):
        by_flag.update((flag_of(field), field.name) for field in path_fields(part))
    return {flag for flag, name in by_flag.items() if name in known_content}


def shown(value: Any) -> str:
    """Returns a setting's value as messages have it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "not given" if value is None else str(value)
