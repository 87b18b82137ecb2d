"""Flag files of the best settings of a search."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Optional

from tff_agnostic.program.commands.command_line import arm_text, with_algorithm_options
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.studies.methods import OF_ALL_ROWS
from tff_agnostic.program.studies.searched_method import SearchedArm

# Settings by flag, by name of the algorithm.
Settings = Mapping[str, Mapping[str, Any]]


def train_flags(arm: SearchedArm, settings: Mapping[str, Any], remark: str) -> str:
    """Returns a file with the best settings of one algorithm, for `train` and `compare`.

    Args:
        settings: The settings; see `SearchedArm.settings`.
        remark: Comment in the file.
    """
    if arm.has_two_stages:
        # A run has one stage, a method of a comparison may have two.
        of_all = {*DEFAULTS[arm.task].spec.option_names, *OF_ALL_ROWS, *arm.shared}
        common = {flag: value for flag, value in settings.items() if flag in of_all}
        return _file(remark, {**_of_task(arm), **common, "arms": _row(arm, settings, of_all)})
    # Each of the two commands has one of these flags, and overlooks the other.
    which = {"undefok": "algorithm,algorithms", "algorithm": arm.file_or_name}
    which["algorithms"] = arm.file_or_name
    return _file(remark, {**_of_task(arm), **which, **settings})


def compare_flags(
    arms: Mapping[str, SearchedArm], settings: Settings, remark: str
) -> Optional[str]:
    """Returns a file with the flags of a comparison, each algorithm with its best settings.

    None if they have different options of the task, which the methods of a comparison share.

    Args:
        arms: The algorithms by name.
        remark: Comment in the file.
    """
    first = next(iter(arms.values()))
    own_of_any = {f for arm in arms.values() for f in (*arm.given, *arm.dimensions)}
    shared = set(first.shared) - own_of_any
    of_all = {*DEFAULTS[first.task].spec.option_names, *OF_ALL_ROWS, *shared}
    common: dict[str, Any] = {}
    for of in settings.values():
        for flag, value in of.items():
            if flag in of_all and common.setdefault(flag, value) != value:
                return None
    rows = [_row(arm, settings[name], of_all) for name, arm in arms.items()]
    return _file(remark, {**_of_task(first), **common, "arms": ";".join(rows)})


def _row(arm: SearchedArm, settings: Mapping[str, Any], of_all: Collection[str]) -> str:
    """Returns an algorithm's part of --arms: its settings, except those of all methods."""
    own = {flag: value for flag, value in settings.items() if flag not in of_all}
    return arm_text(arm.name, arm.file_or_name, own)


def _of_task(arm: SearchedArm) -> dict[str, Any]:
    paths = {"data_dir": arm.data_dir, "data": arm.data}
    # The file may be used in another folder.
    given = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    return {"task": arm.task, **given}


def _file(remark: str, flags: Mapping[str, Any]) -> str:
    given = {flag: flag_text(value) for flag, value in flags.items() if value is not None}
    lines = [f"--{flag}={text}" for flag, text in with_algorithm_options(given).items()]
    return "\n".join([f"# {remark}", *lines, ""])
