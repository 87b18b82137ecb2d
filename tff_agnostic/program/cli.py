"""What the binaries share: how they start, and how they tell a user's mistake."""

import signal
import sys
from collections.abc import Sequence
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


def _parse_flags(argv: Sequence[str]) -> list[str]:
    logging.use_absl_handler()
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as e:
        _fail(str(e).replace("\n", " "))


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_USAGE_STATUS)
