"""Options: frozen dataclasses that check their own values.

The annotation of a field defines its valid values: `Annotated[float, Within(above=0)]`,
`Literal["client", "batch"]`, and, for a choice whose members have their own fields, a union of
`Options`: `Union[Simplex, Ball]`. A field whose annotation is another `Options` class groups
further fields.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Ball(Options):
    ...     radius: Annotated[float, Within(above=0)] = 1.0
    >>> Ball(radius=-1.0)
    Traceback (most recent call last):
    OptionError: radius: expected above 0, found -1.0
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry

# Limits of numbers: computations use int32 for counts, and float32 for all other numbers.
# Processors may flush numbers below the smallest normal float32 to 0.
_MAX_INT = 2**31 - 1
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MIN_FLOAT = float(np.finfo(np.float32).tiny)
# Nouns for a value of a type, and for the values of a tuple.
NOUNS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}
PLURALS: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "strings", Path: "paths"}


class OptionError(UserError):
    """An invalid value of an option.

    Attributes:
        field: Name of the field.
        expected: Description of the valid values.
        value: The value, or a description of it.
        kind: Class of the options that have the field; None if unknown.
    """

    def __init__(
        self, field: str, expected: str, value: Any, kind: Optional[type[Options]] = None
    ) -> None:
        super().__init__(f"{field}: expected {expected}, found {_shown(value)}")
        self.field, self.expected, self.value, self.kind = field, expected, value, kind


class Verbatim(str):
    """A description of a value, which `OptionError` prints without quotes."""


def _shown(value: Any) -> str:
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, tuple):
        return ",".join(map(_shown, value)) or "none"
    return repr(str(value) if isinstance(value, Path) else value)[:100]


@dataclasses.dataclass(frozen=True)
class Within:
    """The valid range of a number, or of all numbers in a tuple.

    Attributes:
        least: Minimum of the range.
        most: Maximum of the range.
        above: Exclusive lower limit.
        below: Exclusive upper limit.
        or_zero: Whether 0 is also allowed.
    """

    least: Optional[float] = None
    most: Optional[float] = None
    above: Optional[float] = None
    below: Optional[float] = None
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        """Returns whether a number is in the range."""
        return (self.or_zero and value == 0) or (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        limits = {"at least": self.least, "above": self.above}
        limits |= {"at most": self.most, "below": self.below}
        words = " and ".join(f"{word} {n:.15g}" for word, n in limits.items() if n is not None)
        return f"0 or {words}" if self.or_zero else words


@dataclasses.dataclass(frozen=True, eq=False)
class OneOf:
    """Limits a field to the names of a registry, which may be extended.

    Attributes:
        registry: The registry, or a function that returns it, for a registry defined later.
    """

    registry: Union[Registry, Callable[[], Registry]]

    def __eq__(self, other: object) -> bool:
        """Returns whether both are for the same registry, as those of a class and its subclass."""
        return isinstance(other, OneOf) and self.registry is other.registry

    def __hash__(self) -> int:
        return hash(id(self.registry))

    @property
    def names(self) -> Registry:
        """The registry."""
        return self.registry if isinstance(self.registry, Registry) else self.registry()


@dataclasses.dataclass(frozen=True)
class Options:
    """Base class of options, which checks each value against its field's annotation.

    Annotations are `bool`, `int`, `float`, `str`, `Path`, tuples of one of these, `Literal`,
    `Optional`, `Annotated` with a `Within` or a `OneOf`, another `Options` class, or unions of
    `Options` classes and the preceding types. The `__post_init__` of a class may check several
    fields together.

    Raises:
        OptionError: If a value is invalid; the error names its field.
    """

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            check(name, hint, getattr(self, name), type(self))

    def error(self, field: str, expected: str, value: Any = None) -> OptionError:
        """Returns the error of a field.

        Args:
            field: Name of the field.
            expected: Description of the valid values.
            value: The invalid value; None to use the field's value.
        """
        value = getattr(self, field) if value is None else value
        return OptionError(field, expected, value, type(self))


def check(field: str, hint: Any, value: Any, kind: Optional[type[Options]] = None) -> None:
    """Raises an `OptionError` if a value does not match an annotation."""
    registry = _registry(hint)
    if registry is not None and isinstance(value, str) and value not in registry:
        try:
            registry[value]
        except UserError as e:
            error = OptionError(field, "a name", value, kind)
            error.args = (f"{field}: {e}",)
            raise error from None
    expected = mismatch(hint, value)
    if expected:
        raise OptionError(field, expected, value, kind)


def _registry(hint: Any) -> Optional[Registry]:
    for member in alternatives(hint):
        for extra in getattr(member, "__metadata__", ()):
            if isinstance(extra, OneOf):
                return extra.names
    return None


def hints(kind: Any) -> Mapping[str, Any]:
    """Returns the annotations of a dataclass by field, including `Annotated` metadata."""
    return _hints(kind)


# The cache is on a separate function, as mypy considers classes unhashable.
@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    annotations = typing.get_type_hints(kind, include_extras=True)
    return {field.name: annotations[field.name] for field in dataclasses.fields(kind)}


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union except None; any other annotation is its only member."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(m for m in typing.get_args(hint) if m is not type(None))
    return (hint,)


def is_optional(hint: Any) -> bool:
    """Returns whether None matches an annotation."""
    return type(None) in typing.get_args(hint)


def is_options(hint: Any) -> bool:
    """Returns whether an annotation is a class of options."""
    return isinstance(hint, type) and issubclass(hint, Options)


def mismatch(hint: Any, value: Any) -> str:
    """Returns a description of an annotation's valid values; "" if `value` is valid."""
    members = alternatives(hint)
    if value is None and is_optional(hint):
        return ""
    if len(members) > 1 or members[0] is not hint:
        expected = [mismatch(member, value) for member in members]
        return "" if "" in expected else " or ".join(dict.fromkeys(expected))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return mismatch(arguments[0], value) or _outside(arguments[1:], value)
    if origin is Literal:
        is_member = any(value == one and type(value) is type(one) for one in arguments)
        return "" if is_member else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        if not isinstance(value, tuple):
            return f"a tuple of {PLURALS.get(arguments[0], 'values')}"
        return next(filter(None, (mismatch(arguments[0], v) for v in value)), "")
    if is_options(hint):
        return "" if isinstance(value, hint) else hint.__name__
    if hint is float:
        return _float_mismatch(value)
    plain = origin or hint
    if not isinstance(value, plain) or isinstance(value, bool) != (hint is bool):
        return NOUNS.get(hint, getattr(plain, "__name__", str(hint)))
    return f"at most {_MAX_INT}" if hint is int and value > _MAX_INT else ""


def _outside(limits: tuple[Any, ...], value: Any) -> str:
    numbers = value if isinstance(value, tuple) else (value,)
    for one in limits:
        if isinstance(one, Within) and not all(map(one.holds, numbers)):
            return str(one)
    return ""


def _float_mismatch(value: Any) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NOUNS[float]
    if not math.isfinite(value):
        return "a finite number"
    if abs(value) > _MAX_FLOAT:
        return f"at most {_MAX_FLOAT:.8g} in size, in the float32 of rounds"
    if 0 < abs(value) < _MIN_FLOAT:
        return f"0 or at least {_MIN_FLOAT:.8g} in size, in the float32 of rounds"
    return ""
