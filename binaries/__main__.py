"""Starts a command by its name: `python -m binaries train --help`.

From the first moment on Ctrl-C ends it in one line: TensorFlow takes seconds to import, and an
exception would end that in pages of traceback.
"""

import gc
import importlib
import os
import pkgutil
import runpy
import signal
import sys
from types import FrameType
from typing import NoReturn, Optional

_SCRIPTS = "tff-agnostic-"
# Importing and tracing make millions of objects that stay: to look through them as often as Python
# does by default is a fifth of the seconds before a command begins.
_GC_THRESHOLDS = (50_000, 20, 50)


def module_command() -> None:
    """Runs the module of this package that the first argument names, as if it had been run."""
    _prepare()
    names = sorted(
        m.name
        for m in pkgutil.iter_modules([os.path.dirname(__file__)])
        if not m.name.startswith("_")
    )
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "none"
    if name not in names:
        sys.exit(f"error: expected a command, one of {', '.join(names)}, found {name}")
    runpy.run_module(f"{__package__}.{name}", run_name="__main__", alter_sys=True)


def console_script() -> None:
    """Runs the module that the installed script is called after, as tff-agnostic-import-data is."""
    _prepare()
    name = os.path.basename(sys.argv[0]).replace(_SCRIPTS, "", 1).replace("-", "_")
    module = importlib.import_module(f"{__package__}.{name}")
    # What --help begins with.
    sys.modules["__main__"].__doc__ = module.__doc__
    module.entry_point()


def _prepare() -> None:
    gc.set_threshold(*_GC_THRESHOLDS)
    _end_at_once_on_sigint()


def _end_at_once_on_sigint() -> None:
    # A shell lets what it starts in the background ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: Optional[FrameType]) -> NoReturn:
    del frame
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    module_command()
