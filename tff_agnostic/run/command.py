"""A command, described once: its own flags, what it does, and what its program prints.

The absl program, its help and the function of Python are made from the description. Commands that
train are `command_line.RunCommand`: this one needs no TensorFlow.

`--help` shows the flags of a command that apply to what is chosen, in groups, with their defaults:
a command on runs has some 200 flags; a run of one task and one algorithm has a use for 60 of them.
The groups are the dataclasses that declare the flags, and their headings are the first sentences of
these classes' docstrings. `--help=GROUP` prints one group with all that `--helpfull` says of its
flags.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional

from plan_runner.terminal import escaped_output
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry, did_you_mean
from tff_agnostic.run.process import resume_command, run_app
from tff_agnostic.settings import Option, OptionTable, Settings, make, settings_in

_WIDTH = 100
_LEAST_WIDTH = 40


@dataclasses.dataclass(frozen=True)
class Given:
    """What a user gave to a command.

    Attributes:
        own: The command's own settings.
        names: Those that were given, by flag.
        typed: The command as it was called, for whoever reads what it wrote.
        again: Returns the call that goes on with what was saved in a folder.
        show_progress: Whether to show a bar, or lines where nobody sees one.
    """

    own: Any
    names: frozenset[str]
    typed: str
    again: Callable[[Path], str]
    show_progress: bool


# Prints what a command has done, and returns the program's exit status, if it is not 0.
Show = Callable[[Any], Optional[int]]


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: Its name, as `./run` knows it.
        own: Its own settings, a dataclass.
        run: Does it.
        show: Prints its result.
        report: Writes a page on the result, and returns where it is. Last of all: one that cannot
            be written takes nothing away.
    """

    name: str
    own: type
    run: Callable[[Any], Any]
    show: Show
    report: Optional[Callable[[Any], Path]] = None

    @property
    def options(self) -> OptionTable:
        """Its own flags."""
        return _options(self.own)

    def main(self, doc: Optional[str]) -> NoReturn:
        """Runs as a program, and ends the process; `doc` is what its help begins with."""
        sys.modules["__main__"].__doc__ = doc
        run_app(self.define_flags, self.start, functools.partial(self.help_text, doc))

    def help_text(self, doc: Optional[str], group: str) -> str:
        """Returns what --help prints; --help=GROUP if a group is named."""
        groups = own_groups(self.own)
        if group:
            return group_page(groups, group, Option.default_text)
        return help_page(doc, groups, Option.default_text)

    def define_flags(self) -> None:
        """Defines its flags."""
        self.options.define()

    def start(self, argv: Sequence[str]) -> Optional[int]:
        """Does what the parsed flags say, and prints it; returns the exit status, if not 0."""
        del argv
        result = self.run(self.given())
        status = self.show(result)
        if self.report is not None:
            print(f"report: {self.report(result)}")
        return status

    def __call__(self, show_progress: bool = True, **arguments: Any) -> Any:
        """Does what a caller in Python says; each flag is an argument, None as if not given."""
        with escaped_output():
            result = self.run(self.given_by(arguments, show_progress))
            if self.report is not None:
                self.report(result)
        return result

    def given(self) -> Given:
        """Returns what the parsed flags give."""
        own = self.options.from_flags()
        typed = shlex.join(["./run", self.name, *sys.argv[1:]])
        again = functools.partial(resume_command, self.name)
        return Given(make(self.own, own), frozenset(own), typed, again, show_progress=True)

    def given_by(self, arguments: Mapping[str, Any], show_progress: bool) -> Given:
        """Returns what a caller in Python gives."""
        self._check_known(arguments, self.options)
        own = self.options.from_arguments(arguments)
        task = f"{own['task']!r}, " if "task" in own else ""
        typed = f"tff_agnostic.api.{self.name}({task}...)"
        return Given(make(self.own, own), frozenset(own), typed, self._call_again, show_progress)

    def _check_known(self, arguments: Mapping[str, Any], known: Iterable[str]) -> None:
        names = list(known)
        for flag in arguments:
            if flag not in names and arguments[flag] is not None:
                raise UserError(
                    f"unknown argument {flag!r}: {did_you_mean(flag, names)}"
                    f"`./run {self.name} --help` lists them"
                )

    def _call_again(self, path: Path) -> str:
        return f"{self.name}(..., output_dir={str(path)!r}, resume=True)"


@functools.cache
def _options(own: type) -> OptionTable:
    return OptionTable.of("flag", [("", "", own)])


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
