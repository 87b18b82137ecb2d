"""Flags made from `ImportOptions`."""

import dataclasses
import typing
from collections.abc import Set
from typing import Any

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.registry import FORMATS
from tff_agnostic.settings import kind_of

_DEFINE = {
    int: flags.DEFINE_integer,
    str: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


def define_import_flags() -> None:
    """Defines the fields of `ImportOptions` as flags.

    Their own defaults are None, so that what the user gave can be told from the rest.
    """
    for field in dataclasses.fields(ImportOptions):
        _DEFINE[kind_of(ImportOptions, field)](field.name, None, _help(field))


def options_from_flags() -> tuple[ImportOptions, Set[str]]:
    """Returns the options that the parsed flags give, and the names of those that were given.

    Raises:
        UserError: If a value is out of range.
    """
    values = flags.FLAGS.flag_values_dict()
    given = {
        field.name: _parsed(field, values[field.name])
        for field in dataclasses.fields(ImportOptions)
        if values[field.name] is not None
    }
    return ImportOptions(**given), given.keys()


def _parsed(field: dataclasses.Field, value: Any) -> Any:
    if kind_of(ImportOptions, field) is not tuple:
        return value
    item = typing.get_args(field.type)[0]
    try:
        return tuple(item(text) for text in value)
    except ValueError:
        raise UserError(
            f"--{field.name}: expected whole numbers separated by commas, found {','.join(value)!r}"
        ) from None


def _help(field: dataclasses.Field) -> str:
    text = str(field.metadata["help"])
    if field.name == "format":
        return f"{text} One of: " + "; ".join(f"{n}: {f.summary}" for n, f in FORMATS.items()) + "."
    if "choices" in field.metadata:
        choices = field.metadata["choices"].items()
        text += " One of: " + "; ".join(f"{name}: {meaning}" for name, meaning in choices) + "."
    if "only_with" in field.metadata:
        text += f" Only with {', '.join(field.metadata['only_with'][1])}."
    default = field.default
    if default in (None, "", ()):
        return text
    return f"{text} [{','.join(map(str, default)) if isinstance(default, tuple) else default}]"
