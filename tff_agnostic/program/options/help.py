"""Help of a command: its flags in groups, with the defaults for the chosen task and algorithm.

A command on runs has more than a hundred flags, and a run of one task and one algorithm uses half
of them. `--help` shows only these, with a group per options class. The heading of a group is the
first sentence of the class's docstring.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional

from tff_agnostic.program.options.flags import Flag, option_flags

_WIDTH = 100
_MIN_WIDTH = 40


class Group(NamedTuple):
    """Flags that belong together."""

    heading: str
    flags: Sequence[Flag]


# Called with a flag; returns the text of its default, or "".
DefaultText = Callable[[Flag], str]


def flag_groups(options: type, has: Callable[[Flag], bool] = lambda flag: True) -> list[Group]:
    """Returns the flags of an options class in groups, one per declaring class.

    Args:
        options: An options class. Its own fields come first, then the fields of bases and parts.
        has: Called with a flag; returns whether to show it.
    """
    by_class: dict[type, list[Flag]] = {}
    for flag in option_flags(options):
        if has(flag):
            by_class.setdefault(flag.owner, []).append(flag)
    order = {kind: k for k, kind in enumerate(options.__mro__)}
    classes = sorted(by_class, key=lambda kind: order.get(kind, len(order)))
    return [Group(_heading(kind), by_class[kind]) for kind in classes]


def own_groups(options: type) -> list[Group]:
    """Returns the groups of a command's flags; the command's own are "Flags of this command"."""
    return [
        group._replace(heading="Flags of this command")
        if group.flags[0].owner is options
        else group
        for group in flag_groups(options)
    ]


def _heading(kind: type) -> str:
    first = " ".join((kind.__doc__ or kind.__name__).split("\n\n")[0].split())
    return re.split(r"[;.]", first)[0]


def without_repeated(groups: Iterable[Group]) -> list[Group]:
    """Removes flags that an earlier group has; returns the groups that are not empty."""
    seen: set[str] = set()
    result = []
    for group in groups:
        new = [flag for flag in group.flags if flag.name not in seen]
        seen.update(flag.name for flag in new)
        if new:
            result.append(group._replace(flags=new))
    return result


def help_page(
    doc: Optional[str],
    groups: Sequence[Group],
    default_text: DefaultText,
    last: Sequence[str] = (),
) -> str:
    """Returns the page of `--help`.

    Args:
        default_text: Called with a flag; returns its default for the chosen values.
        last: Final lines, about the flags that are not shown.
    """
    parts = [(doc or "").strip()]
    for group in groups:
        shown = (dataclasses.replace(flag, users=()) for flag in group.flags)
        lines = [_flag_lines(flag, default_text(flag)) for flag in shown]
        parts.append("\n".join([group.heading, *lines]))
    more = [*last, "All flags: --helpfull."]
    parts.append("\n".join(textwrap.fill(line, _width()) for line in more))
    return "\n\n".join(part for part in parts if part)


def _flag_lines(flag: Flag, default: str) -> str:
    name = f"[no]{flag.name}" if flag.kind is bool else flag.name
    text = " ".join(f"--{name}: {flag.help(default)}".split())
    return textwrap.fill(text, _width(), initial_indent="  ", subsequent_indent="      ")


def _width() -> int:
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    return max(_MIN_WIDTH, min(_WIDTH, columns))
