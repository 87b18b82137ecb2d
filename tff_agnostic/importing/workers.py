"""Maps a function over blocks in several processes, and keeps the order of the blocks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Callable, Optional, TypeVar

from tff_agnostic.base.errors import ExecutionError, UserError

Block = TypeVar("Block")
Result = TypeVar("Result")
# Maximum number of processes; more would wait for the process that reads and writes.
_MAX_PROCESSES = 4
# In a worker process: the factory of its function, and the function once it is created.
_make: Callable[[], Callable[[Any], Any]]
_work: Optional[Callable[[Any], Any]] = None


def usable_processes() -> int:
    """Returns the number of useful processes: one for each core, up to a limit."""
    return min(_MAX_PROCESSES, len(os.sched_getaffinity(0)))


def in_order(
    make: Callable[[], Callable[[Block], Result]], blocks: Iterable[Block], processes: int
) -> Generator[tuple[Block, Result], None, None]:
    """Yields each block with the function's result, in the order of the blocks.

    If a block raises an error, the results of all earlier blocks are yielded first.

    Args:
        make: Creates the function once per process; both must be picklable.
        processes: Number of processes; with 1, the calling process does the work.

    Raises:
        ExecutionError: If a process exits before it finishes.
    """
    if processes == 1:
        work = make()
        for block in blocks:
            yield block, work(block)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start, (make,))
    waiting: deque[tuple[Block, Future[Result]]] = deque()
    error: Optional[UserError] = None
    rest = iter(blocks)
    try:
        while True:
            try:
                added = next(rest, None)
            except UserError as e:
                # Raise this error later, because the blocks before it may raise errors first.
                error, added = e, None
            if added is not None:
                waiting.append((added, pool.submit(_call, added)))
            elif not waiting:
                break
            if added is None or len(waiting) > processes:
                block, result = waiting.popleft()
                yield block, result.result()
    except BrokenProcessPool:
        raise ExecutionError(
            "expected worker processes that finish, found one that exited: nothing was written; "
            'perhaps memory ran out, or the script lacks `if __name__ == "__main__"` (processes=1 '
            "starts no other process)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    if error is not None:
        raise error


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _make
    # Leave Ctrl-C to the parent, which ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _make = make


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _call(block: Any) -> Any:
    global _work
    if _work is None:
        # Create the function here: errors while the process starts would not reach the caller.
        _work = _make()
    return _work(block)
