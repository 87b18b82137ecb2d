"""Settings: fields of frozen dataclasses that become flags, with their ranges, and their parsing.

What can be chosen by name, such as an algorithm, declares its settings as such a dataclass; a flag
exists because a field does, and has an effect where the chosen dataclass has that field.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.files import named_path
from tff_agnostic.registry import Registry

# `Optional[int]`, and `int | None` where Python has it.
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
# Computations count in int32.
_MAX_INT = 2**31 - 1
# And they are in float32. What is nearer to 0 than its smallest normal number, processors may take
# for 0.
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MIN_FLOAT = float(np.finfo(np.float32).tiny)
_EXPECTED: dict[type, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a text",
}
_ITEMS: dict[type, str] = {float: "numbers", int: "whole numbers", str: "texts"}
_TYPES: dict[type, Any] = {bool: bool, float: (int, float), int: int, str: str}
_DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of settings: values are checked when one is made. By itself it has none."""

    def __post_init__(self) -> None:
        """Raises a `UserError` that names the flag if a value is out of range."""
        check_values(self)


def setting(
    default: Any, help_: str, flag: Optional[str] = None, is_path: bool = False, **metadata: Any
) -> Any:
    """Declares a field.

    Args:
        default: The default.
        help_: The flag's help text.
        flag: The flag's name, if it is not the field's.
        is_path: Whether it names a file, which is the same file however it is named.
        **metadata: `choices` (a registry), `at_least`, `at_most`, `positive`, `below` (an exclusive
            upper limit), `zero_or_at_least`, `only_with` (another setting and the values with which
            this one has an effect), `runtimes` (the same of runtimes), `may_change` (that a run
            that goes on may have another value, and what is then told of its earlier rounds, if
            anything is), `as_before` (what runs mean that were written before the setting existed,
            if it is not the default), and `is_stored` (False of what no folder keeps: it is given
            each time).
    """
    return dataclasses.field(
        default=default, metadata={"help": help_, "flag": flag, "is_path": is_path, **metadata}
    )


def flag_of(field: dataclasses.Field) -> str:
    """Returns the name of the flag of a field."""
    return field.metadata.get("flag") or field.name


def is_stored(field: dataclasses.Field) -> bool:
    """Returns whether folders of runs keep the value of a field."""
    return bool(field.metadata.get("is_stored", True))


def kind_of(settings: type, field: dataclasses.Field) -> type:
    """Returns bool, int, float, str or tuple: the type of a field, whether it is optional or not.

    Args:
        settings: The dataclass; its annotations may be texts.
        field: One of its fields.
    """
    kind = type_of(settings, field)
    return typing.get_origin(kind) or kind


def type_of(settings: type, field: dataclasses.Field) -> Any:
    """Returns the type of a field as it is annotated, without None: `tuple[float, ...]`, say."""
    kind: Any = _annotations(settings)[field.name]
    if typing.get_origin(kind) in _UNIONS:
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    return kind


# Evaluated once: a command asks for the types of all settings several times.
@functools.cache
def _annotations(settings: type) -> Mapping[str, Any]:
    return typing.get_type_hints(settings)


def check_values(settings: Any, name_of: Callable[[dataclasses.Field], str] = flag_of) -> None:
    """Checks the values of a dataclass of settings.

    Args:
        settings: The dataclass.
        name_of: Returns the name of a field's flag.

    Raises:
        UserError: Naming the flag, if a value is out of range, or is no number of the computations:
            they are in int32 and float32.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            _check_value(f"--{name_of(field)}", value, field.metadata)


def part_of(settings: Any, part: type) -> Any:
    """Returns the settings that a dataclass inherits from one of its bases, as that base's own.

    Two runs that differ elsewhere have equal parts, and share what was made for it.

    Args:
        settings: An instance of a subclass of `part`.
        part: A dataclass.
    """
    return part(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(part)})


def check_effective(settings: Any, given: Iterable[str]) -> None:
    """Refuses settings that were given but have no effect beside the others.

    Args:
        settings: A dataclass whose fields may have an `only_with`.
        given: Names of the fields that the user gave.

    Raises:
        UserError: Naming the first such flag and what it needs.
    """
    fields = {field.name: field for field in dataclasses.fields(settings)}
    for name in given:
        only_with = fields[name].metadata.get("only_with")
        if only_with is None:
            continue
        other, wanted = only_with
        found = getattr(settings, other)
        if found not in wanted:
            other_flag = flag_of(fields[other])
            raise UserError(
                f"--{flag_of(fields[name])} has no effect with --{other_flag}={found}: it needs "
                f"--{other_flag}={' or '.join(map(str, wanted))}"
            )


def _check_value(flag: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if "choices" in metadata:
        choices: Registry = metadata["choices"]
        choices.given(flag, value)
    if metadata.get("is_path"):
        for path in (value or ("",)) if isinstance(value, tuple) else (value,):
            named_path(flag, path)
    for number in value if isinstance(value, tuple) else (value,):
        _check_number(flag, number)
    if metadata.get("positive") and value <= 0:
        raise UserError(f"{flag}: expected a positive number, found {value}")
    if "at_least" in metadata and value < metadata["at_least"]:
        raise UserError(f"{flag}: expected at least {metadata['at_least']}, found {value}")
    if "zero_or_at_least" in metadata and value != 0 and value < metadata["zero_or_at_least"]:
        raise UserError(
            f"{flag}: expected 0 or at least {metadata['zero_or_at_least']}, found {value}"
        )
    if "at_most" in metadata and value > metadata["at_most"]:
        raise UserError(f"{flag}: expected at most {metadata['at_most']}, found {value}")
    if "below" in metadata and value >= metadata["below"]:
        raise UserError(f"{flag}: expected less than {metadata['below']}, found {value}")


def _check_number(flag: str, value: Any) -> None:
    if isinstance(value, int) and value > _MAX_INT:
        raise UserError(f"{flag}: expected at most {_MAX_INT}, found {value}")
    if not isinstance(value, float):
        return
    if not math.isfinite(value):
        raise UserError(f"{flag}: expected a finite number, found {value}")
    if abs(value) > _MAX_FLOAT:
        raise UserError(
            f"{flag}: expected at most {_MAX_FLOAT:.8g} in size, as float32 has it, in which "
            f"rounds are computed, found {value}"
        )
    if 0 < abs(value) < _MIN_FLOAT:
        raise UserError(
            f"{flag}: expected 0 or at least {_MIN_FLOAT:.8g} in size, as float32 has it, in which "
            f"rounds are computed, found {value}"
        )


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a dataclass of settings, as a flag.

    Attributes:
        flag: Name of the flag.
        field: The field.
        kind: bool, int, float, str or tuple.
        item: What a tuple is made of; the kind itself of others.
        owners: Names of what has this setting, where not everything does.
    """

    flag: str
    field: dataclasses.Field
    kind: type
    item: type
    owners: tuple[str, ...] = ()


def settings_in(options: type) -> list[Setting]:
    """Returns the settings that a dataclass declares, in their order."""
    return [
        Setting(flag_of(field), field, kind_of(options, field), _item_of(options, field))
        for field in dataclasses.fields(options)
    ]


def define(setting: Setting, help_: str) -> None:
    """Defines a flag whose default is None, so that what was given can be told from the rest."""
    _DEFINE[setting.kind](setting.flag, None, help_)


def given_values(settings: Iterable[Setting]) -> dict[str, Any]:
    """Returns the settings that were given on the command line, by flag.

    Raises:
        UserError: If a value is not of its type.
    """
    values = flags.FLAGS.flag_values_dict()
    return {
        setting.flag: parsed(setting, values[setting.flag])
        for setting in settings
        if values.get(setting.flag) is not None
    }


def path_flag(name: str) -> Optional[Path]:
    """Returns the path that a flag gives, None if it was not given.

    Raises:
        UserError: As `named_path` does.
    """
    text = flags.FLAGS[name].value
    return None if text is None else named_path(f"--{name}", text)


def parsed(setting: Setting, value: Any) -> Any:
    """Returns a value of a setting's type from a flag's value or from text.

    Raises:
        UserError: If the text is not of that type.
    """
    try:
        if setting.kind is tuple:
            items = value.split(",") if isinstance(value, str) else value
            return tuple(setting.item(item) for item in items)
        if setting.kind is bool and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        return setting.kind(value)
    except (ValueError, KeyError):
        found = ",".join(value) if isinstance(value, list) else value
        raise UserError(
            f"--{setting.flag}: expected {_expected(setting)}, found {found!r}"
        ) from None


def check_type(setting: Setting, value: Any) -> None:
    """Checks that a value, read from a file, is of a setting's type.

    Raises:
        UserError: If it is not; None is right where it is the default.
    """
    if value is None and setting.field.default is None:
        return
    is_tuple = isinstance(value, tuple)
    items = value if is_tuple else (value,)
    are_right = is_tuple == (setting.kind is tuple) and all(
        # Python takes True for a number.
        isinstance(item, _TYPES[setting.item]) and isinstance(item, bool) == (setting.item is bool)
        for item in items
    )
    if not are_right:
        raise UserError(f"--{setting.flag}: expected {_expected(setting)}, found {value!r:.100}")


def _expected(setting: Setting) -> str:
    if setting.kind is tuple:
        return f"{_ITEMS[setting.item]} separated by commas"
    return _EXPECTED[setting.kind]


def _item_of(options: type, field: dataclasses.Field) -> type:
    kind = type_of(options, field)
    arguments = typing.get_args(kind)
    item: type = arguments[0] if arguments else kind
    return item
