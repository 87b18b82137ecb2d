"""Settings: fields of frozen dataclasses that become flags, with their ranges, and their parsing.

What can be chosen by name, such as an algorithm, declares its settings as such a dataclass; a flag
exists because a field does, and has an effect where the chosen dataclass has that field.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import sys
import types
import typing
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Union

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
    Path: "a path",
}
_ITEMS: dict[type, str] = {float: "numbers", int: "whole numbers", str: "texts"}
_TYPES: dict[type, Any] = {bool: bool, float: (int, float), int: int, str: str, Path: str}
_DEFINE: dict[type, Any] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    Path: flags.DEFINE_string,
    tuple: flags.DEFINE_list,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of settings: values are checked when one is made. By itself it has none."""

    def __post_init__(self) -> None:
        """Raises a `UserError` that names the flag if a value is out of range."""
        check_values(self)


def setting(
    default: Any,
    help_: Union[str, Callable[[], str]],
    flag: Optional[str] = None,
    is_path: bool = False,
    **metadata: Any,
) -> Any:
    """Declares a field.

    Args:
        help_: The flag's help text, or what returns it.
        flag: The flag's name, if it is not the field's.
        is_path: Whether it names a file, which is the same file however it is named.
        **metadata: `choices` (a registry), `at_least`, `at_most`, `positive`, `below` (an exclusive
            upper limit), `zero_or_at_least`, `only_with` (another setting and the values with which
            this one has an effect), `runtimes` (the same of runtimes), `may_change` (that a run
            that goes on may have another value, and what is then told of its earlier rounds, if
            anything is), `as_before` (what runs mean that were written before the setting existed,
            if it is not the default), `is_stored` (False of what no folder keeps: it is given
            each time), `short` (its help on a page of many flags, where that is shorter),
            `required` (what has to be given), `repeated` (of texts: the flag may be
            given several times), `alias` (another setting, and its values by those of this one,
            which is an earlier name of it and not stored), `or_text` (of numbers: a text that is
            none is kept as it is), and `also` (types that callers in Python may give instead).
    """
    return dataclasses.field(
        default=default, metadata={"help": help_, "flag": flag, "is_path": is_path, **metadata}
    )


def command_setting(default: Any, help_: Union[str, Callable[[], str]], **metadata: Any) -> Any:
    """Declares a field of a command's own, whose default nothing else decides; see `setting`."""
    return setting(default, help_, of_command=True, **metadata)


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
    """
    kind = type_of(settings, field)
    return typing.get_origin(kind) or kind


def type_of(settings: type, field: dataclasses.Field) -> Any:
    """Returns the type of a field as it is annotated, without None: `tuple[float, ...]`, say."""
    kind: Any = _annotations(settings)[field.name]
    if typing.get_origin(kind) in _UNIONS:
        # The first: a text may stand beside numbers.
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
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            _check_value(f"--{name_of(field)}", value, field.metadata)
        elif "required" in field.metadata:
            raise UserError(
                f"--{name_of(field)}: expected {field.metadata['required']}, found none"
            )


def resolve_aliases(settings: Any) -> None:
    """Gives settings the values that their aliases say, and forgets the aliases.

    Args:
        settings: A frozen dataclass that is being made.
    """
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    for name, value in without_aliases(type(settings), values).items():
        object.__setattr__(settings, name, value)
    for field in dataclasses.fields(settings):
        if "alias" in field.metadata:
            object.__setattr__(settings, field.name, None)


def without_aliases(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values, by field, in which those of aliases are those of what they are names of.

    Args:
        kind: A dataclass of settings.
        values: By the names of its fields; others are left alone.
    """
    found = dict(values)
    for field in dataclasses.fields(kind):
        if "alias" not in field.metadata or found.get(field.name) is None:
            continue
        name, meanings = field.metadata["alias"]
        value = found.pop(field.name)
        if not isinstance(value, bool):
            raise UserError(f"--{flag_of(field)}: expected true or false, found {value!r:.100}")
        if found.get(name) not in (None, meanings[value]):
            raise UserError(
                f"--{flag_of(field)}={flag_text(value)} is --{name}={meanings[value]}: expected no "
                f"other beside it, found --{name}={found[name]}"
            )
        found[name] = meanings[value]
    return found


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
    if "also" in metadata and not isinstance(value, str) and isinstance(value, metadata["also"]):
        return
    if isinstance(value, str) and metadata.get("or_text"):
        if metadata.get("is_path"):
            named_path(flag, value)
        return
    if "choices" in metadata:
        choices: Registry = metadata["choices"]
        choices.given(flag, value)
    if metadata.get("is_path") and not isinstance(value, int):
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


def flag_text(value: Any) -> str:
    """Returns a value as a flag has it."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of a dataclass of settings, as a flag.

    Attributes:
        flag: Name of the flag.
        field: The field.
        kind: bool, int, float, str, Path or tuple.
        item: What a tuple is made of; the kind itself of others.
        needs: Another flag and the values with which this one has an effect, if there is one.
        owners: Part and name of what has this option, where not everything does.
    """

    flag: str
    field: dataclasses.Field
    kind: type
    item: type
    needs: Optional[tuple[str, tuple[Any, ...]]] = None
    owners: tuple[tuple[str, str], ...] = ()

    @property
    def owner_names(self) -> str:
        """Names of what has this option, in a text."""
        return ", ".join(name for _, name in self.owners)

    def define(self, default: str) -> None:
        """Defines the flag.

        Its own default is None, so that what was given can be told from the rest, unless it is of a
        command: nothing else has a default for those.

        Args:
            default: The default, for the help text; "" if there is none.
        """
        if self.field.metadata.get("repeated"):
            define: Any = flags.DEFINE_multi_string
        else:
            define = _DEFINE[self.kind]
        if self.field.metadata.get("of_command"):
            known = self.field.default
            define(self.flag, list(known) if isinstance(known, tuple) else known, self.help(""))
        else:
            define(self.flag, None, self.help(default))

    def help(self, default: str) -> str:
        """Returns the help text: meaning, choices, whose it is, what it needs, and the default."""
        text, choices = self.field.metadata["help"], self.field.metadata.get("choices")
        if callable(text):
            text = text()
        # A text that explains every choice names them all.
        if choices is not None and not all(re.search(rf"\b{n}\b", text) for n in choices):
            text += f" One of: {_listed(choices)}."
        if self.owners:
            text += f" Of: {self.owner_names}."
        if self.needs is not None:
            other, values = self.needs
            text += f" Only with --{other}={' or '.join(map(flag_text, values))}."
        return f"{text} [{default}]" if default else text

    def default_text(self) -> str:
        """Returns the default as a flag has it; "" if there is none."""
        default = self.field.default
        return "" if default in (None, "", ()) else flag_text(default)

    def parsed(self, value: Any) -> Any:
        """Returns a value of the option's type from a flag's value or from text.

        Of an earlier name of another option a line says that it goes: only what a user gives is
        parsed.
        """
        found = self._parsed(value)
        if "alias" in self.field.metadata:
            name, meanings = self.field.metadata["alias"]
            _tell_once(
                f"note: --{self.flag}={flag_text(found)} goes with the next release: "
                f"--{name}={meanings[found]} is the same"
            )
        return found

    def _parsed(self, value: Any) -> Any:
        if self.kind is Path:
            return named_path(f"--{self.flag}", value)
        try:
            if self.kind is tuple:
                items = value.split(",") if isinstance(value, str) else value
                return tuple(self.item(item) for item in items)
            if self.kind is bool and isinstance(value, str):
                return {"true": True, "false": False}[value.lower()]
            return self.kind(value)
        except (ValueError, KeyError):
            found = ",".join(value) if isinstance(value, list) else value
            if self.field.metadata.get("or_text") and isinstance(found, str):
                return found
            raise UserError(
                f"--{self.flag}: expected {self._expected()}, found {found!r}"
            ) from None

    def check_type(self, value: Any) -> None:
        """Checks that a value, read from a file, is of the option's type."""
        if value is None and self.field.default is None:
            return
        if isinstance(value, str) and self.field.metadata.get("or_text"):
            return
        is_tuple = isinstance(value, tuple)
        items = value if is_tuple else (value,)
        are_right = is_tuple == (self.kind is tuple) and all(
            # Python takes True for a number.
            isinstance(item, _TYPES[self.item]) and isinstance(item, bool) == (self.item is bool)
            for item in items
        )
        if not are_right:
            raise UserError(f"--{self.flag}: expected {self._expected()}, found {value!r:.100}")

    def checked(self, value: Any) -> Any:
        """Returns a value of Python in the option's own type: a list may stand for a tuple."""
        also = self.field.metadata.get("also")
        if also is not None and isinstance(value, also):
            return value
        if isinstance(value, (list, tuple)):
            value = tuple(map(_plain, value))
        value = _plain(value)
        self.check_type(value)
        return self.parsed(value)

    def _expected(self) -> str:
        if self.kind is tuple:
            return f"{_ITEMS[self.item]} separated by commas"
        return _EXPECTED[self.kind]


def _listed(choices: Registry) -> str:
    if all(isinstance(text, str) and text != name for name, text in choices.items()):
        return "; ".join(f"{name}: {meaning}" for name, meaning in choices.items())
    return ", ".join(choices)


# A search parses a value in every trial.
@functools.cache
def _tell_once(line: str) -> None:
    print(line, file=sys.stderr)


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def settings_in(options: type) -> list[Option]:
    """Returns the settings that a dataclass declares as options, in their order."""
    flags_ = {field.name: flag_of(field) for field in dataclasses.fields(options)}

    def needs(field: dataclasses.Field) -> Optional[tuple[str, tuple[Any, ...]]]:
        if field.metadata.get("only_with") is None:
            return None
        other, values = field.metadata["only_with"]
        return flags_[other], tuple(values)

    return [
        Option(
            f.metadata.get("flag") or f.name, f, kind_of(options, f), _item_of(options, f), needs(f)
        )
        for f in dataclasses.fields(options)
    ]


class OptionTable(Registry[Option]):
    """Options by flag: defined as absl's flags, and read from flags or from Python."""

    @classmethod
    def of(cls, kind: str, parts: Iterable[tuple[str, str, type]]) -> OptionTable:
        """Joins the options of several dataclasses; what several have is one option.

        Args:
            kind: What an option is, for messages.
            parts: Part, name and dataclass of whoever has options; without a name everybody has
                them.
        """
        options: dict[str, Option] = {}
        for part, name, dataclass in parts:
            for option in settings_in(dataclass):
                known = options.get(option.flag, option)
                if (known.kind, known.item) != (option.kind, option.item):
                    raise UserError(
                        f"{name}: options: expected {option.flag} to be {known.item.__name__}, as "
                        f"that of {known.owner_names}, found {option.item.__name__}"
                    )
                owner = ((part, name),) if name else ()
                options[option.flag] = dataclasses.replace(known, owners=(*known.owners, *owner))
        return cls(kind, options)

    def define(
        self,
        names: Optional[Container[str]] = None,
        without: Container[str] = (),
        default_text: Callable[[Option], str] = Option.default_text,
    ) -> None:
        """Defines options as flags.

        Args:
            names: Which ones; all if None.
            without: Which of them not.
            default_text: Returns the default of an option for its help text.
        """
        for flag, option in self.items():
            if (names is not None and flag not in names) or flag in without:
                continue
            if flag in flags.FLAGS:
                raise UserError(
                    f"{option.owner_names}: options: expected names that no other flag has, found "
                    f"{flag}"
                )
            option.define(default_text(option))

    def from_flags(self) -> dict[str, Any]:
        """Returns what was given on the command line, by flag."""
        known = flags.FLAGS
        return {
            flag: option.parsed(known[flag].value)
            for flag, option in self.items()
            if flag in known and known[flag].present
        }

    def from_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a caller in Python gives, by flag; None is as if it were not given."""
        return {
            flag: self[flag].checked(value)
            for flag, value in arguments.items()
            if value is not None
        }


def make(kind: type, values: Mapping[str, Any]) -> Any:
    """Returns an instance of a dataclass of settings.

    Args:
        kind: The dataclass.
        values: Values by flag; others than its own are left alone.
    """
    fields = {flag_of(field): field.name for field in dataclasses.fields(kind)}
    return kind(**{name: values[flag] for flag, name in fields.items() if flag in values})


def _item_of(options: type, field: dataclasses.Field) -> type:
    kind = type_of(options, field)
    arguments = typing.get_args(kind)
    item: type = arguments[0] if arguments else kind
    return item
