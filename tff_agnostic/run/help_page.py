"""`--help`: the flags of a command that apply to what is chosen, in groups, with their defaults.

A command on runs has some 200 flags; a run of one task and one algorithm has a use for 60 of them.
The page shows those. Its groups are the dataclasses that declare the flags, and their headings are
the first sentences of these classes' docstrings. `--help=GROUP` prints one group with all that
`--helpfull` says of its flags.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from tff_agnostic.registry import Registry
from tff_agnostic.settings import Option, Settings, settings_in

_WIDTH = 100
_LEAST_WIDTH = 40


class Group(NamedTuple):
    """Flags that belong together.

    Attributes:
        name: For `--help=NAME`.
        heading: What they are about.
        options: The flags.
    """

    name: str
    heading: str
    options: Sequence[Option]


# Returns the default of an option as a text; "" if there is none.
DefaultText = Callable[[Option], str]


def groups_of(options: type, has: Callable[[Option], bool] = lambda option: True) -> list[Group]:
    """Returns the options of a dataclass, a group for each class that declares some.

    Args:
        options: A dataclass of settings; its own come first, then those of its bases.
        has: Whether an option is shown.
    """
    of_fields = {option.field.name: option for option in settings_in(options) if has(option)}
    groups = []
    for kind in options.__mro__:
        if kind in (Settings, object) or not dataclasses.is_dataclass(kind):
            continue
        declared = [name for name in vars(kind).get("__annotations__", {}) if name in of_fields]
        if declared:
            shown = [of_fields.pop(name) for name in declared]
            groups.append(Group(_name_of(kind), _heading_of(kind), shown))
    return groups


def own_groups(options: type) -> list[Group]:
    """Returns the groups of a command's own flags; those that only it has are called "command"."""
    first, *others = groups_of(options) or [Group("command", "", [])]
    if first.name != _name_of(options):
        return [first, *others]
    return [Group("command", "Flags of this command", first.options), *others]


def _name_of(kind: type) -> str:
    words = re.findall(r"[A-Z][a-z0-9]*", kind.__name__)
    return "_".join(word.lower() for word in words if word not in ("Options", "Settings"))


def _heading_of(kind: type) -> str:
    first = " ".join((kind.__doc__ or kind.__name__).split("\n\n")[0].split())
    return re.split(r"[;.]", first)[0]


def without_repeated(groups: Iterable[Group]) -> list[Group]:
    """Returns the groups without flags that an earlier group has, and without empty groups."""
    seen: set[str] = set()
    result = []
    for group in groups:
        options = [option for option in group.options if option.flag not in seen]
        seen.update(option.flag for option in options)
        if options:
            result.append(group._replace(options=options))
    return result


def help_page(
    doc: Optional[str],
    groups: Sequence[Group],
    default_text: DefaultText,
    last: Sequence[str] = (),
) -> str:
    """Returns the page.

    Args:
        doc: What the command does.
        groups: Its flags.
        default_text: Returns the default that holds for what is chosen.
        last: Lines about flags that are not shown.
    """
    parts = [(doc or "").strip()]
    for group in groups:
        lines = [_option_text(option, default_text(option)) for option in group.options]
        parts.append("\n".join([f"{group.heading} [{group.name}]", *lines]))
    names = ", ".join(group.name for group in groups)
    more = [*last, f"One group in full: --help=GROUP, of {names}.", "All flags: --helpfull."]
    parts.append("\n".join(textwrap.fill(line, _width()) for line in more))
    return "\n\n".join(part for part in parts if part)


def group_page(groups: Sequence[Group], name: str, default_text: DefaultText) -> str:
    """Returns what `--help=NAME` prints."""
    found: Group = Registry("group of flags", {g.name: g for g in groups}).given("--help", name)
    lines = [_option_text(o, default_text(o), in_full=True) for o in found.options]
    return "\n".join([f"{found.heading} [{found.name}]", *lines])


def _option_text(option: Option, default: str, in_full: bool = False) -> str:
    shown = option if in_full else dataclasses.replace(option, owners=())
    name = f"[no]{option.flag}" if option.kind is bool else option.flag
    short = None if in_full else option.field.metadata.get("short")
    full = shown.help(default) if short is None else f"{short} [{default}]".removesuffix(" []")
    text = " ".join(f"--{name}: {full}".split())
    return textwrap.fill(text, _width(), initial_indent="  ", subsequent_indent="      ")


def _width() -> int:
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    return max(_LEAST_WIDTH, min(_WIDTH, columns))


def asked_for(arguments: Iterable[str]) -> Optional[str]:
    """Returns the group that a command line asks help of, "" for the page, None if it asks none."""
    for argument in arguments:
        if argument == "--":
            return None
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in ("help", "h", "?", "helpshort"):
            return value if equals and value not in ("true", "1") else ""
    return None
