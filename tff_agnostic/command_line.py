"""The command line before absl parses it: flag files in place, and one value for each flag.

absl reads a flag file whatever it is, also one that never ends, and has the last of several values
of a flag count. After a flag file that is meant: its flags are defaults. Otherwise one of the
values is a mistake.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.files import named_path, read_text

_FLAG_FILE = "flagfile"
_COMMENTS = ("#", "//")


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a command.

    Attributes:
        text: The argument.
        flag_file: The flag file on the command line that it comes from, or "".
    """

    text: str
    flag_file: str = ""


def with_flag_files(arguments: Sequence[str]) -> list[Argument]:
    """Returns the arguments of a command, with the lines of flag files in the files' places.

    A flag file has a flag in each line, or names another flag file. Lines that begin with # or //
    are comments.

    Args:
        arguments: The arguments, without the name of the program.

    Raises:
        UserError: If a flag file cannot be read, is no text, or names itself.
    """
    found: list[Argument] = []
    rest = list(arguments)
    while rest:
        text = rest.pop(0)
        if text == "--":
            # What follows is no flag.
            return [*found, Argument(text), *map(Argument, rest)]
        name, equals, value = _parts(text)
        if name != _FLAG_FILE:
            found.append(Argument(text))
            continue
        if not equals:
            if not rest:
                raise UserError(f"--{_FLAG_FILE}: expected a path, found none")
            value = rest.pop(0)
        found += [Argument(line, value) for line in _lines(value, ())]
    return found


def _lines(name: str, readers: tuple[str, ...]) -> Iterator[str]:
    path = named_path(f"--{_FLAG_FILE}", os.path.expanduser(name))
    if name in readers:
        raise UserError(f"--{_FLAG_FILE}: expected a file that does not name itself, found {name}")
    try:
        text = read_text(path, "a flag file")
    except UserError as e:
        raise UserError(f"--{_FLAG_FILE}={e}") from e
    for line in map(str.strip, text.split("\n")):
        if not line or line.startswith(_COMMENTS):
            continue
        flag, _, value = _parts(line)
        if flag == _FLAG_FILE:
            yield from _lines(value, (*readers, name))
        else:
            yield line


def _parts(text: str) -> tuple[str, str, str]:
    """Returns the name of a flag, "=" if a value follows it in the same argument, and the value."""
    if not text.startswith("-"):
        return "", "", ""
    return text.removeprefix("-").removeprefix("-").partition("=")


def check_given_once(arguments: Sequence[Argument], known: flags.FlagValues) -> None:
    """Refuses a flag of the command line that gets another value after it.

    A flag of a flag file may get one, from a later flag file or from the command line.

    Args:
        arguments: The arguments of a command.
        known: The flags that the command has.

    Raises:
        UserError: Naming the flag and both values.
    """
    given: dict[str, str] = {}
    for name, value, flag_file in _values(arguments, known):
        before = given.setdefault(name, value) if not flag_file else given.get(name, value)
        if before == value:
            continue
        if flag_file:
            raise UserError(
                f"--{name}: expected after --{_FLAG_FILE}={flag_file}, whose --{name}={value} "
                f"would replace --{name}={before} before it"
            )
        raise UserError(
            f"--{name}: expected one value, found {before} and {value}; what later flags may "
            f"replace goes into a flag file, --{_FLAG_FILE}=FILE"
        )


def _values(
    arguments: Sequence[Argument], known: flags.FlagValues
) -> Iterator[tuple[str, str, str]]:
    """Yields name, value and flag file of each flag that may be given once."""
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = _parts(argument.text)
        if argument.text == "--" or not name:
            # Flags end here.
            return
        if not equals and name not in known and name.startswith("no"):
            name, value = name.removeprefix("no"), "false"
        elif not equals and name in known and known[name].boolean:
            value = "true"
        elif not equals:
            following = next(rest, None)
            value = "" if following is None else following.text
        if name in known and not isinstance(known[name], flags.MultiFlag):
            yield name, value, argument.flag_file
