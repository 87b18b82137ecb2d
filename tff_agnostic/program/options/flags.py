"""Flags derived from options: every field of an options class is a flag.

A field of a part is named after the part: `client.learning_rate` is `--client_learning_rate`. A
union of options is one flag, which names a member and its fields: `--lambda_set=ball:radius=0.5`.
The help of a flag is the field's entry in the docstring of its class.

The value of a flag is a boolean, a number, a string or a tuple; a union's member is a string.
config.json, comparisons and searches store values by flag. `build` creates options from these
values, and `option_values` is its inverse.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Optional

from absl import flags as absl_flags

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import named_path
from tff_agnostic.base.options import (
    NOUNS,
    PLURALS,
    OneOf,
    OptionError,
    Options,
    Verbatim,
    alternatives,
    check,
    hints,
    is_optional,
    is_options,
)
from tff_agnostic.base.registry import Registry

_DEFINE: Mapping[type, Any] = {
    bool: absl_flags.DEFINE_bool,
    int: absl_flags.DEFINE_integer,
    float: absl_flags.DEFINE_float,
    tuple: absl_flags.DEFINE_list,
}
# In `Annotated`, marks a tuple of strings whose flag may be given several times.
REPEATED = "repeated"
# Text for None in a flag of a union.
NONE = "none"
# Separator of numbers within a union's member, as commas separate its fields.
_SLASH = "/"
_SEPARATORS: Mapping[str, str] = {",": "commas", _SLASH: "slashes"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A field of options, as a flag.

    Attributes:
        path: Field names from the options to the value.
        owner: The class that declares the field.
        hint: Annotation of the field.
        default: `dataclasses.MISSING` if the field is required.
        users: Pairs (kind, name) of the algorithms, tasks or aggregations with this flag; empty if
            every run has it.
    """

    name: str
    path: tuple[str, ...]
    owner: type
    hint: Any
    default: Any
    users: tuple[tuple[str, str], ...] = ()

    @property
    def members(self) -> dict[str, type[Options]]:
        """Members of a union by name; empty for other flags."""
        return union_members(self.hint)

    @property
    def kind(self) -> type:
        """Type of the values: bool, int, float, str, Path or tuple; str for a union."""
        return str if self.members else plain_type(_simple(self.hint))

    @property
    def item(self) -> type:
        """Type of a tuple's items; otherwise the type of the values."""
        if self.kind is not tuple:
            return self.kind
        items = typing.get_args(unannotated(_simple(self.hint)))
        return plain_type(items[0]) if items else object

    @property
    def is_path(self) -> bool:
        """Whether the value is a path."""
        return self.item is Path

    def value_in(self, options: Any) -> Any:
        """Returns the field's value in options."""
        for name in self.path:
            options = getattr(options, name)
        return options

    def files_in(self, options: Any) -> tuple[Path, ...]:
        """Returns the paths in the field, or in the field's union member."""
        value = self.value_in(options)
        if isinstance(value, Options):
            value = tuple(vars(value).values())
        return tuple(
            v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Path)
        )

    @property
    def user_names(self) -> str:
        """Names of the algorithms, tasks or aggregations that have the flag."""
        return ", ".join(name for _, name in self.users)

    def define(self, default: str = "") -> None:
        """Defines the flag for absl without a default, so that only given flags have values.

        Args:
            default: Text of the default, for the help.
        """
        define = absl_flags.DEFINE_string
        if REPEATED in getattr(self.hint, "__metadata__", ()):
            define = absl_flags.DEFINE_multi_string
        elif not self.members and len(alternatives(self.hint)) == 1:
            define = _DEFINE.get(self.kind, define)
        define(self.name, None, self.help(default))

    def help(self, default: str) -> str:
        """Returns the help text: meaning, choices, users of the flag, and default."""
        text = self.text
        choices = self.choices
        # If the text explains every choice, it already lists the choices.
        if choices and not all(re.search(rf"\b{re.escape(c)}\b", text) for c in choices):
            listed = ", ".join(choices)
            text += f" One of: {listed}{'' if listed.endswith('.') else '.'}"
        if self.users and self.users[0][0] != "task":
            text += f" Of: {self.user_names}."
        return f"{text} [{default}]" if default else text

    @property
    def text(self) -> str:
        """Text of the field in its class's docstring."""
        return attribute_text(self.owner, self.path[-1])

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the choices, or forms of a union's members; empty for flags without choices."""
        if self.members:
            none = (NONE,) if is_optional(self.hint) else ()
            return (*none, *(_form(name, kind) for name, kind in self.members.items()))
        simple = _simple(self.hint)
        if typing.get_origin(simple) is Literal:
            return tuple(map(str, typing.get_args(simple)))
        for extra in getattr(simple, "__metadata__", ()):
            if isinstance(extra, OneOf):
                return tuple(extra.names)
        return ()

    def default_text(self) -> str:
        """Returns the default as text; "" if there is no default."""
        if self.default is dataclasses.MISSING or self.default in (None, "", ()):
            return ""
        return flag_text(self.to_value(self.default))

    def parsed(self, text: Any) -> Any:
        """Returns the flag's value for a string, or for the value that absl has parsed."""
        field = self.from_value(text)
        # Keep a name such as "lstm" that may be a plain string as well as a union's member.
        has_names = any(plain_type(m) is str for m in alternatives(self.hint) if not is_options(m))
        is_bare = has_names and isinstance(field, Options) and text in self.members
        return text if is_bare else self.to_value(field)

    def check_type(self, value: Any) -> None:
        """Checks the type of a value that was read from a file."""
        self.from_value(value, separator="," if self.members or self.is_path else None)

    def to_value(self, value: Any) -> Any:
        """Returns the flag's value for a field's value."""
        if value is None:
            return NONE if self.members else None
        if isinstance(value, Options):
            name = next(n for n, kind in self.members.items() if kind is type(value))
            return _member_text(name, value)
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, tuple):
            return tuple(str(v) if isinstance(v, Path) else v for v in value)
        return value

    def from_value(self, value: Any, separator: Optional[str] = ",") -> Any:
        """Returns the field's value for a flag's value.

        Args:
            separator: Separator of items in a string, which may represent numbers, as on the
                command line; None if a string is the value itself.
        """
        where = f"--{self.name}"
        if value is None or isinstance(value, (Options, Mapping)):
            return value
        if self.members and isinstance(value, str):
            name, _, rest = value.partition(":")
            if name in self.members:
                return _member(where, name, self.members[name], rest)
            if name == NONE and is_optional(self.hint):
                return None
        simple = [m for m in alternatives(self.hint) if not is_options(m)]
        if not simple:
            none = {NONE: None} if is_optional(self.hint) else {}
            Registry(_words(self.name), {**none, **self.members}).given(where, value)
        errors: list[UserError] = []
        for hint in simple:
            # Report a number out of range as such, not as an unknown name.
            if plain_type(hint) in (Path, str) and any(isinstance(e, OptionError) for e in errors):
                continue
            try:
                return _parse(where, hint, value, separator)
            except UserError as e:
                errors.append(e)
        # For an empty string, the error that expects a path fits best.
        raise errors[-1 if value == "" else 0]


@functools.cache
def union_members(hint: Any) -> dict[str, type[Options]]:
    """Returns the classes of options in a union by name: `projected_gradient: ProjectedGradient`.

    If the class names end with the same words, these words are removed.
    """
    kinds = [member for member in alternatives(hint) if is_options(member)]
    words = [re.findall(r"[A-Z][a-z0-9]*", kind.__name__) for kind in kinds]
    while len(words) > 1 and all(len(w) > 1 and w[-1] == words[0][-1] for w in words):
        words = [w[:-1] for w in words]
    return {"_".join(w).lower(): kind for w, kind in zip(words, kinds)}


def _member_text(name: str, member: Options) -> str:
    """Returns a union's member as text: `ball:radius=0.5`."""
    fields = [
        f"{flag.name}={_within(flag.to_value(flag.value_in(member)))}"
        for flag in option_flags(type(member))
        if flag.value_in(member) is not None
    ]
    return f"{name}{':' * bool(fields)}{','.join(fields)}"


def _within(value: Any) -> str:
    return _SLASH.join(map(str, value)) if isinstance(value, tuple) else flag_text(value)


def _form(name: str, kind: type[Options]) -> str:
    fields = [f"{flag.name}=.." for flag in option_flags(kind)]
    return f"{name}{':' * bool(fields)}{','.join(fields)}"


def _member(where: str, member: str, kind: type[Options], text: str) -> Options:
    fields = {flag.name: flag for flag in option_flags(kind)}
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals or name not in fields or name in values:
            form = _form(member, kind) if fields else f"{member} alone"
            raise UserError(f"{where}: expected {form}, found {member}:{text}")
        values[name] = value
    try:
        parsed = {n: fields[n].from_value(text, separator=_SLASH) for n, text in values.items()}
        return build(kind, parsed)
    except UserError as e:
        raise UserError(f"{where}: {str(e).removeprefix('--')}") from None


def _parse(where: str, hint: Any, value: Any, separator: Optional[str]) -> Any:
    kind = plain_type(hint)
    if kind is tuple:
        item = plain_type(typing.get_args(unannotated(hint))[0])
        items = value
        if isinstance(value, str) and separator:
            items = value.split(separator) if value else []
        expected = f"a list of {PLURALS[item]}"
        if separator is not None:
            expected = f"{PLURALS[item]} separated by {_SEPARATORS[separator]}"
        shown = value
        if separator is not None and isinstance(value, (list, tuple)):
            shown = separator.join(map(str, value))
        error = UserError(f"{where}: expected {expected}, found {shown!r:.100}")
        if not isinstance(items, (list, tuple)):
            raise error
        try:
            parsed = tuple(_scalar(where, item, v, separator is not None) for v in items)
        except ValueError:
            raise error from None
    else:
        try:
            parsed = _scalar(where, kind, value, separator is not None)
        except ValueError as e:
            if isinstance(e, UserError):
                raise
            raise UserError(f"{where}: expected {NOUNS[kind]}, found {value!r:.100}") from None
    if hint is not kind:
        check(where, hint, parsed)
    return parsed


def _scalar(where: str, kind: type, value: Any, from_text: bool) -> Any:
    if kind is Path:
        if not isinstance(value, (str, Path)):
            return _reject(value)
        return named_path(where, os.fspath(value))
    if isinstance(value, str) and from_text and kind is not str:
        if kind is bool:
            lower = value.lower()
            return lower == "true" if lower in ("true", "false") else _reject(value)
        return kind(value)
    types = (int, float) if kind is float else (kind,)
    # Python treats True as a number.
    if not isinstance(value, types) or isinstance(value, bool) != (kind is bool):
        return _reject(value)
    return kind(value)


def _reject(value: Any) -> Any:
    raise ValueError(value)


def _simple(hint: Any) -> Any:
    """Returns the first member of a union annotation that is not an options class."""
    return next(m for m in alternatives(hint) if not is_options(m))


def unannotated(hint: Any) -> Any:
    """Returns an annotation without `Annotated`'s ranges and choices."""
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def plain_type(hint: Any) -> type:
    """Returns the type of an annotation's values; tuple for any tuple."""
    hint = unannotated(hint)
    if typing.get_origin(hint) is Literal:
        return type(typing.get_args(hint)[0])
    plain: type = typing.get_origin(hint) or hint
    return plain


def _words(name: str) -> str:
    return name.replace("_", " ")


def flag_text(value: Any) -> str:
    """Returns a value as the text of a flag."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def option_flags(kind: Any, prefix: str = "") -> tuple[Flag, ...]:
    """Returns the flags of an options class; the flags of a part replace the part's field."""
    return _all_flags(kind, prefix)


# Cached, because commands need a class's flags several times. Not merged with `option_flags`,
# because mypy considers classes unhashable.
@functools.cache
def _all_flags(kind: Any, prefix: str) -> tuple[Flag, ...]:
    return tuple(_own_flags(kind, prefix, (), _defaults(kind)))


def _defaults(kind: type) -> Mapping[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _own_flags(
    kind: type, prefix: str, path: tuple[str, ...], defaults: Mapping[str, Any]
) -> Iterator[Flag]:
    for name, hint in hints(kind).items():
        default = defaults[name]
        if is_options(hint):
            inner = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
            yield from _own_flags(type(default), _prefix(prefix, name), (*path, name), inner)
        else:
            declaring = next(k for k in kind.__mro__ if name in vars(k).get("__annotations__", {}))
            yield Flag(prefix + name, (*path, name), declaring, hint, default)


def _prefix(prefix: str, field: str) -> str:
    """Returns the prefix of a part's flags, without the underscore of a name such as `lambda_`."""
    return f"{prefix}{field.rstrip('_')}_"


def build(kind: type[Any], values: Mapping[str, Any], default: Any = None, prefix: str = "") -> Any:
    """Returns options built from values by flag; values of other flags are ignored.

    Args:
        default: Options that provide missing values; None for the defaults of the class.
        prefix: Prefix of the flags' names.

    Raises:
        UserError: If a value is invalid; the error names the flag.
    """
    arguments = {}
    defaults = _defaults(kind) if default is None else vars(default)
    by_field = {flag.path[0]: flag for flag in option_flags(kind, prefix) if len(flag.path) == 1}
    for name, hint in hints(kind).items():
        if is_options(hint):
            part = defaults[name]
            arguments[name] = build(type(part), values, part, _prefix(prefix, name))
        elif prefix + name in values:
            arguments[name] = by_field[name].from_value(values[prefix + name])
        elif defaults[name] is not dataclasses.MISSING:
            arguments[name] = defaults[name]
        else:
            text = re.split(r"[.;](?: |$)", attribute_text(kind, name))[0]
            # Keep the capitals of an abbreviation.
            if not text[1:2].isupper():
                text = f"{text[:1].lower()}{text[1:]}"
            raise UserError(f"--{prefix}{name}: expected {text}, found none")
    try:
        return kind(**arguments)
    except OptionError as e:
        # A union's member may be incompatible with other fields.
        member = next((name for name, value in arguments.items() if type(value) is e.kind), "")
        error = UserError(f"--{prefix}{member}{': ' * bool(member)}{e}")
        raise flag_error(e, option_flags(kind, prefix)) or error from None


def option_values(options: Any) -> dict[str, Any]:
    """Returns the values of options by flag."""
    return {
        flag.name: flag.to_value(flag.value_in(options)) for flag in option_flags(type(options))
    }


def checked(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a class's flags from a file, after checking their types.

    Args:
        values: Values by flag; names that are not flags of `kind` are ignored.

    Raises:
        KeyError: If a value is missing.
    """
    for flag in option_flags(kind):
        flag.check_type(values[flag.name])
    return {flag.name: values[flag.name] for flag in option_flags(kind)}


def flag_error(error: OptionError, flags: Iterable[Flag]) -> Optional[UserError]:
    """Converts an error about a field to an error about its flag; None if no flag has the field."""
    for flag in flags:
        is_owner = error.kind is None or issubclass(error.kind, flag.owner)
        if flag.path[-1] == error.field and is_owner:
            if isinstance(error.value, Options):
                shown = Verbatim(flag.to_value(error.value))
                error = OptionError(error.field, error.expected, shown)
            return UserError(f"--{flag.name}{str(error).removeprefix(error.field)}")
    return None


@functools.cache
def _attributes(kind: Any) -> Mapping[str, str]:
    """Returns the entries under "Attributes:" in a class's docstring, by name."""
    lines = inspect.cleandoc(vars(kind).get("__doc__") or "").splitlines()
    start = next((k for k, line in enumerate(lines) if line.strip() == "Attributes:"), len(lines))
    texts: dict[str, list[str]] = {}
    name = ""
    for line in lines[start + 1 :]:
        if line and not line.startswith(" "):
            break
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name = entry[1]
            texts[name] = [entry[2]]
        elif name:
            texts[name].append(line.strip())
    return {key: " ".join(" ".join(text).split()) for key, text in texts.items()}


def attribute_text(kind: type, field: str) -> str:
    """Returns a field's text in the docstring of its class."""
    for base in kind.__mro__:
        if field in _attributes(base):
            return _attributes(base)[field].replace("`", "")
    return ""
