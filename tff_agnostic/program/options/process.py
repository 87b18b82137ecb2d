"""The process of a command: arguments, start, signals, and exit status.

Flag files contain defaults: a flag on the command line overrides them at any position, and may
occur only once. absl alone would read endless files, and would use the last of several values.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Callable, NoReturn, Optional

from absl import app, flags, logging

from tff_agnostic.base.errors import ExecutionError, UserCodeError, UserError
from tff_agnostic.base.files import named_path, read_text
from tff_agnostic.base.options import OptionError
from tff_agnostic.base.terminal import escape_output
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

_FLAG_FILE = "flagfile"
_HELP = ("help", "h", "?", "helpshort")
_COMMENTS = ("#", "//")
_USAGE_STATUS = 2
_FAILURE_STATUS = 1
# Matches absl's errors about values that are not numbers.
_NO_NUMBER = re.compile(
    r"flag --(?P<flag>\w+)=(?P<value>.*): "
    r"(?:(?P<is_whole>invalid literal for int)|could not convert string to float).*",
    re.DOTALL,
)
_LEFT = (
    "the command ended before it was done: sys.exit was called, as by a Python file of a model or "
    "an algorithm"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A signal to a shell's job reaches a command twice: directly, and through its parent, which
# forwards signals. `timeout` also signals both a process and its group.
_ONE_REQUEST_SECONDS = 0.5


def split_flag_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the lines of the flag files that arguments name, and the other arguments.

    A line of a flag file is a flag, the name of another flag file, or a comment after # or //.

    Args:
        arguments: The arguments of a command, without the program's name.
    """
    lines: list[str] = []
    others: list[str] = []
    rest = list(arguments)
    while rest and rest[0] != "--":
        text = rest.pop(0)
        name, equals, value = flag_parts(text)
        if name != _FLAG_FILE:
            others.append(text)
            continue
        if not equals and not rest:
            raise UserError(f"--{_FLAG_FILE}: expected a path, found none")
        lines += _lines(value if equals else rest.pop(0), ())
    return lines, [*others, *rest]


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
        flag, _, value = flag_parts(line)
        if flag == _FLAG_FILE:
            yield from _lines(value, (*readers, name))
        else:
            yield line


def flag_parts(text: str) -> tuple[str, str, str]:
    """Splits an argument into the flag's name, "=" if a value follows, and the value."""
    if not text.startswith("-"):
        return "", "", ""
    return text.removeprefix("-").removeprefix("-").partition("=")


# Called with the arguments that are not flags; returns the exit status if it is not 0.
Main = Callable[[Sequence[str]], Optional[int]]


def run_app(
    define_flags: Callable[[], None],
    main: Main,
    help_text: Optional[Callable[[], str]] = None,
) -> NoReturn:
    """Runs a binary with absl's flags, then ends the process with its exit status.

    Args:
        help_text: Called without arguments; returns the help page. None for absl's own help page.
    """
    escape_output()
    # absl's handler would keep the standard error stream of the time of its import.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)
    drop_tff_context_at_exit()
    # Remove the flags of `app.run`, which is not called: they would have no effect.
    for flag in list(flags.FLAGS.flags_by_module_dict().get(app.__name__, [])):
        delattr(flags.FLAGS, flag.name)
    try:
        shows_help = help_text is not None and asks_for_help(split_flag_files(sys.argv[1:])[1])
    except UserError as e:
        sys.exit(_failed(e))
    before = set(flags.FLAGS)
    define(define_flags)
    for name in set(flags.FLAGS) - before:
        # Otherwise --help shows only flags of the main module.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    # Avoid `app.run`, as TensorFlow is imported later: if absl's app already runs, TensorFlow
    # creates its context in the middle of its import, and Keras fails.
    app.define_help_flags()
    faulthandler.enable()
    if shows_help and help_text is not None:
        parse_flags([text for text in sys.argv if not asks_for_help([text])])
        sys.exit(exit_status(lambda _: print(help_text(), flush=True), []))
    sys.exit(exit_status(main, parse_flags(sys.argv)))


def define(define_flags: Callable[[], None]) -> None:
    """Defines a binary's flags; ends the process if a user's algorithm is invalid."""
    try:
        define_flags()
    except UserError as e:
        sys.exit(_failed(e))


def exit_status(main: Main, argv: Sequence[str]) -> int:
    """Calls `main` and returns the exit status; user errors print one line without traceback.

    The status is 2 after a user error, 1 after the death of a worker, and 128 plus the signal's
    number after a stop by a signal, as in shells.
    """
    try:
        with _sigint_as_exception():
            if len(argv) > 1:
                raise UserError(f"expected flags only, found {argv[1]!r}")
            return main(argv) or 0
    except UserError as e:
        return _failed(e)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe. Replace standard output,
        # as Python flushes it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        # For example an unreadable file. An error without a file name is not a user's error.
        if e.filename is None:
            raise
        return _failed(UserError(f"{e.filename}: {e.strerror}"))
    except ExecutionError as e:
        hint = "nothing that was saved is lost; train and compare go on with --resume"
        print(f"error: {e} ({hint})", file=sys.stderr)
        return _FAILURE_STATUS
    except Interrupted as e:
        print(e, file=sys.stderr)
        return 128 + e.signal_number
    except SystemExit:
        # Only code of a user's file, run in the middle of a command, exits this way.
        print(f"error: {_LEFT}", file=sys.stderr)
        return _FAILURE_STATUS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


@contextlib.contextmanager
def _sigint_as_exception() -> Iterator[None]:
    """Makes SIGINT raise an exception within the context, so that cleanup code runs."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, and returns the remaining arguments.

    Ends the process if a flag is invalid or asks for help.
    """
    logging.use_absl_handler()
    try:
        lines, arguments = split_flag_files(argv[1:])
        # absl stops at the first argument that is not a flag; the command rejects the rest.
        rest = [argv[0], *parse(lines, flags.FLAGS, once=False)]
        rest += parse(arguments, flags.FLAGS)
    except (UserError, flags.Error) as e:
        sys.exit(_failed(_reworded(e)))
    except SystemExit:
        sys.exit()
    if not flags.FLAGS["verbosity"].present:
        # TFF's compiler logs much at the default level.
        logging.set_verbosity(logging.WARNING)
    return rest


def parse(arguments: Sequence[str], defined: flags.FlagValues, once: bool = True) -> list[str]:
    """Parses flags, which override values parsed earlier; returns the other arguments.

    Args:
        once: Whether a repeated flag is an error.
    """
    singles = [
        flag for flag in map(defined.__getitem__, defined) if not isinstance(flag, flags.MultiFlag)
    ]
    earlier = [flag for flag in singles if flag.present]
    for flag in singles:
        flag.present, flag.allow_overwrite = 0, not once
    rest: list[str] = defined(["", *arguments])[1:]
    for flag in earlier:
        flag.present += 1
    return rest


def _reworded(error: Exception) -> Exception:
    """Rewords absl's error about a flag that is not a number; other errors stay unchanged."""
    match = _NO_NUMBER.fullmatch(str(error))
    if match is None:
        return error
    kind = "a whole number" if match["is_whole"] else "a number"
    return UserError(f"--{match['flag']}: expected {kind}, found {match['value']!r}")


def _failed(error: Exception) -> int:
    lines = str(error).splitlines()
    if isinstance(error, OptionError) and error.field in flags.FLAGS:
        lines[0] = f"--{lines[0]}"
    if not isinstance(error, UserCodeError):
        lines = [" ".join(lines)]
    print("error:", "\n".join(lines), file=sys.stderr)
    return _USAGE_STATUS


def resume_command(name: str, output_dir: Path) -> str:
    """Returns the command line that resumes this process's run.

    Args:
        name: Name of the binary, as in `./run NAME`.
        output_dir: Folder of the run, which the user may not have named.
    """
    program = Path(sys.argv[0]).absolute()
    script = program.parent.parent / "run"
    if program.suffix != ".py":
        # The user has started the program that the wheel installs.
        start = [program.name, name]
    elif script.exists():
        start = ["./run" if script.parent == Path.cwd() else str(script), name]
    else:
        start = [sys.executable, "-m", f"tff_agnostic.binaries.{name}"]
    kept, skip_next = [], False
    for argument in sys.argv[1:]:
        flag = argument.lstrip("-").partition("=")[0]
        if not skip_next and flag not in ("output_dir", "resume", "noresume"):
            kept.append(argument)
        skip_next = not skip_next and flag == "output_dir" and "=" not in argument
    return shlex.join([*start, *kept, f"--output_dir={output_dir}", "--resume"])


class StopRequest:
    """Records the first SIGINT or SIGTERM in the context; later signals have their usual effect.

    Args:
        one_request_seconds: Seconds during which a further signal counts as the same request.

    Attributes:
        signal_number: Number of the recorded signal; None if there is none.
    """

    def __init__(self, one_request_seconds: float = _ONE_REQUEST_SECONDS) -> None:
        self.signal_number: Optional[int] = None
        self._one_request_seconds = one_request_seconds
        self._noted_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python allows handlers in the main thread only, which receives all signals.
        is_main = threading.current_thread() is threading.main_thread()
        for number in _SIGNALS if is_main else ():
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def check(self, done: str) -> None:
        """Raises `Interrupted` if a signal was recorded."""
        if self.signal_number is not None:
            raise Interrupted(f"stopped and saved after {done}", self.signal_number)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        del frame
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number, self._noted_at = number, now
        elif now - self._noted_at >= self._one_request_seconds:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


class Interrupted(Exception):
    """Raised if a signal stopped a run, whose state is saved.

    Attributes:
        signal_number: Number of the signal.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number

    def with_command(self, command: str) -> Interrupted:
        """Returns the same exception with the command that resumes the run."""
        return Interrupted(f"{self}; go on with: {command}", self.signal_number)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Returns whether a flag before "--" requests the help page."""
    flags_only = itertools.takewhile(lambda text: text != "--", arguments)
    return any(flag_parts(text)[0] in _HELP for text in flags_only)
