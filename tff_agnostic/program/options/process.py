"""A command as a process: its arguments, start, signals, and exit status.

Flag files are defaults: a flag of the command line wins, wherever it stands, and is given once.
absl would read flag files that never end, and let the last of several values win.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
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
_COMMENTS = ("#", "//")
_USAGE_STATUS = 2
_FAILURE_STATUS = 1
# How absl refuses a flag's value.
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
# Who stops all processes of a job at once reaches a command twice: itself, and by its parent, which
# passes on what it is sent. `timeout` signals a process and its group.
_ONE_REQUEST_SECONDS = 0.5


def split_flag_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the lines of the flag files among some arguments, and the other arguments.

    A flag file has a flag in each line, or names another flag file. Lines that begin with # or //
    are comments.

    Args:
        arguments: The arguments of a command, without the name of the program.
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
    """Returns the name of a flag, "=" if a value follows it in the same argument, and the value."""
    if not text.startswith("-"):
        return "", "", ""
    return text.removeprefix("-").removeprefix("-").partition("=")


# Returns the exit status, if it is not 0.
Main = Callable[[Sequence[str]], Optional[int]]


def run_app(
    define_flags: Callable[[], None],
    main: Main,
    help_text: Optional[Callable[[str], str]] = None,
) -> NoReturn:
    """Runs a binary with absl's flags, and ends the process with its exit status.

    Args:
        help_text: Returns the page of --help, called with "", or of --help=GROUP; if None, absl
            prints its own page.
    """
    escape_output()
    # The handler has the stream of when absl was imported.
    logging.get_absl_handler().python_handler.setStream(sys.stderr)
    drop_tff_context_at_exit()
    # The flags of `app.run`, which is not called: they would be taken and do nothing.
    for flag in list(flags.FLAGS.flags_by_module_dict().get(app.__name__, [])):
        delattr(flags.FLAGS, flag.name)
    try:
        group = None if help_text is None else asked_for(split_flag_files(sys.argv[1:])[1])
    except UserError as e:
        sys.exit(_failed(e))
    before = set(flags.FLAGS)
    define(define_flags)
    for name in set(flags.FLAGS) - before:
        # Otherwise --help shows only what the main module itself defines.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    # Not `app.run`: TensorFlow is imported when it is first used. If absl's app runs by then,
    # TensorFlow makes its context in the middle of its own import, and Keras is of no use.
    app.define_help_flags()
    faulthandler.enable()
    if group is not None and help_text is not None:
        parse_flags([text for text in sys.argv if asked_for([text]) is None])
        sys.exit(exit_status(lambda _: print(help_text(group), flush=True), []))
    sys.exit(exit_status(main, parse_flags(sys.argv)))


def define(define_flags: Callable[[], None]) -> None:
    """Defines a binary's flags; ends the process if a user's algorithm, which has some, is none."""
    try:
        define_flags()
    except UserError as e:
        sys.exit(_failed(e))


def exit_status(main: Main, argv: Sequence[str]) -> int:
    """Calls `main`, and returns the exit status; errors of a user have one line, no traceback.

    The status is 2 after a user's mistake, 1 after the death of a worker, and 128 plus the signal's
    number for a run that a signal stopped, as in shells.
    """
    try:
        with _sigint_as_exception():
            if len(argv) > 1:
                raise UserError(f"expected flags only, found {argv[1]!r}")
            return main(argv) or 0
    except UserError as e:
        return _failed(e)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        # A file or folder that may not be read, say; without a name it is no user's file.
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
        # No command leaves so: code of a user's file does that runs in the middle of something.
        print(f"error: {_LEFT}", file=sys.stderr)
        return _FAILURE_STATUS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


@contextlib.contextmanager
def _sigint_as_exception() -> Iterator[None]:
    """While something runs that cleans up; before and after it SIGINT may end the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, and returns what is left; ends the process if one is wrong.

    Or if one asks for help, which absl calls a failure.
    """
    logging.use_absl_handler()
    try:
        lines, arguments = split_flag_files(argv[1:])
        # absl ends at the first argument that is no flag: what is left is refused by the command.
        rest = [argv[0], *parse(lines, flags.FLAGS, once=False)]
        rest += parse(arguments, flags.FLAGS)
    except (UserError, flags.Error) as e:
        sys.exit(_failed(_in_words(e)))
    except SystemExit:
        sys.exit()
    if not flags.FLAGS["verbosity"].present:
        # TFF's compiler has much to say at the default level.
        logging.set_verbosity(logging.WARNING)
    return rest


def parse(arguments: Sequence[str], defined: flags.FlagValues, once: bool = True) -> list[str]:
    """Parses flags over earlier values, and returns the other arguments.

    Args:
        once: Whether a second value of a flag is an error.
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


def _in_words(error: Exception) -> Exception:
    """Returns absl's error about a flag that is not a number in words, others as they are."""
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
    """Returns the command line that resumes the run of this process.

    Args:
        name: Name of the binary, as `./run` knows it.
        output_dir: Folder of the run, which may be one that the user did not name.
    """
    program = Path(sys.argv[0]).absolute()
    script = program.parent.parent / "run"
    if program.suffix != ".py":
        # The wheel's program.
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
    """While entered, notes the first SIGINT or SIGTERM; a later one acts as usual.

    Args:
        one_request_seconds: How soon after the first a signal is taken for the same request.

    Attributes:
        signal_number: The signal that was noted, or None.
    """

    def __init__(self, one_request_seconds: float = _ONE_REQUEST_SECONDS) -> None:
        self.signal_number: Optional[int] = None
        self._one_request_seconds = one_request_seconds
        self._noted_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        """Installs the handlers."""
        # Elsewhere Python takes no handlers, and gets no signals.
        is_main = threading.current_thread() is threading.main_thread()
        for number in _SIGNALS if is_main else ():
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Restores the handlers."""
        self._restore()

    def check(self, done: str) -> None:
        """Raises `Interrupted` if a signal was noted; `done` says what was saved."""
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
    """A run was stopped by a signal after it had been saved.

    Attributes:
        signal_number: The signal.
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number

    def with_command(self, command: str) -> Interrupted:
        """Returns the interruption with the command that resumes the run."""
        return Interrupted(f"{self}; go on with: {command}", self.signal_number)


def asked_for(arguments: Iterable[str]) -> Optional[str]:
    """Returns the group of flags whose help is requested, "" for the page, None for no help."""
    for argument in arguments:
        if argument == "--":
            return None
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in ("help", "h", "?", "helpshort"):
            return value if equals and value not in ("true", "1") else ""
    return None
