"""The process that plays an export as both sides know it: how it is asked, and for what.

It is a function in a process of its own, in a sandbox, that does one piece of work after the other.
A request names a part of a round; files go in and come out under the names here.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import shutil
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, cast

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
    ResultsTaker,
    Sender,
    described,
)
from plan_runner.sandbox import Refused

_REQUEST = "request"
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


def serve(handle: Callable[[Any, Path, Path], None], listener: Listener, folder: Path) -> int:
    """Does what a `Worker` asks for until it ends; called by its function, in its process.

    Args:
        handle: (request, folder with its files, folder for results): does a request. It may raise
            `sandbox.Refused`, and then gets the next one.
        folder: The process's own.

    Returns:
        The status of a function that `run_isolated` calls.
    """
    assert isinstance(listener, Sender), "a process of its own"
    results = folder / RESULTS
    for line in sys.stdin.buffer:
        results.mkdir()
        try:
            handle(json.loads(line), folder / _REQUEST, results)
        except Refused as e:
            shutil.rmtree(results)
            listener.send(REFUSED, str(e))
        else:
            listener.results(results)
            listener.send(STATUS, 0)
    return 0


class Worker:
    """A function in a process of its own that does one piece of work after the other.

    The process is started with the first request. A request that reaches a bound ends it, and the
    next one starts another; so does one that finds that it has ended. It ends with this process,
    too.

    Args:
        function: Calls `serve`; see `run_isolated`.
        payload: See `run_isolated`.
        bounds: Memory of the process, and the time of each request.
        reads: See `run_isolated`.
    """

    def __init__(
        self, function: str, payload: Any, bounds: Bounds, reads: Optional[Iterable[str]] = None
    ) -> None:
        self._task = described(function, payload, bounds, reads)
        self._bounds = bounds
        self._lock = threading.Lock()
        self._process: Optional[Process] = None
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
        files: Mapping[str, bytes],
        take: Callable[[Path], _T],
    ) -> _T:
        """Returns what is taken of the results of a request.

        Args:
            step: What it is, for messages.
            request: Of what JSON has.
            files: The contents of files that the process gets with it, by their names.
            take: Reads the results in their folder, which is removed then. They are what another
                process wrote, in files of any content.

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
        self,
        step: str,
        request: Any,
        files: Mapping[str, bytes],
        take: Callable[[Path], _T],
    ) -> _T:
        process = self._running()
        folder = process.folder / _REQUEST
        try:
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
            taker = ResultsTaker(take)
            process.ask(step, json.dumps(request), taker)
            shutil.rmtree(folder)
            return cast(_T, taker.taken)
        except RequestRefused:
            shutil.rmtree(folder)
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
            (folder / TASK).write_text(json.dumps(self._task), "utf-8")
            errors = stack.enter_context(open(folder / ERRORS, "w+b"))
            process = Process(folder, self._bounds, errors, takes_requests=True)
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
    """What a party has to know of a plan.

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
