"""Settings: fields of frozen dataclasses that become flags, with their ranges in the metadata.

What can be chosen by name, such as an algorithm, declares its settings as such a dataclass; a flag
exists because a field does, and has an effect where the chosen dataclass has that field.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

import numpy as np

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
