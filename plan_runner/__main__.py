"""Runs or verifies an exported federated plan: `python -m plan_runner --help`."""

import os
import signal
from types import FrameType
from typing import NoReturn, Optional


def _end(number: int, frame: Optional[FrameType]) -> NoReturn:
    del frame
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # An exception during the imports would print pages of traceback.
        signal.signal(signal.SIGINT, _end)
    # Suppress TensorFlow's log lines; TensorFlow reads this variable when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from plan_runner.cli import run_app

    run_app()
