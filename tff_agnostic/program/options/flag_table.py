"""Tables of a command's flags: reads values, rejects unused flags, and names flags in errors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Optional, Union

from absl import flags as absl_flags

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError, Options, alternatives
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.options.flags import (
    Flag,
    flag_error,
    flag_text,
    option_flags,
    plain_type,
    unannotated,
)


class FlagTable(Registry[Flag]):
    """Flags by name, for absl's command line and for calls from Python."""

    @classmethod
    def join(cls, users: Iterable[tuple[str, str, type]]) -> FlagTable:
        """Joins the flags of several options classes; flags with equal names become one flag.

        Args:
            users: Triples (kind, name, options class), such as ("task", "digits", DigitsOptions).
                With the name "", every run has the options.
        """
        table: dict[str, Flag] = {}
        for kind, name, options in users:
            for flag in option_flags(options):
                joined = table.get(flag.name, flag)
                if (joined.kind, joined.item) != (flag.kind, flag.item):
                    raise UserError(
                        f"{name}: options: expected {flag.name} to be {joined.item.__name__}, as "
                        f"in {joined.user_names}, found {flag.item.__name__}"
                    )
                user = ((kind, name),) if name else ()
                table[flag.name] = dataclasses.replace(
                    joined, hint=_joined(joined.hint, flag.hint), users=(*joined.users, *user)
                )
        return cls("flag", table)

    def define(
        self,
        names: Optional[Container[str]] = None,
        without: Container[str] = (),
        default_text: Callable[[Flag], str] = Flag.default_text,
    ) -> None:
        """Defines flags for absl.

        Args:
            names: Names of the flags to define; None for all.
            without: Names of the flags to omit.
            default_text: Called with a flag; returns the text of its default.
        """
        for name, flag in self.items():
            if (names is not None and name not in names) or name in without:
                continue
            if name in absl_flags.FLAGS:
                raise UserError(
                    f"{flag.user_names}: options: expected names that no other flag has, found "
                    f"{name}"
                )
            flag.define(default_text(flag))

    def from_flags(self) -> dict[str, Any]:
        """Returns the values on the command line, by flag."""
        defined = absl_flags.FLAGS
        return {
            name: flag.parsed(defined[name].value)
            for name, flag in self.items()
            if name in defined and defined[name].present
        }

    def unused_message(self, name: str, chosen: Mapping[str, Any]) -> str:
        """Returns the message about a flag without effect; it lists the choices that have the flag.

        Args:
            name: Name of a flag that only some choices have.
            chosen: Choices by kind, such as {"task": "digits"}.
        """
        users = self[name].users
        kind = users[0][0]
        needed = " or ".join(user for user_kind, user in users if user_kind == kind)
        return f"--{name} has no effect with --{kind}={chosen[kind]}: it needs --{kind}={needed}"

    def check_used(self, names: Iterable[str], kind: str, choice: str) -> None:
        """Rejects flags that a choice, such as the task digits, does not have."""
        for name in names:
            if (kind, choice) not in self[name].users:
                raise UserError(self.unused_message(name, {kind: choice}))


def _joined(hint: Any, other: Any) -> Any:
    """Returns an annotation that accepts the values of both annotations.

    If the annotations differ, the result contains neither ranges nor choices.
    """
    if hint == other:
        return hint
    members = [unannotated(m) for m in (*alternatives(hint), *alternatives(other))]
    opened = [plain_type(m) if typing.get_origin(m) is Literal else m for m in members]
    return Union[tuple(opened)]


def assignments(where: str, text: str) -> Iterator[tuple[str, str]]:
    """Yields each (NAME, VALUE) of a text NAME=VALUE,NAME=VALUE; a value may contain commas."""
    name = ""
    values: list[str] = []
    for part in text.split(",") if text else ():
        before, equals, value = part.partition("=")
        if not part.strip():
            raise UserError(f"{where}: expected no comma without a setting, found {text!r}")
        if equals and not _is_field(before, values):
            if name:
                yield name, ",".join(values)
            name, values = before.strip(), [value]
        elif name:
            # A part without a name belongs to the previous value, which contains commas.
            values.append(part)
        else:
            raise UserError(f"{where}: expected NAME=VALUE, found {part!r}")
    if name:
        yield name, ",".join(values)


def _is_field(name: str, values: Sequence[str]) -> bool:
    """Returns whether a name is a field of a union's member, such as radius in `ball:radius=0.5`.

    Args:
        values: Parts of the current value; the first one may name the member.
    """
    member, colon, _ = values[0].partition(":") if values else ("", "", "")
    return bool(colon) and name.strip() in _fields_by_member().get(member, ())


def _fields_by_member() -> Mapping[str, frozenset[str]]:
    """Returns the field names of all members of unions, by member."""
    fields: dict[str, frozenset[str]] = {}
    for kind in _subclasses(Options):
        try:
            flags = option_flags(kind)
        except NameError:
            # Ignore a user's class with an unknown annotation; it is rejected where it is used.
            continue
        for flag in flags:
            for name, member in flag.members.items():
                inner = {one.name for one in option_flags(member)}
                fields[name] = fields.get(name, frozenset()) | inner
    return fields


def _subclasses(kind: type) -> Iterator[type]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


# Maps a flag to the flag that it needs, and to the values of the needed flag that suffice.
Needs = Mapping[str, tuple[str, tuple[Any, ...]]]


def check_needs(needs: Needs, values: Mapping[str, Any], given: Iterable[str]) -> None:
    """Rejects given flags that the values of other flags make useless."""
    for name in given:
        if name not in needs:
            continue
        other, wanted = needs[name]
        value = values[other]
        # Keep only the name of a union's member, such as `ball` of `ball:radius=0.5`.
        if (value.partition(":")[0] if isinstance(value, str) else value) not in wanted:
            raise UserError(
                f"--{name} has no effect with --{other}={flag_text(value)}: it needs "
                f"--{other}={' or '.join(map(flag_text, wanted))}"
            )


@contextlib.contextmanager
def flags_in_errors(*options: Any) -> Iterator[None]:
    """Within the context, errors about fields of these options, or files in them, name the flag."""
    mistake: Optional[UserError] = None
    try:
        yield
    except OptionError as e:
        mistake = _with_flag(e, options)
    except UserError as e:
        mistake = _with_file_flag(e, options)
    # Raise the error here, so that it has no trace of the earlier exception.
    if mistake is not None:
        raise mistake


@contextlib.contextmanager
def flags_in_hints(kind: type) -> Iterator[None]:
    """Within the context, advice in errors names flags instead of options."""
    mistake: Optional[UserError] = None
    try:
        yield
    except OptionError:
        raise
    except UserError as e:
        mistake = UserError(hints_with_flags(str(e), kind))
    if mistake is not None:
        raise mistake


def hints_with_flags(text: str, kind: type) -> str:
    """Returns a text in which flags replace the names of options.

    A name is replaced if a value follows or if it has an underscore. Names in quotes are data, and
    stay unchanged.
    """
    names = [flag.name for flag in option_flags(kind)]
    joined = [name for name in names if "_" in name]
    with_value = rf"(?:{'|'.join(names)})(?==)|(?:{'|'.join(joined)})(?![\w=])"
    return re.sub(rf"(?<![\w'\".=/-])({with_value})", r"--\1", text)


def _with_flag(error: OptionError, options: Iterable[Any]) -> UserError:
    for one in options:
        for flag in option_flags(type(one)):
            value = flag.value_in(one)
            if error.kind is not None and type(value) is error.kind:
                # The error is about a field of a union's member.
                return UserError(f"--{flag.name}: {error}")
        named = flag_error(error, option_flags(type(one)))
        if named is not None:
            return named
    return error


def _with_file_flag(error: UserError, options: Iterable[Any]) -> UserError:
    for one in options:
        for flag in option_flags(type(one)):
            if any(str(error).startswith(f"{path}:") for path in flag.files_in(one)):
                # Keep the error's type, because errors of user code are printed with the user's
                # lines.
                return type(error)(f"--{flag.name}: {error}")
    return error
