"""Runs a command and ends all of its processes, even if the command or its parent is killed.

Usage: python guard.py PARENT_PID COMMAND...

Descendants that lose their parent, such as daemons, become children of this guard process. The
guard kills all descendants when the command exits, when the guard receives a signal, or when its
own parent dies, even by SIGKILL. This script only needs the standard library.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Optional

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Ended(Exception):
    """Raised when a signal asks this process to exit."""


def _end(number: int, frame: Optional[FrameType]) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise _Ended


def _kill_descendants() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(pid) for pid in children.read_text().split()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Orphans of ended children become children of this process, so the loop repeats.
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main(parent: int, command: list[str]) -> int:
    """Runs the command, and returns its exit status as a shell reports it."""
    signal.signal(signal.SIGTERM, _end)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    status = 128 + signal.SIGTERM
    try:
        # Do not start the command if the parent died before the call of prctl.
        if os.getppid() == parent:
            child = subprocess.Popen(command, preexec_fn=_die_with_parent)
            # Keep the pipes open only in the command, so that the command's parent notices when the
            # command closes them.
            os.close(0)
            os.close(1)
            code = child.wait()
            status = code if code >= 0 else 128 - code
    except _Ended:
        pass
    finally:
        _kill_descendants()
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
