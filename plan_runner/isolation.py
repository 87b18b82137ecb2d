"""Runs a function in a separate process, which has memory and time limits and may have a sandbox.

The process reports events as JSON lines through a pipe. These reports are not trusted, because the
export's graphs may have compromised the process.
"""

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

# Maximum bytes of a reported line.
_LONGEST_LINE = 1 << 20
STEP, LINE, RESULTS, STATUS, ERROR = "step", "line", "results", "status", "error"
# Event of a rejected request, after which the process continues.
REFUSED = "refused"
_VALUES = {STEP: str, LINE: str, RESULTS: str, STATUS: int, ERROR: str, REFUSED: str}
_PR_SET_PDEATHSIG = 1
# Bytes of loaded libraries, mostly TensorFlow's, which the kernel's limit does not count.
_LIBRARIES_BYTES = 300_000_000
# Python code of the process, which imports modules from the parent's folders.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from plan_runner.isolation import main; main(*sys.argv[2:])"
)
_TASK, _ERRORS = "task.json", "errors.txt"
_POLL_SECONDS = 0.1
# Bytes to read from the end of the process's error output, to find the last line.
_MAX_ERRORS = 4096
_PIECE = 1 << 16
# Prefixes of the environment variables to pass on; other variables may contain secrets.
_VARIABLES = (
    *("ABSL_", "GLIBC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PATH", "PLAN_RUNNER_", "PYTHON", "TF_", "TZ", "XLA_"),
)


class IsolationError(PlanError):
    """The isolated function rejected its payload, exceeded a limit, or crashed."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Limits of a process; messages name the flags that set them.

    Attributes:
        max_memory_gb: Maximum memory in 10^9 bytes.
        max_round_seconds: Maximum wall-clock seconds of each reported step.
    """

    max_memory_gb: float
    max_round_seconds: float

    @property
    def memory_bytes(self) -> int:
        """Maximum memory in bytes."""
        return int(self.max_memory_gb * 1e9)

    @property
    def on_memory(self) -> str:
        """Beginning of the message about exceeded memory."""
        return f"expected to need at most {self.max_memory_gb:g} GB (--max_memory_gb)"


class Listener(Protocol):
    """Receives the events of an isolated function."""

    def step(self, name: str) -> None:
        """Receives the name of a step that begins, such as "round 3", with its own time limit."""
        return

    def line(self, text: str) -> None:
        """Receives a line to print."""
        return

    def results(self, folder: Path) -> None:
        """Receives the folder with the results, and removes it."""


def encoded(kind: str, value: Any) -> bytes:
    """Encodes an event as a line of JSON."""
    return json.dumps([kind, value]).encode() + b"\n"


class Decoder:
    """Decodes events from consecutive chunks of a byte stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """Yields the events (kind, value) that the next chunk completes.

        Raises:
            ValueError: A line is not an event, or is too long.
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
    # A compromised process may send anything.
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
        # Send only the name, because the reader knows the process's folder.
        self.send(RESULTS, folder.name)

    def send(self, kind: str, value: object) -> None:
        """Writes an event; see `encoded`."""
        content = encoded(kind, value)
        while content:
            content = content[os.write(self._pipe, content) :]


def main(task_file: str, pipe: str, parent: str) -> NoReturn:
    """Calls a function within limits, and ends this process.

    Args:
        task_file: Path of the JSON file that `Process` wrote to this process's folder.
        pipe: File descriptor of the pipe for events.
        parent: Id of the parent process. If the parent ends, the kernel kills this process.
    """
    end_with_parent(int(parent))
    path, sender = Path(task_file), Sender(int(pipe))
    task = json.loads(path.read_text("utf-8"))
    bounds = Bounds(**task["bounds"])
    _set_limits(bounds)
    module, _, name = task["function"].partition(":")
    try:
        # Enter the sandbox before other imports, because TensorFlow starts threads.
        if task["reads"] is not None:
            sandbox.enter(task["reads"], path.parent)
        function = getattr(importlib.import_module(module), name)
        sender.send(STATUS, function(task["payload"], sender, path.parent))
    except Refused as e:
        sender.send(ERROR, str(e))
    except MemoryError:
        sender.send(ERROR, f"{bounds.on_memory}, it needs more")
    # An untrusted file may cause any exception; report it in one line.
    except Exception as e:
        traceback.print_exc()
        text = " ".join(str(e).split())[:300]
        sender.send(ERROR, f"expected an export that can be executed, {type(e).__name__}: {text}")
    finally:
        # Do not wait for the threads of a failed function.
        os._exit(0)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call.
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")


def _set_limits(bounds: Bounds) -> None:
    limits = {
        resource.RLIMIT_DATA: max(_LIBRARIES_BYTES, bounds.memory_bytes - _LIBRARIES_BYTES),
        # Files need no larger limit, because their content is in memory before it is written.
        resource.RLIMIT_FSIZE: bounds.memory_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(kind, (limit, limit))
    # By default, a process that exceeds the file-size limit ends without a message.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def run_isolated(
    function: str,
    payload: Any,
    bounds: Bounds,
    listener: Listener,
    reads: Optional[Iterable[str]] = None,
) -> int:
    """Calls a function in a separate process with limits, and returns the function's status.

    The process ends with the function, and its files are removed. If the calling process is killed,
    the kernel kills the separate process. Results are only accepted from the process's own folder.

    Args:
        function: MODULE:NAME of a function (payload, listener, folder for its files) -> status,
            which may raise `sandbox.Refused`.
        payload: JSON-serialisable argument of the function.
        reads: Files and folders that the sandbox allows to read; None for no sandbox.

    Raises:
        IsolationError: The function raises an exception, exceeds a limit, or ends without a status.
    """
    with Process(function, payload, bounds, reads) as process:
        return process.follow(listener)


class RequestRefused(IsolationError):
    """A process rejected a request, and continues."""


class ProcessEnded(IsolationError):
    """A process has exited, or was killed from outside."""


_FAILURES = {ERROR: IsolationError, REFUSED: RequestRefused}


class Process:
    """A process with limits; leaving the context ends the process and removes its files.

    Args:
        function: See `run_isolated`.
        shared: File descriptor that the process inherits if it receives requests at its standard
            input; otherwise None.
    """

    def __init__(
        self,
        function: str,
        payload: Any,
        bounds: Bounds,
        reads: Optional[Iterable[str]] = None,
        shared: Optional[int] = None,
    ) -> None:
        # `main` reads this dictionary.
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
            # Keep the file open, because the process may replace it by a different file.
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
                    # Ctrl-C must reach only this process, which then ends the started process.
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
        # Kill the process group, which includes the process's children.
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
        # Set the home folder, because libraries such as Keras write to it.
        return {**kept, "TMPDIR": str(self._folder), "HOME": str(self._folder)}

    def follow(self, listener: Listener) -> int:
        """Forwards the process's events to a listener until it ends; returns the status."""
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
        """Sends a request, and returns the process's answer, a string.

        Args:
            step: Description of the request, for error messages. The time limit of a step applies.
            request: A string without line breaks.
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
        while piece := self._next_piece():
            try:
                yield from self._decoder.feed(piece)
            except ValueError as e:
                raise self._reports(e) from e

    def _named(self, name: str) -> Path:
        """Returns the path of a folder of the process, and checks that it only contains files."""
        path = self._folder / name
        if not name.isidentifier() or path.is_symlink() or not path.is_dir():
            raise self._reports("a folder outside its own folder")
        # A reader of the folder must not follow a link, nor wait for a pipe.
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
        """Waits for the process's next output; returns b"" if the process has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            # Check before selecting, because the process may write without a pause.
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
        # Check the memory, because the limit in the kernel does not count memory-mapped files.
        if _resident_bytes(self._process.pid) > bounds.memory_bytes:
            raise IsolationError(f"{self._step}: {bounds.on_memory}, it needs more and was ended")

    def _ended(self) -> ProcessEnded:
        """Returns the exception for a process that has ended without a status."""
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
    """Returns the resident memory of a process in bytes; 0 if unknown."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
