"""Shards on the workers of a pool, until each has a result, whatever happens to workers."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any, Callable

import ray

from tff_agnostic.errors import ExecutionError
from tff_agnostic.runtimes.ray_pool import Worker, WorkerPool, last_line

# A shard that its worker takes so often into its grave is probably why.
_MAX_LOSSES_IN_A_ROW = 5
_POLL_SECONDS = 1.0
# A shard that takes so much longer than any other, and so long, runs on another worker too.
_SLOW_FACTOR = 4.0
_SLOW_SECONDS = 5.0

Submit = Callable[[Any, int], Any]
"""(actor, index of a shard) -> reference to its result."""


@dataclasses.dataclass
class _Task:
    worker: Worker
    round_num: int
    index: int
    since: float


class Schedule:
    """Gives shards to whichever worker is free.

    Args:
        pool: The workers.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        # Also those of rounds that did not wait for them.
        self._tasks: dict[Any, _Task] = {}
        self._rounds = itertools.count()

    def results(self, num_shards: int, submit: Submit) -> Iterator[tuple[int, Any]]:
        """Yields the index of each shard and its result, in the order in which they finish.

        Raises:
            ExecutionError: If a shard failed, or workers die without getting any further.
            UserError: If a worker cannot run what this process sends.
        """
        round_num = next(self._rounds)
        waiting = collections.deque(range(num_shards))
        done: set[int] = set()
        losses: collections.Counter[int] = collections.Counter()
        # Numbers of workers that have shown in this round that they live, or were asked.
        heard: set[int] = set()
        longest, last_progress = 0.0, time.monotonic()
        while len(done) < num_shards:
            while waiting and (worker := self._free_worker(len(waiting))) is not None:
                self._give(worker, round_num, waiting.popleft(), submit)
            if not waiting:
                self._ask_the_idle(heard)
            starting = {w.starting: w for w in self._pool.workers if w.starting is not None}
            asking = {w.asked: w for w in self._pool.workers if w.asked is not None}
            seconds = min(_POLL_SECONDS, self._pool.start_seconds)
            ready, _ = ray.wait([*self._tasks, *starting, *asking], timeout=seconds)
            for ref in ready:
                if ref in starting:
                    self._pool.finish_start(starting[ref])
                    continue
                if ref in asking:
                    self._pool.finish_asking(asking[ref])
                    continue
                task = self._tasks.pop(ref)
                task.worker.num_running -= 1
                is_new = task.round_num == round_num and task.index not in done
                try:
                    result = ray.get(ref)
                except ray.exceptions.RayTaskError as e:
                    # Not the worker's: what it ran has failed, and would fail again.
                    if is_new:
                        raise (e.cause if isinstance(e.cause, ExecutionError) else e) from None
                    continue
                except ray.exceptions.RayError as e:
                    self._pool.replace(task.worker, "died; its clients run again")
                    if not is_new:
                        continue
                    losses[task.index] += 1
                    if losses[task.index] >= _MAX_LOSSES_IN_A_ROW:
                        raise ExecutionError(
                            f"Ray workers died {losses[task.index]} times over the same clients, "
                            f"perhaps for want of memory: {last_line(e)}"
                        ) from e
                    if not self._is_running(round_num, task.index):
                        waiting.appendleft(task.index)
                    continue
                heard.add(task.worker.number)
                if is_new:
                    losses.clear()
                    last_progress = time.monotonic()
                    longest = max(longest, last_progress - task.since)
                    done.add(task.index)
                    yield task.index, result
            if not waiting:
                self._help_the_slowest(round_num, done, longest, submit)
            self._check_started(last_progress)

    def _free_worker(self, num_waiting: int) -> Any:
        started = [w for w in self._pool.workers if w.starting is None]
        lanes = self._pool.lanes
        # One more than it runs, so that it need not wait for the next; but not towards the end,
        # when another may be free sooner.
        most = lanes + 1 if num_waiting > len(started) * lanes else lanes
        free = [w for w in started if w.num_running < most]
        return min(free, key=lambda w: w.num_running, default=None)

    def _give(self, worker: Worker, round_num: int, index: int, submit: Submit) -> None:
        worker.num_running += 1
        ref = submit(worker.actor, index)
        self._tasks[ref] = _Task(worker, round_num, index, time.monotonic())

    def _ask_the_idle(self, heard: set[int]) -> None:
        # Of a worker that has nothing to do, nothing else tells that it has died.
        for worker in self._pool.workers:
            is_idle = worker.starting is None and worker.num_running == 0
            if is_idle and worker.asked is None and worker.number not in heard:
                self._pool.ask(worker)
                heard.add(worker.number)

    def _is_running(self, round_num: int, index: int) -> bool:
        return any(t.round_num == round_num and t.index == index for t in self._tasks.values())

    def _help_the_slowest(
        self, round_num: int, done: set[int], longest: float, submit: Submit
    ) -> None:
        late = time.monotonic() - max(_SLOW_SECONDS, _SLOW_FACTOR * longest)
        for task in list(self._tasks.values()):
            if task.round_num != round_num or task.index in done or task.since > late:
                continue
            copies = sum(t.index == task.index for t in self._tasks.values())
            worker = self._free_worker(0)
            if done and copies == 1 and worker is not None and worker is not task.worker:
                self._pool.events.append(
                    f"ray: worker {task.worker.number} is slow; its clients run on worker "
                    f"{worker.number} too"
                )
                self._give(worker, round_num, task.index, submit)

    def _check_started(self, last_progress: float) -> None:
        if all(w.starting is not None for w in self._pool.workers):
            waited = time.monotonic() - last_progress
            if waited > self._pool.start_seconds:
                raise ExecutionError(
                    f"no Ray worker has started within {waited:.0f} seconds: other jobs may hold "
                    "the CPUs and GPUs, or nodes may have left; --worker_start_seconds lets them "
                    "take longer"
                )
