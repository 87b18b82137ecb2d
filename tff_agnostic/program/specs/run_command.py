"""Runs as command lines, and their settings as others may read them: without anybody's paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.errors import UserError
from tff_agnostic.program.specs.run_spec import RunSpec, check_given, resolve
from tff_agnostic.program.specs.setting_paths import path_fields, path_of
from tff_agnostic.settings import flag_of
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import option_flag

# What decides which other settings there are, and what their defaults are.
_CHOICES = ("algorithm", "aggregation", "privacy")
_PLACES = ("data_dir", "data")


def train_command(spec: RunSpec) -> list[str]:
    """Returns the shortest command line that trains a run again, where its files are at hand.

    It has what is not the default of the task or of the setting. Files have their names only.
    """
    # A file of the user's keeps its suffix, by which it is known for one.
    shown = {**flags_without_folders(spec), "algorithm": Path(spec.config.algorithm).name}
    own = {name: shown[name] for name in own_flags(spec)}
    return ["./run", "train", f"--task={spec.task}", *flag_texts(own)]


def own_flags(spec: RunSpec) -> dict[str, Any]:
    """Returns the flags, beside --task, that make a run what it is, with their values."""
    flags = spec.flags()
    chosen = {name: flags[name] for name in _CHOICES}
    data_dir, data = map(path_of, (spec.data_dir, spec.data))
    try:
        defaults = resolve(spec.task, chosen, {}, data_dir, data).flags()
        usual = resolve(spec.task, {}, {}, data_dir, data).flags()
    except UserError:
        # Settings of a user's algorithm may exclude their own defaults.
        defaults, usual = {}, {}
    # Of what decides about others, the task's own default; where files lie is none.
    defaults.update({name: usual.get(name) for name in _CHOICES}, task=spec.task)
    defaults.update(dict.fromkeys(_PLACES))
    settings = spec.settings()
    return {
        name: value
        for name, value in flags.items()
        if value != defaults.get(name)
        and value is not None
        and (name not in settings or _has_effect(spec, name, settings[name]))
    }


def flag_texts(flags: Mapping[str, Any]) -> list[str]:
    """Returns flags as arguments of a command."""
    return [f"--{name}={flag_text(value)}" for name, value in flags.items()]


def flag_text(value: Any) -> str:
    """Returns a value of a flag as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def flags_without_folders(spec: RunSpec) -> dict[str, Any]:
    """Returns all flags of a run, with the names of files instead of where they lay."""
    return _shown(spec, spec.flags())


def path_flags(spec: RunSpec) -> set[str]:
    """Returns the flags of a run that say where files lie."""
    paths = {*_PLACES}
    paths.update(option_flag(spec.task, f) for f in path_fields(TASKS[spec.task].options))
    paths.update(flag_of(f) for part in (spec.config, spec.algorithm) for f in path_fields(part))
    return paths


def _shown(spec: RunSpec, flags: Mapping[str, Any]) -> dict[str, Any]:
    paths = path_flags(spec)
    named = {name: _names(value) if name in paths else value for name, value in flags.items()}
    return {**named, "algorithm": algorithm_label(spec.config.algorithm)}


def _names(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [Path(path).name for path in value]
    return None if value is None else Path(value).name


def _has_effect(spec: RunSpec, name: str, value: Any) -> bool:
    # Rows of a comparison are given what only others have a use for.
    try:
        check_given(spec, {name: value})
    except UserError:
        return False
    return True


def compare_command(rows: Mapping[str, Sequence[RunSpec]]) -> list[str]:
    """Returns the shortest command line that makes a comparison again; see `train_command`.

    Args:
        rows: The trials of each row, by the names of their folders; trials differ in their seeds.
    """
    first = {row: specs[0] for row, specs in rows.items()}
    own = {row: _of_row(spec) for row, spec in first.items()}
    one, *others = own.values()
    shared = {n: v for n, v in one.items() if all(n in of and of[n] == v for of in others)}
    rest = {row: {n: v for n, v in of.items() if n not in shared} for row, of in own.items()}
    named = {row: Path(spec.config.algorithm).name for row, spec in first.items()}
    if not any(rest.values()) and all(
        row == algorithm_label(spec.config.algorithm) for row, spec in first.items()
    ):
        who = f"--algorithms={','.join(named.values())}"
    else:
        arms = (_arm(row, named[row], flag_texts(rest[row])) for row in rows)
        who = f"--arms={';'.join(arms)}"
    spec = next(iter(first.values()))
    trials = max(map(len, rows.values()))
    return [
        *("./run", "compare", f"--task={spec.task}", who, f"--trials={trials}"),
        *flag_texts(shared),
        *([f"--seed={spec.config.seed}"] if spec.config.seed else []),
    ]


def _of_row(spec: RunSpec) -> dict[str, Any]:
    shown = flags_without_folders(spec)
    return {n: shown[n] for n in own_flags(spec) if n not in ("algorithm", "seed")}


def _arm(row: str, algorithm: str, flags: Sequence[str]) -> str:
    label = "" if row == Path(algorithm).stem else f"{row}="
    settings = ",".join(flag[len("--") :] for flag in flags)
    return f"{label}{algorithm}{':' if settings else ''}{settings}"
