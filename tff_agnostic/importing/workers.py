"""Several processes that work on blocks, with results in the blocks' order."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Callable, Optional, TypeVar

from tff_agnostic.base.errors import ExecutionError, UserError

Block = TypeVar("Block")
Result = TypeVar("Result")
# More of them wait for the process that reads and writes.
_MOST = 4
_SECONDS_TO_END = 5.0


def usable_processes() -> int:
    """Returns how many processes are of use: one for each core, up to a limit."""
    return min(_MOST, len(os.sched_getaffinity(0)))


def in_order(
    make: Callable[[], Callable[[Block], Result]], blocks: Iterable[Block], processes: int
) -> Generator[Result, None, None]:
    """Yields what a function makes of each block, in their order.

    An error comes after the results of the blocks before it, whatever the number of processes.

    Args:
        make: Makes the function, once in each process; both can be pickled.
        processes: How many work; with one, this process does all.

    Raises:
        ExecutionError: If a process ends before its work does.
    """
    if processes == 1:
        yield from map(make(), blocks)
        return
    waiting: deque[_Worker] = deque()
    with contextlib.ExitStack() as stack:
        error: Optional[UserError] = None
        rest = iter(blocks)
        while True:
            block = None
            if error is None:
                try:
                    block = next(rest, None)
                except UserError as e:
                    # Blocks before it may have errors of their own.
                    error = e
            if block is None:
                break
            if len(waiting) < processes:
                worker, result = stack.enter_context(_Worker(make)), None
            else:
                worker = waiting.popleft()
                result = worker.result()
            worker.send(block)
            waiting.append(worker)
            if result is not None:
                yield result
        while waiting:
            yield waiting.popleft().result()
        if error is not None:
            raise error


class _Worker:
    """A process that works on one block at a time; a context manager.

    It ends with its input: also when this process is killed.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._make = make

    def __enter__(self) -> _Worker:
        # Not by multiprocessing, which would run the user's script once more.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # An interrupt from the keyboard is for this process, which ends the others.
            start_new_session=True,
        )
        self.send(self._make)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, block: Any) -> None:
        """Gives it a block."""
        assert self._process.stdin is not None
        try:
            pickle.dump(block, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def result(self) -> Any:
        """Returns what it made of the block, or raises what it raised."""
        assert self._process.stdout is not None
        try:
            result = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._ended() from None
        if isinstance(result, UserError):
            raise result
        return result

    def _ended(self) -> ExecutionError:
        status = self._process.wait()
        how = f"status {status}"
        if status < 0:
            how = f"signal {signal.Signals(-status).name}, as for want of memory"
        return ExecutionError(
            f"expected a process to work to the end, found it ended by {how}: nothing was written "
            "(processes=1 needs less memory)"
        )


def _serve() -> None:
    """Works on the blocks of standard input until it ends."""
    given, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What else is printed must not be taken for a result.
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        work = pickle.load(given)()
        while True:
            block = pickle.load(given)
            try:
                result = work(block)
            except UserError as e:
                result = e
            pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
            results.flush()


if __name__ == "__main__":
    _serve()
    # Buffers of a broken pipe cannot be flushed.
    os._exit(0)
