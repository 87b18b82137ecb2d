"""The pool of workers and the schedule of shards on them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

import ray

from tff_agnostic.errors import ExecutionError, UserError, counted
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray_worker import RayWorker, versions

_MAX_FAILED_STARTS = 5
_SAME_EVERYWHERE = "; every machine needs the same Python, TensorFlow and tff_agnostic"
# A shard that its worker takes so often into its grave is probably why.
_MAX_LOSSES_IN_A_ROW = 5
_POLL_SECONDS = 1.0
# A shard that takes so much longer than any other, and so long, runs on another worker too.
_SLOW_FACTOR = 4.0
_SLOW_SECONDS = 5.0


@dataclasses.dataclass
class Worker:
    """One actor.

    Attributes:
        number: From 1; the actor that replaces another has its number.
        actor: The handle of the actor.
        starting: Will hold its versions once it has started; None when they were checked.
        asked: Will hold its versions again if it lives; None when nobody has asked, or it lives.
        num_running: Shards that were given to it and not returned yet.
        is_lost: Whether it has died.
    """

    number: int
    actor: Any
    starting: Optional[Any]
    asked: Optional[Any] = None
    num_running: int = 0
    is_lost: bool = False


class WorkerPool:
    """Actors, started at the first use, and started anew when they die.

    Args:
        options: What each worker gets.

    Attributes:
        workers: Those that run or are starting.
        events: What happened to workers, a line each, for whoever shows it.
        lanes: How many shards a worker runs at once.
        start_seconds: How long nothing may run because no worker has started.
    """

    def __init__(self, options: RuntimeOptions, start_seconds: float) -> None:
        self._options = options
        self._failed_starts = 0
        self.workers: list[Worker] = []
        self.events: list[str] = []
        has_gpu = options.gpus_per_worker > 0
        # On a GPU, one shard is prepared while the other runs.
        self.lanes = 2 if has_gpu else max(1, int(options.cpus_per_worker))
        self.start_seconds = start_seconds
        self._device = "auto" if has_gpu else "cpu"
        # A Ray of this process alone has nobody to reserve CPUs from, but maybe another runtime.
        self._reserved_cpus = 0.0 if options.ray_address == "local" else options.cpus_per_worker

    def check_room(self) -> int:
        """Returns how many workers the nodes of this Ray have room for."""
        options = self._options
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(_room_on(node, options) for node in nodes)
        if room < (options.num_workers or 1):
            cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
            raise UserError(
                f"--num_workers={options.num_workers or 1} of --cpus_per_worker="
                f"{options.cpus_per_worker:g}, --gpus_per_worker={options.gpus_per_worker:g}: Ray "
                f"at --ray_address={options.ray_address} has room for {room}: {cpus:g} CPUs and "
                f"{gpus:g} GPUs on {counted(len(nodes), 'node')}"
            )
        return room

    def start(self, most: int) -> None:
        """Starts the workers, if there are none; returns before they have started.

        Args:
            most: The most that can be of use.
        """
        if not self.workers:
            count = self._options.num_workers or min(self.check_room(), most)
            self.workers = [self._new(number) for number in range(1, count + 1)]

    def finish_start(self, worker: Worker) -> None:
        """Takes a worker that has started into use, or starts another if it died meanwhile.

        Raises:
            ExecutionError: If too many died.
        """
        try:
            found = ray.get(worker.starting)
        except ray.exceptions.RayError as e:
            self._failed_starts += 1
            reason = last_line(e)
            if isinstance(e, ray.exceptions.RayTaskError) or "error raised in its creation" in str(
                e
            ):
                raise UserError(f"a Ray worker cannot start: {reason}{_SAME_EVERYWHERE}") from None
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise ExecutionError(f"Ray workers die while they start: {reason}") from None
            self.replace(worker, "died before it had started; another starts")
            return
        for what, wanted in versions().items():
            if found.get(what) != wanted:
                raise UserError(
                    f"a Ray worker has {what} {found.get(what)}, this process has {wanted}"
                    f"{_SAME_EVERYWHERE}"
                )
        self._failed_starts = 0
        worker.starting = None

    def ask(self, worker: Worker) -> None:
        """Asks a worker that has nothing to do whether it lives, which Ray says to nobody else."""
        worker.asked = worker.actor.versions.remote()

    def finish_asking(self, worker: Worker) -> None:
        """Starts another worker in the place of one that was asked and has died."""
        try:
            ray.get(worker.asked)
        except ray.exceptions.RayError:
            # Of one that has got something to do since, that will tell.
            if worker.num_running == 0:
                self.replace(worker, "died while it had nothing to do; another starts")
        worker.asked = None

    def replace(self, worker: Worker, what_happened: str) -> None:
        """Starts a worker in the place of one that has died, unless that was done before."""
        if worker.is_lost:
            return
        worker.is_lost = True
        self.events.append(f"ray: worker {worker.number} {what_happened}")
        self.workers[self.workers.index(worker)] = self._new(worker.number)

    def close(self) -> None:
        """Ends the workers."""
        # Where somebody else has ended the connection, the workers have ended with it.
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker.actor)
        self.workers = []

    def _new(self, number: int) -> Worker:
        actor = ray.remote(RayWorker).options(
            num_cpus=self._reserved_cpus,
            num_gpus=self._options.gpus_per_worker,
            max_concurrency=self.lanes,
            scheduling_strategy="SPREAD",
            # This pool starts others: they have to show their versions first.
            max_restarts=0,
            max_task_retries=0,
        )
        handle = actor.remote(self._device)
        return Worker(number, handle, handle.versions.remote())


def last_line(error: BaseException) -> str:
    """Returns the last line of an error that came from elsewhere, which says what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _room_on(node: dict[str, float], options: RuntimeOptions) -> int:
    room = node.get("CPU", 0.0) / options.cpus_per_worker
    if options.gpus_per_worker > 0:
        room = min(room, node.get("GPU", 0.0) / options.gpus_per_worker)
    # A third of a CPU fits three times.
    return int(room + 1e-6)


# (actor, index of a shard) -> reference to its result.
Submit = Callable[[Any, int], Any]


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
                    "the CPUs and GPUs, or nodes may have left"
                )
