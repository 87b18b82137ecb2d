"""What the binaries share: how they start, and how they tell a user's mistake."""

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NoReturn

from absl import app, flags, logging

from tff_agnostic.errors import UserError
from tff_agnostic.program.interrupts import Interrupted

_USAGE_STATUS = 2


def run_app(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs an absl main; a user's mistake ends in one line and exit status 2, without traceback.

    A run that a signal stopped ends with 128 plus the signal's number, as shells have it.
    """

    def guarded(argv: Sequence[str]) -> None:
        if len(argv) > 1:
            _fail(f"expected flags only, found {argv[1]!r}")
        try:
            main(argv)
        except UserError as e:
            _fail(str(e))
        except Interrupted as e:
            print(e, file=sys.stderr)
            sys.exit(128 + e.signal_number)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)

    app.run(guarded, flags_parser=_parse_flags)
    raise AssertionError("app.run does not return")


def resume_command(name: str, output_dir: Path) -> str:
    """Returns the command line that goes on with this process's run.

    Args:
        name: Name of the binary, as `./run` knows it.
        output_dir: Folder of the run, which may be one that the user did not name.
    """
    program = Path(sys.argv[0])
    # Started by ./run, or as the wheel's console script.
    start = ["./run", name] if program.suffix == ".py" else [program.name]
    kept, skip_next = [], False
    for argument in sys.argv[1:]:
        flag = argument.lstrip("-").partition("=")[0]
        if not skip_next and flag not in ("output_dir", "resume", "noresume"):
            kept.append(argument)
        skip_next = not skip_next and flag == "output_dir" and "=" not in argument
    return shlex.join([*start, *kept, f"--output_dir={output_dir}", "--resume"])


def _parse_flags(argv: Sequence[str]) -> list[str]:
    logging.use_absl_handler()
    try:
        rest: list[str] = flags.FLAGS(list(argv))
    except flags.Error as e:
        _fail(str(e).replace("\n", " "))
    if not flags.FLAGS["verbosity"].present:
        # TFF's compiler has much to say at the default level.
        logging.set_verbosity(logging.WARNING)
    return rest


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_USAGE_STATUS)
