"""Flags made from `RunConfig` and the options of every task; each is defined once, there."""

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.program.config import RunConfig
from tff_agnostic.program.run_spec import RunSpec, resolve
from tff_agnostic.tasks.registry import TASKS

_DEFAULT_TASK = "digits"


def define_run_flags(names_left_out: tuple[str, ...] = ()) -> None:
    """Defines --task, --data_dir, every field of `RunConfig` and every task option as flags.

    The flags' own defaults are None, so that what the user gave can be told from what a task or
    `RunConfig` sets.

    Args:
        names_left_out: Fields for which the binary has other flags.
    """
    flags.DEFINE_string(
        "task",
        _DEFAULT_TASK,
        "What to learn: " + "; ".join(f"{name}: {spec.summary}" for name, spec in TASKS.items()),
    )
    flags.DEFINE_string("data_dir", None, "Folder with the files of tasks that read some.")
    for field in dataclasses.fields(RunConfig):
        if field.name not in names_left_out:
            _define(field.name, field, _config_help(field))
    for task, spec in TASKS.items():
        for field in dataclasses.fields(spec.options):
            _define(f"{task}_{field.name}", field, f"{field.metadata['help']} [{field.default}]")


def run_spec_from_flags(overrides: Mapping[str, Any], check_effects: bool = True) -> RunSpec:
    """Returns the run that the parsed flags describe.

    Args:
        overrides: Fields of `RunConfig` that the binary sets itself.
        check_effects: Whether to refuse given flags that have no effect on this run.

    Raises:
        UserError: If a value is unknown, out of range, or without effect.
    """
    values = flags.FLAGS.flag_values_dict()
    task = values["task"]
    given = {
        field.name: _parsed(field, values[field.name])
        for field in dataclasses.fields(RunConfig)
        if values.get(field.name) is not None
    }
    data_dir = Path(values["data_dir"]) if values["data_dir"] is not None else None
    return resolve(
        task, {**given, **overrides}, _task_options(task, values), data_dir, check_effects
    )


def _task_options(task: str, values: Mapping[str, Any]) -> dict[str, Any]:
    _ = TASKS[task]
    options = {}
    for name, spec in TASKS.items():
        for field in dataclasses.fields(spec.options):
            value = values[f"{name}_{field.name}"]
            if value is None:
                continue
            if name != task:
                raise UserError(f"--{name}_{field.name} has no effect with --task={task}")
            options[field.name] = value
    return options


def _config_help(field: dataclasses.Field) -> str:
    text = field.metadata["help"]
    if "choices" in field.metadata:
        text += f" One of: {', '.join(field.metadata['choices'])}."
    tasks = [f"{t}: {s.defaults[field.name]}" for t, s in TASKS.items() if field.name in s.defaults]
    return f"{text} [{'; '.join([*tasks, f'otherwise {field.default}'])}]"


def _define(name: str, field: dataclasses.Field, help_: str) -> None:
    define = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        tuple: flags.DEFINE_list,
    }[_kind(field)]
    define(name, None, help_)


def _kind(field: dataclasses.Field) -> type:
    kind: Any = field.type
    if typing.get_origin(kind) is typing.Union:
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    return typing.get_origin(kind) or kind


def _parsed(field: dataclasses.Field, value: Any) -> Any:
    if _kind(field) is not tuple:
        return value
    try:
        return tuple(float(item) for item in value)
    except ValueError:
        raise UserError(
            f"--{field.name}: expected numbers separated by commas, found {','.join(value)!r}"
        ) from None

