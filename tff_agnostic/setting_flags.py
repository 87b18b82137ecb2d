"""Settings as absl flags: defined, and read again as values of their types."""

import dataclasses
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.files import named_path
from tff_agnostic.settings import flag_of, kind_of, type_of

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
