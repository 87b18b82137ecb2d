"""Protocol between a player and its sandboxed process: requests, files and answers.

It is a function in a process of its own, in a sandbox, that does one piece of work after the other.
A request names a part of a round; files go in and come out under the names here. Their content is
in memory that the two processes share (memfd_create), which has no name on any file system: states
hold the key of the server's noise, and nothing of them is left when both processes have ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from plan_runner.isolation import (
    ERRORS,
    REFUSED,
    RESULTS,
    STATUS,
    TASK,
    Bounds,
    Listener,
    Process,
    ProcessEnded,
    RequestRefused,
    Sender,
    described,
)
from plan_runner.sandbox import Refused

# Of a function's payload: the file descriptor of the shared memory.
SHARED = "shared"
_T = TypeVar("_T")
# What the plan is: to ABOUT_FILE.
ABOUT, ABOUT_FILE = "about", "about.json"
# The state of an evaluation of a training's state: STATE and TRAINED to STATE.
EVALUATED, TRAINED = "evaluated", "trained.ckpt"
# The server's first half: STATE to CLIENT_CHECKPOINT.
BEGIN = "begin"
# A client: CLIENT_CHECKPOINT, and EXAMPLES or files of its own, to VALUES or UPDATE.
CLIENT = "client"
# Whether a client's examples are what the plan reads: EXAMPLES or files of its own.
READ = "read"
# Whether an update of another is what the plan sums: UPDATE.
CHECK = "check"
# Plain sums: updates by their number to SUMS.
SUM = "sum"
# The server's second half: STATE and SUMS to STATE and TOLD.
END = "end"
STATE, CLIENT_CHECKPOINT, EXAMPLES = "state.ckpt", "client.ckpt", "examples"
VALUES, UPDATE, SUMS, TOLD = "values.npz", "update.ckpt", "sums", "told.json"
_LENGTH = struct.Struct("<Q")


def framed(records: Iterable[bytes]) -> bytes:
    """Returns records as one text, the content of EXAMPLES: each with its length before it."""
    return b"".join(_LENGTH.pack(len(record)) + record for record in records)


def records_in(content: bytes) -> Iterator[bytes]:
    """Yields the records of `framed`."""
    at = 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        yield content[at : at + length]
        at += length


Files = Mapping[str, bytes]


def serve(handle: Callable[[Any, Files], Files], listener: Listener, shared: int) -> int:
    """Does what a `Worker` asks for until it ends; called by its function, in its process.

    Args:
        handle: (request, its files) -> files of the results: does a request. It may raise
            `sandbox.Refused`, and then gets the next one.
        shared: File descriptor of the shared memory, the payload's SHARED.

    Returns:
        The status of a function that `run_isolated` calls.
    """
    assert isinstance(listener, Sender), "a process of its own"
    for line in sys.stdin.buffer:
        try:
            asked = json.loads(line)
            sizes = _put(shared, handle(asked["request"], _taken(shared, asked["files"])))
        except Refused as e:
            listener.send(REFUSED, str(e))
        else:
            listener.send(RESULTS, json.dumps(sizes))
            listener.send(STATUS, 0)
    return 0


def _put(shared: int, files: Files) -> dict[str, int]:
    """Writes files to shared memory, one after the other; returns their sizes by their names."""
    os.ftruncate(shared, 0)
    at = 0
    for content in files.values():
        left = memoryview(content)
        while left:
            written = os.pwrite(shared, left, at)
            left, at = left[written:], at + written
    return {name: len(content) for name, content in files.items()}


def _taken(shared: int, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Returns the files of `_put`, and empties the shared memory.

    Raises:
        ValueError: The memory has less than the sizes claim.
    """
    files, at = {}, 0
    total = os.fstat(shared).st_size
    for name, size in dict(sizes).items():
        if not 0 <= size <= total - at:
            raise ValueError(f"{name}: {size} bytes of {total - at}")
        pieces = []
        while size:
            piece = os.pread(shared, size, at)
            if not piece:
                raise ValueError(f"{name}: {size} bytes more")
            pieces.append(piece)
            size, at = size - len(piece), at + len(piece)
        files[name] = b"".join(pieces)
    os.ftruncate(shared, 0)
    return files


class Worker:
    """A function in a process of its own that does one piece of work after the other.

    The process is started with the first request. A request that reaches a bound ends it, and the
    next one starts another; so does one that finds that it has ended. It ends with this process,
    too.

    Args:
        function: Calls `serve`; see `run_isolated`.
        payload: See `run_isolated`; the function also gets SHARED.
        bounds: Memory of the process, and the time of each request.
        reads: See `run_isolated`.
    """

    def __init__(
        self,
        function: str,
        payload: Mapping[str, Any],
        bounds: Bounds,
        reads: Optional[Iterable[str]] = None,
    ) -> None:
        self._function, self._payload, self._reads = function, dict(payload), reads
        self._bounds = bounds
        self._lock = threading.Lock()
        self._process: Optional[Process] = None
        self._shared = -1
        self._stack = contextlib.ExitStack()
        # The kernel ends the process with the thread that has started it: one that stays.
        self._starter = concurrent.futures.ThreadPoolExecutor(1, "plan_runner_starter")

    @property
    def process_id(self) -> Optional[int]:
        """Id of the process; None if there is none."""
        return None if self._process is None else self._process.id

    def ask(
        self,
        step: str,
        request: Any,
        files: Files,
        take: Callable[[dict[str, bytes]], _T],
    ) -> _T:
        """Returns the value that is taken from the results of a request.

        Args:
            step: Name of the request, for messages.
            request: Numbers and texts, as JSON has them.
            files: The contents of files that the process gets with it, by their names.
            take: Reads the results, files by their names. Another process has written them: they
                may have any content.

        Raises:
            RequestRefused: If it cannot be done.
            IsolationError: If the process has reached a bound, or has ended.
        """
        with self._lock:
            is_new = self._process is None
            try:
                return self._asked(step, request, files, take)
            except ProcessEnded:
                if is_new:
                    raise
            # It may have ended before: another one may do what this one did not begin.
            return self._asked(step, request, files, take)

    def _asked(
        self, step: str, request: Any, files: Files, take: Callable[[dict[str, bytes]], _T]
    ) -> _T:
        process = self._running()
        try:
            sizes = _put(self._shared, files)
            asked = json.dumps({"request": request, "files": sizes})
            return take(_taken(self._shared, json.loads(process.ask(step, asked))))
        except RequestRefused:
            raise
        except BaseException:
            # Whatever it is doing, nobody waits for it.
            self._end()
            raise

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()
        self._starter.shutdown()

    def _running(self) -> Process:
        if self._process is not None and not self._process.has_ended():
            return self._process
        self._end()
        self._process = self._starter.submit(self._start).result()
        return self._process

    def _start(self) -> Process:
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="plan_runner_"))
            folder = Path(name)
            self._shared = os.memfd_create("plan_runner", os.MFD_CLOEXEC)
            stack.callback(os.close, self._shared)
            payload = {**self._payload, SHARED: self._shared}
            task = described(self._function, payload, self._bounds, self._reads)
            (folder / TASK).write_text(json.dumps(task), "utf-8")
            errors = stack.enter_context(open(folder / ERRORS, "w+b"))
            process = Process(folder, self._bounds, errors, self._shared)
            stack.enter_context(process)
            self._stack = stack.pop_all()
        return process

    def _end(self) -> None:
        self._process = None
        self._stack.close()


@dataclasses.dataclass(frozen=True)
class SecureValue:
    """A tensor of integers that goes into secure sums only.

    Attributes:
        bound: Every value of a client is below it.
        modulus: Of sums over as many clients as the plan has room for.
    """

    name: str
    shape: tuple[int, ...]
    bound: int
    modulus: int


@dataclasses.dataclass(frozen=True)
class About:
    """The facts about a plan that server and nodes need.

    Attributes:
        kind: What a round does: training, or evaluation.
        profile: How clients are summed.
        secure: What they send into secure sums.
        max_clients: The most clients of a round; None if there is no limit.
        min_clients: The fewest clients of a round.
    """

    kind: str
    profile: str
    secure: tuple[SecureValue, ...]
    max_clients: Optional[int]
    min_clients: int

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> About:
        """Returns the one of which this is `dataclasses.asdict`, by way of JSON."""
        secure = tuple(
            SecureValue(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in value["secure"]
        )
        return cls(**{**value, "secure": secure})
