"""What a search found, as files of flags that `train` and `compare` take."""

from collections.abc import Mapping
from typing import Any, Optional

from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.program.specs.arms import OF_ALL_ROWS
from tff_agnostic.program.specs.run_command import flag_text
from tff_agnostic.program.tuning.arm import SearchedArm
from tff_agnostic.tasks.registry import option_flags

# The settings of each algorithm by flag, by its name.
Settings = Mapping[str, Mapping[str, Any]]


def flags_of_one(arm: SearchedArm, settings: Mapping[str, Any], remark: str) -> str:
    """Returns the flags of one algorithm with its best settings, for `train` and `compare`.

    Args:
        arm: The algorithm.
        settings: Its settings; see `SearchedArm.settings`.
        remark: A line that says what they are.
    """
    # Each of the two commands has one of these flags, and is told to overlook the other.
    which = {"undefok": "algorithm,algorithms", "algorithm": arm.file_or_name}
    which["algorithms"] = arm.file_or_name
    return _file(remark, {**_of_task(arm), **which, **settings})


def flags_of_all(arms: Mapping[str, SearchedArm], settings: Settings, remark: str) -> Optional[str]:
    """Returns the flags of a comparison, each algorithm with its own best settings.

    None where they have different options of the task, which rows of a comparison share.

    Args:
        arms: The algorithms, by their names.
        settings: The settings of each.
        remark: A line that says what they are.
    """
    first = next(iter(arms.values()))
    own_of_any = {f for arm in arms.values() for f in (*arm.given, *arm.dimensions)}
    shared = set(first.shared) - own_of_any
    of_all = {*option_flags(first.task), *OF_ALL_ROWS, *shared}
    common: dict[str, Any] = {}
    for of in settings.values():
        for flag, value in of.items():
            if flag in of_all and common.setdefault(flag, value) != value:
                return None
    rows = []
    for name, arm in arms.items():
        label = "" if name == algorithm_label(arm.file_or_name) else f"{name}="
        own = [f"{f}={flag_text(v)}" for f, v in settings[name].items() if f not in of_all]
        rows.append(f"{label}{arm.file_or_name}{':' * bool(own)}{','.join(own)}")
    return _file(remark, {**_of_task(first), **common, "arms": ";".join(rows)})


def _of_task(arm: SearchedArm) -> dict[str, Any]:
    paths = {"data_dir": arm.data_dir, "data": arm.data}
    # Whoever uses the file may be in another folder.
    given = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    return {"task": arm.task, **given}


def _file(remark: str, flags: Mapping[str, Any]) -> str:
    lines = [f"--{flag}={flag_text(value)}" for flag, value in flags.items() if value is not None]
    return "\n".join([f"# {remark}", *lines, ""])
