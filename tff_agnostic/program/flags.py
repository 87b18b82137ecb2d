"""Flags made from `RunConfig` and the options of every task; each is defined once, there."""

import dataclasses
import typing
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Optional

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.program.config import RunConfig, check_effective
from tff_agnostic.program.run_spec import RunSpec, resolve
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.options import RuntimeOptions, check_options
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import option_flag

_DEFAULT_TASK = "digits"
_EXPECTED: dict[type, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    tuple: "numbers separated by commas",
}


def define_task_flags(default: Optional[str] = _DEFAULT_TASK) -> None:
    """Defines --task, --data_dir, --data and every option of every task."""
    summaries = "; ".join(f"{name}: {spec.summary}" for name, spec in TASKS.items())
    flags.DEFINE_string("task", default, f"What to learn: {summaries}")
    define_data_flags()
    for task, spec in TASKS.items():
        for field in dataclasses.fields(spec.options):
            _define(option_flag(task, field), field, f"{field.metadata['help']} [{field.default}]")


def define_data_flags() -> None:
    """Defines --data_dir and --data."""
    flags.DEFINE_string("data_dir", None, "Folder with the files of tasks that read some.")
    flags.DEFINE_string("data", None, "Client store, as import_data makes it, for tasks on stores.")


def define_override_flag(of: str) -> None:
    """Defines --override; `of` says what the flags in it are for, in capitals."""
    flags.DEFINE_multi_string(
        "override",
        [],
        f"A flag for one of them only, as {of}:FLAG=VALUE; may be given several times.",
    )


def overrides(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what --override gives to each of `names`.

    Raises:
        UserError: If one has another form, or names something else.
    """
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for text in flags.FLAGS.override:
        owner, _, assignment = text.partition(":")
        name, equals, value = assignment.partition("=")
        if not equals or owner not in given or name in ("algorithm", "seed", "runtime"):
            raise UserError(
                f"--override: expected NAME:FLAG=VALUE with one of {', '.join(names)} "
                f"and a flag of its training, found {text!r}"
            )
        given[owner][name] = parsed_value(name, value)
    return given


def define_config_flags(names: Optional[Container[str]] = None) -> None:
    """Defines fields of `RunConfig` as flags.

    The flags' own defaults are None, so that what the user gave can be told from what a task or
    `RunConfig` sets.

    Args:
        names: Which fields; all if None.
    """
    for field in dataclasses.fields(RunConfig):
        if names is None or field.name in names:
            _define(field.name, field, _config_help(field))


def define_runtime_flags() -> None:
    """Defines the fields of `RuntimeOptions` as flags."""
    for field in dataclasses.fields(RuntimeOptions):
        _define(field.name, field, _config_help(field))


def runtime_options(runtime: str) -> RuntimeOptions:
    """Returns the options that the flags give.

    Args:
        runtime: Name of the runtime that they are for.

    Raises:
        UserError: If a value is unknown, out of range, or without effect in this runtime.
    """
    given = _given(RuntimeOptions)
    options = RuntimeOptions(**given)
    check_options(options, runtime, given)
    return options


def run_spec_from_flags() -> RunSpec:
    """Returns the run that the parsed flags describe.

    Raises:
        UserError: If a value is unknown, out of range, or without effect.
    """
    task = flags.FLAGS.task
    given = given_config()
    spec = resolve(task, given, given_task_options(task), data_dir(), data())
    check_effective(spec.config, given)
    return spec


def given_config() -> dict[str, Any]:
    """Returns the fields of `RunConfig` that were given as flags."""
    return _given(RunConfig)


def data_dir() -> Optional[Path]:
    """Returns the folder of --data_dir, if it was given."""
    return _path(flags.FLAGS.data_dir)


def data() -> Optional[Path]:
    """Returns the client store of --data, if it was given."""
    return _path(flags.FLAGS.data)


def parsed_value(name: str, value: Any) -> Any:
    """Returns a value of a field of `RunConfig` from a flag's value or from text.

    Raises:
        UserError: If there is no such field, or the text is not of its type.
    """
    fields = Registry("flag", {f.name: f for f in dataclasses.fields(RunConfig)})
    return _parsed(fields[name], value)


def _parsed(field: dataclasses.Field, value: Any) -> Any:
    kind = _kind(field)
    try:
        if kind is tuple:
            items = value.split(",") if isinstance(value, str) else value
            return tuple(float(item) for item in items)
        if kind is bool and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (ValueError, KeyError):
        found = ",".join(value) if isinstance(value, list) else value
        raise UserError(f"--{field.name}: expected {_EXPECTED[kind]}, found {found!r}") from None


def given_task_options(task: str) -> dict[str, Any]:
    """Returns the options of a task that were given as flags.

    Raises:
        UserError: If the task is unknown, or options of another task were given.
    """
    values = flags.FLAGS.flag_values_dict()
    _ = TASKS[task]
    options = {}
    for name, spec in TASKS.items():
        for field in dataclasses.fields(spec.options):
            flag = option_flag(name, field)
            value = values[flag]
            if value is None:
                continue
            if name != task:
                raise UserError(f"--{flag} has no effect with --task={task}")
            options[field.name] = value
    return options


def _path(text: Optional[str]) -> Optional[Path]:
    return Path(text) if text is not None else None


def _given(settings: type) -> dict[str, Any]:
    values = flags.FLAGS.flag_values_dict()
    return {
        field.name: _parsed(field, values[field.name])
        for field in dataclasses.fields(settings)
        if values.get(field.name) is not None
    }


def _config_help(field: dataclasses.Field) -> str:
    text = field.metadata["help"]
    if "choices" in field.metadata:
        text += f" One of: {', '.join(field.metadata['choices'])}."
    defaults = []
    for task, spec in TASKS.items():
        if field.name in spec.defaults:
            defaults.append(f"{task}: {spec.defaults[field.name]}")
        for algorithm, own in spec.algorithm_defaults.items():
            if field.name in own:
                defaults.append(f"{task} with {algorithm}: {own[field.name]}")
    defaults.append(f"otherwise {field.default}" if defaults else str(field.default))
    return f"{text} [{'; '.join(defaults)}]"


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
