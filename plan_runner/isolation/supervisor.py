"""Starts an isolated process, passes on what it tells, and ends it when it reaches a bound."""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable, Optional

from plan_runner.isolation import wire
from plan_runner.isolation.bounds import Bounds, IsolationError, Listener

# As this process imports, so does the other one.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from plan_runner.isolation.child import main; main(*sys.argv[2:])"
)
_TASK = "task.json"
_ERRORS = "errors.txt"
_POLL_SECONDS = 0.1
# Of what a process that has ended said, its last line being there.
_MOST_ERRORS = 4096
_PIECE = 1 << 16
# What Python, the C library and TensorFlow heed; other variables may be secrets of the user's.
_VARIABLES = (
    *("ABSL_", "GLIBC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PATH", "PLAN_RUNNER_", "PYTHON", "TF_", "TZ", "XLA_"),
)


def run_isolated(
    function: str,
    payload: Any,
    bounds: Bounds,
    listener: Listener,
    reads: Optional[Iterable[str]] = None,
) -> int:
    """Calls a function in a process that has bounds; returns its status.

    When this returns or raises, the process has ended and its files are gone. If this process is
    killed, the kernel ends the other one. What it reports is taken for what it says only: files
    that it names are looked for in its own folder.

    Args:
        function: (payload, listener, folder for its files) -> status, as MODULE:NAME. It may raise
            `bounds.Refused`.
        payload: Its argument, of what JSON has.
        bounds: What it may take.
        listener: Is told of it.
        reads: Files and folders that it may read in its sandbox; without a sandbox None.

    Raises:
        IsolationError: If it raises an exception, reaches a bound, or ends without a status.
    """
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as name:
        folder = Path(name)
        task = {
            "function": function,
            "payload": payload,
            "bounds": dataclasses.asdict(bounds),
            "reads": None if reads is None else list(reads),
        }
        (folder / _TASK).write_text(json.dumps(task), "utf-8")
        # Read again by what was opened here: the name may be another file's then.
        with open(folder / _ERRORS, "w+b") as errors, _Process(folder, bounds, errors) as process:
            return process.follow(listener)


class _Process:
    """The process, as a context manager that leaves none behind."""

    def __init__(self, folder: Path, bounds: Bounds, errors: BinaryIO) -> None:
        self._folder = folder
        self._bounds = bounds
        self._errors = errors
        self._step = "starting"
        self._deadline = 0.0

    def __enter__(self) -> "_Process":
        self._pipe, other_end = os.pipe()
        try:
            arguments = [str(self._folder / _TASK), str(other_end), str(os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(other_end,),
                # The Ctrl-C of a terminal is for this process, which ends the other one.
                start_new_session=True,
                env=self._environment(),
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(other_end)
        return self

    def __exit__(self, *exc_info: object) -> None:
        # With what it has started, in a session of its own. It may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)

    def _environment(self) -> dict[str, str]:
        kept = {key: text for key, text in os.environ.items() if key.startswith(_VARIABLES)}
        # What libraries keep in the user's home, as Keras does, they keep here.
        return {**kept, "TMPDIR": str(self._folder), "HOME": str(self._folder)}

    def follow(self, listener: Listener) -> int:
        """Passes on what the process tells until it ends; returns its status."""
        actions: dict[str, Callable[[Any], None]] = {
            wire.STEP: self._begin,
            wire.LINE: listener.line,
            wire.RESULTS: lambda name: listener.results(self._named(name)),
            wire.ERROR: _fail,
        }
        decoder, status = wire.Decoder(), None
        self._begin(self._step)
        while piece := self._next_piece():
            for kind, value in self._events(decoder, piece):
                if kind == wire.STATUS:
                    status = value
                else:
                    actions[kind](value)
        if status is None:
            raise self._ended()
        return status

    def _events(self, decoder: wire.Decoder, piece: bytes) -> Iterator[tuple[str, Any]]:
        try:
            yield from decoder.feed(piece)
        except wire.NoEventError as e:
            raise self._reports(e) from e

    def _named(self, name: str) -> Path:
        """Returns the folder of that name among the process's own; there are files in it only."""
        path = self._folder / name
        if not name.isidentifier() or path.is_symlink() or not path.is_dir():
            raise self._reports("a folder that is none of its own")
        # Whoever takes them neither follows a link nor waits for a pipe.
        if not all(entry.is_file(follow_symlinks=False) for entry in os.scandir(path)):
            raise self._reports("a folder with more than files in it")
        return path

    def _reports(self, what: object) -> IsolationError:
        return IsolationError(f"{self._step}: its process reports {what}")

    def _begin(self, step: str) -> None:
        self._step = step
        self._deadline = time.monotonic() + self._bounds.max_round_seconds

    def _next_piece(self) -> bytes:
        """Waits for what the process tells next; nothing if it has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            # Also of one that always has something to report.
            self._check_bounds()
            while not selector.select(_POLL_SECONDS):
                self._check_bounds()
        return os.read(self._pipe, _PIECE)

    def _check_bounds(self) -> None:
        bounds = self._bounds
        if time.monotonic() > self._deadline:
            raise IsolationError(
                f"{self._step}: expected to end within {bounds.max_round_seconds:g} s "
                "(--max_round_seconds), it went on and was ended"
            )
        # Beside the kernel's limit, which does not count files that are mapped into memory.
        if _resident_bytes(self._process.pid) > bounds.memory_bytes:
            raise self._too_large("it needs more and was ended")

    def _ended(self) -> IsolationError:
        """Returns what is to be said of a process that has ended without a status."""
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return self._too_large(f"its process ended by {name}, as for lack of memory")
        last = self._last_error() or "it said nothing"
        return IsolationError(f"{self._step}: its process ended with status {code} ({last})")

    def _too_large(self, found: str) -> IsolationError:
        most = self._bounds.max_memory_gb
        return IsolationError(
            f"{self._step}: expected to need at most {most:g} GB (--max_memory_gb), {found}"
        )

    def _last_error(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        self._errors.seek(max(0, size - _MOST_ERRORS))
        text = self._errors.read(_MOST_ERRORS).decode(errors="replace").strip()
        return text.rpartition("\n")[2]


def _fail(text: str) -> None:
    raise IsolationError(text)


def _resident_bytes(pid: int) -> int:
    """Returns how much memory a process has; 0 where that is not told."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
