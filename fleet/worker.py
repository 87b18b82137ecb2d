"""Protocol between a `Player` and its sandboxed process: requests, files and answers.

A request names a part of a round; requests and answers include files. The files' contents are in
shared memory (memfd_create), never in a file system: states contain the key of the server's noise,
and must not remain after both processes have ended.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

from plan_runner.isolation import (
    REFUSED,
    RESULTS,
    STATUS,
    Bounds,
    Listener,
    Process,
    ProcessEnded,
    RequestRefused,
    Sender,
)
from plan_runner.sandbox import Refused

# Payload key of the shared memory's file descriptor.
SHARED = "shared"
# Names of the files in requests and answers, except for records and updates, whose names are
# numbers.
STATE, TRAINED, CHECKPOINT = "state.ckpt", "trained.ckpt", "client.ckpt"
VALUES, UPDATE, SUMS, REPORT = "values.npz", "update.ckpt", "sums", "report.json"
Files = Mapping[str, bytes]


def serve(handle: Callable[[Any, Files], Files], listener: Listener, shared: int) -> int:
    """Handles a `Worker`'s requests, in the separate process, until the input ends.

    Args:
        handle: Called with a request and its files; returns files. It may raise `sandbox.Refused`.
        shared: File descriptor of the shared memory, the payload's SHARED.

    Returns:
        The exit status 0.
    """
    assert isinstance(listener, Sender), "a separate process"
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
    """Writes files to shared memory, one after the other; returns the sizes, keyed by name."""
    with open(shared, "wb", closefd=False) as memory:
        memory.seek(0)
        memory.truncate()
        memory.writelines(files.values())
    return {name: len(content) for name, content in files.items()}


def _taken(shared: int, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Reads the files that `_put` wrote, and empties the shared memory.

    Raises:
        ValueError: The memory has fewer bytes than `sizes` states.
    """
    files, left = {}, os.fstat(shared).st_size
    with open(shared, "rb", closefd=False) as memory:
        memory.seek(0)
        for name, size in dict(sizes).items():
            if not 0 <= size <= left:
                raise ValueError(f"{name}: {size} bytes of {left}")
            files[name], left = memory.read(size), left - size
            if len(files[name]) != size:
                raise ValueError(f"{name}: {size} bytes, found {len(files[name])}")
    os.ftruncate(shared, 0)
    return files


class Worker:
    """A separate process, which handles requests one at a time.

    The first request starts the process. If it ends, for example because a request exceeds a limit,
    the next request starts another process. No process outlives this one.

    Args:
        function: Name of a function that calls `serve`; see `run_isolated` for the arguments.
        payload: Data for the function, to which the worker adds SHARED.
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
        self._process: Optional[Process] = None
        self._shared = -1
        self._stack = contextlib.ExitStack()
        # The kernel ends the process when the thread that started it exits, so keep the thread.
        self._starter = concurrent.futures.ThreadPoolExecutor(1, "plan_runner_starter")

    @property
    def process_id(self) -> Optional[int]:
        """Process id; None if no process runs."""
        return None if self._process is None else self._process.id

    def ask(self, step: str, request: Any, files: Files) -> dict[str, bytes]:
        """Sends a request, and returns the files of the answer.

        Args:
            step: Description of the request, for error messages.
            request: JSON-serialisable data.
            files: Contents of the files to send, keyed by name.

        Raises:
            RequestRefused: The process rejects the request.
            IsolationError: The process has exceeded a limit, or has ended.
            TypeError, ValueError: The answer is malformed, as from a compromised process.
        """
        is_new = self._process is None
        try:
            return self._ask(step, request, files)
        except ProcessEnded:
            if is_new:
                raise
        # The process may have ended before the request: try again with a new process.
        return self._ask(step, request, files)

    def _ask(self, step: str, request: Any, files: Files) -> dict[str, bytes]:
        process = self._running()
        try:
            sizes = _put(self._shared, files)
            asked = json.dumps({"request": request, "files": sizes})
            return _taken(self._shared, json.loads(process.ask(step, asked)))
        except RequestRefused:
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the process; the next request starts another."""
        self._process = None
        self._stack.close()

    def close(self) -> None:
        """Ends the process, and allows no further requests."""
        self.end()
        self._starter.shutdown()

    def _running(self) -> Process:
        if self._process is None or self._process.has_ended():
            self.end()
            self._process = self._starter.submit(self._start).result()
        return self._process

    def _start(self) -> Process:
        with contextlib.ExitStack() as stack:
            self._shared = os.memfd_create("plan_runner", os.MFD_CLOEXEC)
            stack.callback(os.close, self._shared)
            payload = {**self._payload, SHARED: self._shared}
            process = stack.enter_context(
                Process(self._function, payload, self._bounds, self._reads, self._shared)
            )
            self._stack = stack.pop_all()
        return process
