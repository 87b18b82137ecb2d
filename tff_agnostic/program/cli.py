"""What the binaries share: how they start, and how they tell a user's mistake."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NoReturn

from absl import app, flags, logging

from tff_agnostic.command_line import check_given_once, with_flag_files
from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.program.interrupts import Interrupted
from tff_agnostic.runtimes.tff_exit import end_quietly

_USAGE_STATUS = 2
_FAILURE_STATUS = 1
_LEFT = (
    "the command ended before it was done: sys.exit was called, as by a Python file of a model or "
    "an algorithm"
)

Main = Callable[[Sequence[str]], None]


def run_app(define_flags: Callable[[], None], main: Main) -> NoReturn:
    """Runs a binary as an absl app, and ends the process with its exit status."""
    end_quietly()
    before = set(flags.FLAGS)
    define(define_flags)
    for name in set(flags.FLAGS) - before:
        # Otherwise --help shows only what the main module itself defines.
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    app.run(lambda argv: sys.exit(exit_status(main, argv)), flags_parser=parse_flags)
    raise AssertionError("app.run does not return")


def define(define_flags: Callable[[], None]) -> None:
    """Defines a binary's flags; ends the process if a user's algorithm, which has some, is none."""
    try:
        define_flags()
    except UserError as e:
        sys.exit(_failed(e))


def exit_status(main: Main, argv: Sequence[str]) -> int:
    """Calls `main`; a user's mistake is told in one line without traceback, and has status 2.

    So is a worker that has died, with status 1. A run that a signal stopped has 128 plus the
    signal's number, as shells have it.
    """
    try:
        with _sigint_as_exception():
            if len(argv) > 1:
                raise UserError(f"expected flags only, found {argv[1]!r}")
            main(argv)
    except UserError as e:
        return _failed(e)
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough. Python flushes again at its end.
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
    return 0


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
        arguments = with_flag_files(argv[1:])
        check_given_once(arguments, flags.FLAGS)
        rest: list[str] = flags.FLAGS([argv[0], *(argument.text for argument in arguments)])
    except (UserError, flags.Error) as e:
        sys.exit(_failed(e))
    except SystemExit:
        sys.exit()
    if not flags.FLAGS["verbosity"].present:
        # TFF's compiler has much to say at the default level.
        logging.set_verbosity(logging.WARNING)
    return rest


def _failed(error: Exception) -> int:
    text = " ".join(str(error).splitlines())
    # A file may hold what a terminal obeys.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print(f"error: {shown}", file=sys.stderr)
    return _USAGE_STATUS


def resume_command(name: str, output_dir: Path) -> str:
    """Returns the command line that goes on with this process's run.

    Args:
        name: Name of the binary, as `./run` knows it.
        output_dir: Folder of the run, which may be one that the user did not name.
    """
    program = Path(sys.argv[0]).absolute()
    script = program.parent.parent / "run"
    if program.suffix != ".py":
        start = [program.name]  # The wheel's console script.
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
