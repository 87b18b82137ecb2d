"""Runs a function in a separate process within limits of memory and time."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional, Protocol

from plan_runner import sandbox
from plan_runner.errors import PlanError
from plan_runner.sandbox import Refused

# Maximum bytes of a line of the protocol.
_LONGEST_LINE = 1 << 20
STEP, LINE, RESULTS, STATUS, ERROR = "step", "line", "results", "status", "error"
# A refused request, after which the process continues.
REFUSED = "refused"
_VALUES = {STEP: str, LINE: str, RESULTS: str, STATUS: int, ERROR: str, REFUSED: str}
_PR_SET_PDEATHSIG = 1
# Bytes of libraries, mostly TensorFlow's, which the kernel's limit does not count.
_LIBRARIES_BYTES = 300_000_000
# Code of the process, which imports from the same folders.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from plan_runner.isolation import main; main(*sys.argv[2:])"
)
_TASK, _ERRORS = "task.json", "errors.txt"
_POLL_SECONDS = 0.1
# Bytes at the end of the process's errors in which to look for the last line.
_MAX_ERRORS = 4096
_PIECE = 1 << 16
# Prefixes of variables for Python, the C library and TensorFlow; others may hold secrets.
_VARIABLES = (
    *("ABSL_", "GLIBC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PATH", "PLAN_RUNNER_", "PYTHON", "TF_", "TZ", "XLA_"),
)


class IsolationError(PlanError):
    """The isolated function refused its payload, reached a limit, or crashed."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Limits of a process, with the names of the flags in messages.

    Attributes:
        max_memory_gb: Memory in 10^9 bytes.
        max_round_seconds: Wall-clock limit of each reported step.
    """

    max_memory_gb: float
    max_round_seconds: float

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return int(self.max_memory_gb * 1e9)

    @property
    def on_memory(self) -> str:
        """The expectation of memory, for messages."""
        return f"expected to need at most {self.max_memory_gb:g} GB (--max_memory_gb)"


class Listener(Protocol):
    """Receives the events of an isolated function."""

    def step(self, name: str) -> None:
        """Reports that a step with its own time limit begins, such as "round 3"."""
        return

    def line(self, text: str) -> None:
        """Reports a line to print."""
        return

    def results(self, folder: Path) -> None:
        """Reports results in a folder, which the listener removes."""


def encoded(kind: str, value: Any) -> bytes:
    """Returns an event as a line."""
    return json.dumps([kind, value]).encode() + b"\n"


class Decoder:
    """Decodes events from pieces of a stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """Yields the events (kind, value) that another piece completes.

        Raises:
            ValueError: If a line is not an event, or too long.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} bytes")
        for line in lines:
            yield _event(line)


def _event(line: bytes) -> tuple[str, Any]:
    try:
        kind, value = json.loads(line)
        if type(value) is _VALUES[kind]:
            return kind, value
    # The export's graphs may have taken over the process.
    except (KeyError, RecursionError, TypeError, ValueError):
        pass
    raise ValueError("an invalid event")


class Sender:
    """A `Listener` that writes to a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def step(self, name: str) -> None:
        """See `Listener`."""
        self.send(STEP, name)

    def line(self, text: str) -> None:
        """See `Listener`."""
        self.send(LINE, text)

    def results(self, folder: Path) -> None:
        """See `Listener`."""
        # The name suffices: the reader knows the process's folder.
        self.send(RESULTS, folder.name)

    def send(self, kind: str, value: object) -> None:
        """Writes an event; see `encoded`."""
        content = encoded(kind, value)
        while content:
            content = content[os.write(self._pipe, content) :]


def main(task_file: str, pipe: str, parent: str) -> NoReturn:
    """Calls a function within limits, and ends the process.

    Args:
        task_file: Path of the JSON of `Process`. Its folder is the process's own.
        pipe: File descriptor of the pipe for events.
        parent: Id of the parent process; this process ends with it.
    """
    end_with_parent(int(parent))
    path, sender = Path(task_file), Sender(int(pipe))
    task = json.loads(path.read_text("utf-8"))
    bounds = Bounds(**task["bounds"])
    _set_limits(bounds)
    module, _, name = task["function"].partition(":")
    try:
        # Enter before other imports: TensorFlow starts threads.
        if task["reads"] is not None:
            sandbox.enter(task["reads"], path.parent)
        function = getattr(importlib.import_module(module), name)
        sender.send(STATUS, function(task["payload"], sender, path.parent))
    except Refused as e:
        sender.send(ERROR, str(e))
    except MemoryError:
        sender.send(ERROR, f"{bounds.on_memory}, it needs more")
    # An untrusted file may have any effect; report it in one line.
    except Exception as e:
        traceback.print_exc()
        text = " ".join(str(e).split())[:300]
        sender.send(ERROR, f"expected an export that can be played, {type(e).__name__}: {text}")
    finally:
        # Do not wait for the threads of a failed function.
        os._exit(0)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before.
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")


def _set_limits(bounds: Bounds) -> None:
    limits = {
        resource.RLIMIT_DATA: max(_LIBRARIES_BYTES, bounds.memory_bytes - _LIBRARIES_BYTES),
        # Content is in memory before it is written, so files need no larger limit.
        resource.RLIMIT_FSIZE: bounds.memory_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(kind, (limit, limit))
    # Otherwise a file that is too large ends the process without a message.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def run_isolated(
    function: str,
    payload: Any,
    bounds: Bounds,
    listener: Listener,
    reads: Optional[Iterable[str]] = None,
) -> int:
    """Calls a function in a limited process; returns its status.

    Afterwards the process has ended and its files are removed. If this process is killed, the
    kernel ends the other one. Its reports are not trusted: results are in its own folder.

    Args:
        function: (payload, listener, folder for its files) -> status, as MODULE:NAME. It may raise
            `sandbox.Refused`.
        payload: Argument of the function, as JSON.
        reads: Files and folders that its sandbox can read; None for no sandbox.

    Raises:
        IsolationError: If it raises an exception, reaches a limit, or ends without a status.
    """
    with Process(function, payload, bounds, reads) as process:
        return process.follow(listener)


class RequestRefused(IsolationError):
    """A process refused a request, and continues."""


class ProcessEnded(IsolationError):
    """A process has exited, or was killed from outside."""


_FAILURES = {ERROR: IsolationError, REFUSED: RequestRefused}


class Process:
    """A limited process, as a context manager that ends it and removes its files.

    Args:
        function: See `run_isolated`.
        shared: File descriptor that the process inherits, if it gets requests at its standard
            input; None without requests.
    """

    def __init__(
        self,
        function: str,
        payload: Any,
        bounds: Bounds,
        reads: Optional[Iterable[str]] = None,
        shared: Optional[int] = None,
    ) -> None:
        # See `main`.
        self._task = {
            "function": function,
            "payload": payload,
            "bounds": dataclasses.asdict(bounds),
            "reads": None if reads is None else list(reads),
        }
        self._bounds = bounds
        self._shared = () if shared is None else (shared,)
        self._decoder = Decoder()
        self._step = "starting"
        self._deadline = 0.0

    def __enter__(self) -> Process:
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="plan_runner_"))
            self._folder = Path(name)
            (self._folder / _TASK).write_text(json.dumps(self._task), "utf-8")
            # Keep the file open: the process may replace it by another one.
            self._errors = stack.enter_context(open(self._folder / _ERRORS, "w+b"))
            self._pipe, other_end = os.pipe()
            stack.callback(os.close, self._pipe)
            arguments = [str(self._folder / _TASK), str(other_end), str(os.getpid())]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, json.dumps(sys.path), *arguments],
                    stdin=subprocess.PIPE if self._shared else subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    pass_fds=(other_end, *self._shared),
                    # A terminal's Ctrl-C reaches this process only, which ends the other one.
                    start_new_session=True,
                    env=self._environment(),
                )
            finally:
                os.close(other_end)
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        # End the session with all children.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    @property
    def id(self) -> int:
        """Process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def _environment(self) -> dict[str, str]:
        kept = {key: text for key, text in os.environ.items() if key.startswith(_VARIABLES)}
        # Libraries such as Keras write to the home folder.
        return {**kept, "TMPDIR": str(self._folder), "HOME": str(self._folder)}

    def follow(self, listener: Listener) -> int:
        """Forwards the events of the process until it ends; returns its status."""
        actions: dict[str, Callable[[Any], None]] = {
            STEP: self._begin,
            LINE: listener.line,
            RESULTS: lambda name: listener.results(self._named(name)),
        }
        status = None
        self._begin(self._step)
        for kind, value in self._events():
            if kind in _FAILURES:
                raise _FAILURES[kind](value)
            if kind == STATUS:
                status = value
            else:
                actions[kind](value)
        if status is None:
            raise self._ended()
        return status

    def ask(self, step: str, request: str) -> str:
        """Sends a request, and returns its results.

        Args:
            step: Name of the request, for messages. The request has the time of one step.
            request: One line.
        """
        self._begin(step)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        results = None
        for kind, value in self._events():
            if kind in _FAILURES:
                raise _FAILURES[kind](value)
            if kind == RESULTS:
                results = value
            elif kind == STATUS and results is not None:
                return str(results)
            else:
                raise self._reports(f"{kind} where results were expected")
        raise self._ended()

    def _events(self) -> Iterator[tuple[str, Any]]:
        """Yields the events of the process until it ends."""
        while piece := self._next_piece():
            try:
                yield from self._decoder.feed(piece)
            except ValueError as e:
                raise self._reports(e) from e

    def _named(self, name: str) -> Path:
        """Returns a folder of the process by name, after a check that it has files only."""
        path = self._folder / name
        if not name.isidentifier() or path.is_symlink() or not path.is_dir():
            raise self._reports("a folder outside of its own")
        # The reader must neither follow a link nor wait for a pipe.
        with os.scandir(path) as entries:
            if not all(entry.is_file(follow_symlinks=False) for entry in entries):
                raise self._reports("a folder with links or pipes")
        return path

    def _reports(self, what: object) -> IsolationError:
        return IsolationError(f"{self._step}: its process reports {what}")

    def _begin(self, step: str) -> None:
        self._step = step
        self._deadline = time.monotonic() + self._bounds.max_round_seconds

    def _next_piece(self) -> bytes:
        """Waits for the next line of the process; empty if it has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            # Check first: the process may report without a pause.
            self._check_bounds()
            while not selector.select(_POLL_SECONDS):
                self._check_bounds()
        return os.read(self._pipe, _PIECE)

    def _check_bounds(self) -> None:
        bounds = self._bounds
        if time.monotonic() > self._deadline:
            raise IsolationError(
                f"{self._step}: expected to end within {bounds.max_round_seconds:g} s "
                "(--max_round_seconds), it took longer and was ended"
            )
        # The kernel's limit does not count files that are mapped into memory.
        if _resident_bytes(self._process.pid) > bounds.memory_bytes:
            raise IsolationError(f"{self._step}: {bounds.on_memory}, it needs more and was ended")

    def _ended(self) -> ProcessEnded:
        """Returns the message for a process that has ended without a status."""
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return ProcessEnded(
                f"{self._step}: its process was ended by {name}; if it ran out of memory, raise "
                f"--max_memory_gb={self._bounds.max_memory_gb:g}"
            )
        last = self._last_error() or "without a message"
        return ProcessEnded(f"{self._step}: its process ended with status {code} ({last})")

    def _last_error(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        self._errors.seek(max(0, size - _MAX_ERRORS))
        text = self._errors.read(_MAX_ERRORS).decode(errors="replace").strip()
        return text.rpartition("\n")[2]


def _resident_bytes(pid: int) -> int:
    """Returns the memory of a process in bytes; 0 if it is unknown."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
