"""Runs a function in a process of its own, which is ended when it reaches its limits."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable, NoReturn, Optional, Protocol

from plan_runner import sandbox
from plan_runner.sandbox import Refused

# Longest line of the protocol, which has names and numbers of an export: none of ours is longer.
_LONGEST_LINE = 1 << 20
STEP, LINE, RESULTS, STATUS, ERROR = "step", "line", "results", "status", "error"
# A request that cannot be done; the process stays.
REFUSED = "refused"
_VALUES = {STEP: str, LINE: str, RESULTS: str, STATUS: int, ERROR: str, REFUSED: str}
_PR_SET_PDEATHSIG = 1
# Memory of libraries, mostly TensorFlow's, which the kernel's limit does not count.
_LIBRARIES_BYTES = 300_000_000
# The other process imports from the same folders.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from plan_runner.isolation import main; main(*sys.argv[2:])"
)
TASK = "task.json"
ERRORS = "errors.txt"
_POLL_SECONDS = 0.1
# Of what a process that has ended said, its last line being there.
_MOST_ERRORS = 4096
_PIECE = 1 << 16
# Variables of Python, the C library and TensorFlow; others may hold secrets of the user.
_VARIABLES = (
    *("ABSL_", "GLIBC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_"),
    *("PATH", "PLAN_RUNNER_", "PYTHON", "TF_", "TZ", "XLA_"),
)


class IsolationError(Exception):
    """The isolated function has refused its payload, reached a bound, or crashed.

    The message is one line, for the user.
    """


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds of a process; called as the flags are that messages name.

    Attributes:
        max_memory_gb: Its memory, in 10^9 bytes.
        max_round_seconds: Wall-clock limit of each reported step.
    """

    max_memory_gb: float
    max_round_seconds: float

    @property
    def memory_bytes(self) -> int:
        """Its memory, in bytes."""
        return int(self.max_memory_gb * 1e9)

    @property
    def on_memory(self) -> str:
        """What is expected of its memory, for messages."""
        return f"expected to need at most {self.max_memory_gb:g} GB (--max_memory_gb)"


class Listener(Protocol):
    """Receives the events of an isolated function."""

    def step(self, name: str) -> None:
        """Something begins that has the time of one step: "round 3", say."""

    def line(self, text: str) -> None:
        """Something is to be printed."""

    def results(self, folder: Path) -> None:
        """There are results in a folder, which the listener removes."""


class ResultsTaker:
    """A `Listener` that reads results, and heeds nothing else.

    Args:
        take: Reads them in their folder, which is removed then.

    Attributes:
        taken: What it returned last; None before.
    """

    def __init__(self, take: Callable[[Path], Any]) -> None:
        self._take = take
        self.taken: Any = None

    def step(self, name: str) -> None:
        """Has nothing to do."""

    def line(self, text: str) -> None:
        """Has nothing to do."""

    def results(self, folder: Path) -> None:
        """Reads them."""
        try:
            self.taken = self._take(folder)
        finally:
            shutil.rmtree(folder)


class NoEventError(ValueError):
    """The received message is no event."""


def encoded(kind: str, value: Any) -> bytes:
    """Returns an event as a line."""
    return json.dumps([kind, value]).encode() + b"\n"


class Decoder:
    """Finds the events in what arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """Yields the events (kind, value) that are whole after another piece.

        Raises:
            NoEventError: If it is no event, or too long for one.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise NoEventError(f"a line of more than {_LONGEST_LINE} bytes")
        for line in lines:
            yield _event(line)


def _event(line: bytes) -> tuple[str, Any]:
    try:
        kind, value = json.loads(line)
        if type(value) is _VALUES[kind]:
            return kind, value
    # Its process may have been taken over by what it runs.
    except (KeyError, RecursionError, TypeError, ValueError):
        pass
    raise NoEventError("something that is no event")


class Sender:
    """A `Listener` at the other end of a pipe."""

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
        # Its name: the reader knows where this process may write.
        self.send(RESULTS, folder.name)

    def send(self, kind: str, value: object) -> None:
        """Tells of an event; see `encoded`."""
        content = encoded(kind, value)
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
    path, sender = Path(task_file), Sender(int(pipe))
    task = json.loads(path.read_text("utf-8"))
    bounds = Bounds(**task["bounds"])
    _take(bounds)
    module, _, name = task["function"].partition(":")
    try:
        # Before anything else is imported: TensorFlow starts threads.
        if task["reads"] is not None:
            sandbox.enter(task["reads"], path.parent)
        function = getattr(importlib.import_module(module), name)
        sender.send(STATUS, function(task["payload"], sender, path.parent))
    except Refused as e:
        sender.send(ERROR, str(e))
    except MemoryError:
        sender.send(ERROR, f"{bounds.on_memory}, it needs more")
    # An unforeseen effect of a stranger's file: one line for the user.
    except Exception as e:
        traceback.print_exc()
        text = " ".join(str(e).split())[:300]
        sender.send(ERROR, f"expected an export that can be played, {type(e).__name__}: {text}")
    finally:
        # At once: threads of what failed need not end by themselves.
        os._exit(0)


def _end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, for whatever reason."""
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
            `sandbox.Refused`.
        payload: Its argument, of what JSON has.
        reads: Files and folders that it may read in its sandbox; without a sandbox None.

    Raises:
        IsolationError: If it raises an exception, reaches a bound, or ends without a status.
    """
    with tempfile.TemporaryDirectory(prefix="plan_runner_") as name:
        folder = Path(name)
        task = described(function, payload, bounds, reads)
        (folder / TASK).write_text(json.dumps(task), "utf-8")
        # Read again by what was opened here: the name may be another file's then.
        with open(folder / ERRORS, "w+b") as errors, Process(folder, bounds, errors) as process:
            return process.follow(listener)


class RequestRefused(IsolationError):
    """A process cannot do one of its requests; it goes on."""


class ProcessEnded(IsolationError):
    """A process has ended by itself, or something outside has ended it."""


def described(
    function: str, payload: Any, bounds: Bounds, reads: Optional[Iterable[str]]
) -> dict[str, Any]:
    """Returns what `main` reads of its file; see `run_isolated`."""
    return {
        "function": function,
        "payload": payload,
        "bounds": dataclasses.asdict(bounds),
        "reads": None if reads is None else list(reads),
    }


class Process:
    """The process, as a context manager that leaves none behind.

    Args:
        shared: File descriptor that the process inherits under the same number, if it gets
            requests at its standard input; None if it gets none.
    """

    def __init__(
        self, folder: Path, bounds: Bounds, errors: BinaryIO, shared: Optional[int] = None
    ) -> None:
        self.folder = folder
        self._bounds = bounds
        self._errors = errors
        self._shared = () if shared is None else (shared,)
        self._input = subprocess.DEVNULL if shared is None else subprocess.PIPE
        self._decoder = Decoder()
        self._step = "starting"
        self._deadline = 0.0

    def __enter__(self) -> Process:
        self._pipe, other_end = os.pipe()
        try:
            arguments = [str(self.folder / TASK), str(other_end), str(os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), *arguments],
                stdin=self._input,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(other_end, *self._shared),
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
        # With all its children, in a session of its own. It may have ended already.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)
        if self._process.stdin is not None:
            # What it did not read is of no use to anybody.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    @property
    def id(self) -> int:
        """Its number."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Returns whether it has."""
        return self._process.poll() is not None

    def _environment(self) -> dict[str, str]:
        kept = {key: text for key, text in os.environ.items() if key.startswith(_VARIABLES)}
        # Libraries such as Keras write to the home folder: it is here.
        return {**kept, "TMPDIR": str(self.folder), "HOME": str(self.folder)}

    def follow(self, listener: Listener) -> int:
        """Passes on the events of the process until it ends; returns its status."""
        actions = {STEP: self._begin, **self._actions(listener)}
        status = None
        self._begin(self._step)
        for kind, value in self._events():
            if kind == STATUS:
                status = value
            else:
                actions[kind](value)
        if status is None:
            raise self._ended()
        return status

    def ask(self, step: str, request: str) -> str:
        """Sends a request, and returns the text of its results.

        Args:
            step: Name of the request, for messages. All of it has the time of one step.
            request: One line.
        """
        self._begin(step)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        failures, results = {ERROR: _fail, REFUSED: _refuse}, None
        for kind, value in self._events():
            if kind in failures:
                failures[kind](value)
            elif kind == RESULTS:
                results = value
            elif kind == STATUS and results is not None:
                return str(results)
            else:
                raise self._reports(f"{kind} where results were expected")
        raise self._ended()

    def _actions(self, listener: Listener) -> dict[str, Callable[[Any], None]]:
        return {
            LINE: listener.line,
            RESULTS: lambda name: listener.results(self._named(name)),
            ERROR: _fail,
            REFUSED: _refuse,
        }

    def _events(self) -> Iterator[tuple[str, Any]]:
        """Yields what it reports, until it ends."""
        try:
            while piece := self._next_piece():
                yield from self._decoder.feed(piece)
        except NoEventError as e:
            raise self._reports(e) from e

    def _named(self, name: str) -> Path:
        """Returns the folder of that name among the process's own; there are files in it only."""
        path = self.folder / name
        if not name.isidentifier() or path.is_symlink() or not path.is_dir():
            raise self._reports("a folder that is none of its own")
        # Whoever takes them neither follows a link nor waits for a pipe.
        with os.scandir(path) as entries:
            if not all(entry.is_file(follow_symlinks=False) for entry in entries):
                raise self._reports("a folder with more than files in it")
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
        last = self._last_error() or "it said nothing"
        return ProcessEnded(f"{self._step}: its process ended with status {code} ({last})")

    def _last_error(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        self._errors.seek(max(0, size - _MOST_ERRORS))
        text = self._errors.read(_MOST_ERRORS).decode(errors="replace").strip()
        return text.rpartition("\n")[2]


def _fail(text: str) -> None:
    raise IsolationError(text)


def _refuse(text: str) -> None:
    raise RequestRefused(text)


def _resident_bytes(pid: int) -> int:
    """Returns how much memory a process has; 0 where that is unknown."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
