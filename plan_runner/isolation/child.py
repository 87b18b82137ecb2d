"""The isolated process: takes its bounds, enters its sandbox, calls the function, and reports."""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from plan_runner.isolation import sandbox, wire
from plan_runner.isolation.bounds import Bounds, Refused

_PR_SET_PDEATHSIG = 1
# What libraries have in memory, TensorFlow's above all: the kernel's limit does not count it.
_LIBRARIES_BYTES = 300_000_000


class _Sender:
    """A `bounds.Listener` at the other end of a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def step(self, name: str) -> None:
        self.send(wire.STEP, name)

    def line(self, text: str) -> None:
        self.send(wire.LINE, text)

    def results(self, folder: Path) -> None:
        # Its name: whoever takes it knows where this process may write.
        self.send(wire.RESULTS, folder.name)

    def send(self, kind: str, value: object) -> None:
        content = wire.encoded(kind, value)
        while content:
            content = content[os.write(self._pipe, content) :]


def main(task_file: str, pipe: str, parent: str) -> NoReturn:
    """Calls what a file names, within bounds; ends the process.

    Args:
        task_file: JSON with "function" (as MODULE:NAME), "payload", "bounds", and "reads", what its
            sandbox lets it read, or null for no sandbox; its folder is for files that nobody needs
            afterwards.
        pipe: Number of the file descriptor to write events to.
        parent: Id of the process without which this one is to end.
    """
    _end_with_parent(int(parent))
    path, sender = Path(task_file), _Sender(int(pipe))
    task = json.loads(path.read_text("utf-8"))
    bounds = Bounds(**task["bounds"])
    _take(bounds)
    module, _, name = task["function"].partition(":")
    try:
        # Before anything else is imported: TensorFlow starts threads.
        if task["reads"] is not None:
            sandbox.enter(task["reads"], path.parent)
        function = getattr(importlib.import_module(module), name)
        sender.send(wire.STATUS, function(task["payload"], sender, path.parent))
    except Refused as e:
        sender.send(wire.ERROR, str(e))
    except MemoryError:
        sender.send(
            wire.ERROR,
            f"expected to need at most {bounds.max_memory_gb:g} GB (--max_memory_gb), it needs "
            "more",
        )
    # What nobody has foreseen of a stranger's file: one line for the user.
    except Exception as e:
        traceback.print_exc()
        text = " ".join(str(e).split())[:300]
        sender.send(
            wire.ERROR, f"expected an export that can be played, {type(e).__name__}: {text}"
        )
    finally:
        # At once: threads of what failed need not end by themselves.
        os._exit(0)


def _end_with_parent(parent: int) -> None:
    """Has the kernel end this process with its parent, also by a signal that nobody can handle."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before.
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")


def _take(bounds: Bounds) -> None:
    limits = {
        resource.RLIMIT_DATA: max(_LIBRARIES_BYTES, bounds.memory_bytes - _LIBRARIES_BYTES),
        # Whatever is written has been in memory.
        resource.RLIMIT_FSIZE: bounds.memory_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(kind, (limit, limit))
    # Otherwise a file that is too large would end the process without a word.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
