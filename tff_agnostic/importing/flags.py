"""Flags made from `ImportOptions`."""

import dataclasses
from collections.abc import Set

from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.registry import FORMATS
from tff_agnostic.setting_flags import define, given_values, settings_in


def define_import_flags() -> None:
    """Defines the fields of `ImportOptions` as flags.

    Their own defaults are None, so that what the user gave can be told from the rest.
    """
    for setting in settings_in(ImportOptions):
        define(setting, _help(setting.field))


def options_from_flags() -> tuple[ImportOptions, Set[str]]:
    """Returns the options that the parsed flags give, and the names of those that were given.

    Raises:
        UserError: If a value is out of range.
    """
    given = given_values(settings_in(ImportOptions))
    return ImportOptions(**given), given.keys()


def _help(field: dataclasses.Field) -> str:
    text = str(field.metadata["help"])
    if field.name == "format":
        return f"{text} One of: " + "; ".join(f"{n}: {f.summary}" for n, f in FORMATS.items()) + "."
    if "choices" in field.metadata:
        choices = field.metadata["choices"].items()
        text += " One of: " + "; ".join(f"{name}: {meaning}" for name, meaning in choices) + "."
    if "only_with" in field.metadata:
        other, values = field.metadata["only_with"]
        needed = values if other == "format" else [f"--{other}={value}" for value in values]
        text += f" Only with {', '.join(needed)}."
    default = field.default
    if default in (None, "", ()):
        return text
    return f"{text} [{','.join(map(str, default)) if isinstance(default, tuple) else default}]"
