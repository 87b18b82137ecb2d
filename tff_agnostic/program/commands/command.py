"""Descriptions of commands: flags, action and printed result.

A `Command` determines the absl program and its help. This module needs no TensorFlow; commands that
train are instances of `command_line.RunCommand`.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Optional

from tff_agnostic.program.options.flag_table import FlagTable
from tff_agnostic.program.options.flags import Flag, build
from tff_agnostic.program.options.help import help_page, own_groups
from tff_agnostic.program.options.process import run_app


@dataclasses.dataclass(frozen=True)
class CommandArguments:
    """The parsed flags of a command.

    Attributes:
        args: Values of the command's own options.
        names: Names of the command's own options that the user gave.
        show_progress: Whether to show progress, as a bar or in lines.
    """

    command: str
    args: Any
    names: frozenset[str]
    show_progress: bool = dataclasses.field(default=True, kw_only=True)

    @property
    def typed(self) -> str:
        """The command line that the user typed, with `./run`."""
        return shlex.join(["./run", self.command, *sys.argv[1:]])


# Called with the result of a command: prints it, and returns the exit status if it is not 0.
Show = Callable[[Any], Optional[int]]


def _show_nothing(result: Any) -> None:
    del result


@dataclasses.dataclass(frozen=True)
class Command:
    """Description of a command.

    Attributes:
        name: Name, as in `./run NAME`.
        options_type: Class of the command's own options.
        run: Called with the arguments; returns the result.
        show: Called with the result; prints it. By default it prints nothing, as most commands
            print while they run.
        report: Called with the result after `show`, so that an error in the report loses no output;
            writes a report and returns the report's path.
    """

    name: str
    options_type: type
    run: Callable[[Any], Any]
    show: Show = _show_nothing
    report: Optional[Callable[[Any], Path]] = None

    @property
    def options(self) -> FlagTable:
        """The command's own flags."""
        return _options(self.options_type)

    def main(self, doc: Optional[str]) -> NoReturn:
        """Runs the command as a program with `doc` at the start of its help; ends the process."""
        sys.modules["__main__"].__doc__ = doc
        run_app(self.define_flags, self.start, functools.partial(self.help_text, doc))

    def help_text(self, doc: Optional[str]) -> str:
        """Returns the page of --help."""
        return help_page(doc, own_groups(self.options_type), Flag.default_text)

    def define_flags(self) -> None:
        """Defines the command's flags for absl."""
        self.options.define()

    def start(self, argv: Sequence[str]) -> Optional[int]:
        """Runs the command with the parsed flags; returns the exit status if it is not 0."""
        del argv
        result = self.run(self.given())
        status = self.show(result)
        if self.report is not None:
            print(f"report: {self.report(result)}")
        return status

    def given(self) -> CommandArguments:
        """Returns the arguments from the parsed flags."""
        values = self.options.from_flags()
        return CommandArguments(self.name, build(self.options_type, values), frozenset(values))


@functools.cache
def _options(options: type) -> FlagTable:
    return FlagTable.join([("", "", options)])
