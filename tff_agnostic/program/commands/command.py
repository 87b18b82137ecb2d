"""A command, described once: its own flags, its action, and the text that its program prints.

The absl program and its help are made from the description. Commands that
train are `command_line.RunCommand`: this one needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import did_you_mean
from tff_agnostic.program.options.flag_table import FlagTable
from tff_agnostic.program.options.flags import Flag, build
from tff_agnostic.program.options.help import group_page, help_page, own_groups
from tff_agnostic.program.options.process import resume_command, run_app


@dataclasses.dataclass(frozen=True)
class CommandArguments:
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
    def options(self) -> FlagTable:
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
            return group_page(groups, group, Flag.default_text)
        return help_page(doc, groups, Flag.default_text)

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

    def given(self) -> CommandArguments:
        """Returns what the parsed flags give."""
        own = self.options.from_flags()
        typed = shlex.join(["./run", self.name, *sys.argv[1:]])
        again = functools.partial(resume_command, self.name)
        return CommandArguments(
            build(self.own, own), frozenset(own), typed, again, show_progress=True
        )

    def given_by(self, arguments: Mapping[str, Any], show_progress: bool) -> CommandArguments:
        """Returns what a caller in Python gives."""
        self._check_known(arguments, self.options)
        own = self.options.from_arguments(arguments)
        task = f"{own['task']!r}, " if "task" in own else ""
        typed = f"{self.name}({task}...)"
        return CommandArguments(
            build(self.own, own), frozenset(own), typed, self._call_again, show_progress
        )

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
def _options(own: type) -> FlagTable:
    return FlagTable.join([("", "", own)])
