"""The workers of a Ray runtime: how many there is room for, and new ones for those that die."""

import dataclasses
from typing import Any, Optional

import ray

from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray_worker import RayWorker, versions

_MAX_FAILED_STARTS = 5


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

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._failed_starts = 0
        self.workers: list[Worker] = []
        self.events: list[str] = []
        has_gpu = options.gpus_per_worker > 0
        # On a GPU, one shard is prepared while the other runs.
        self.lanes = 2 if has_gpu else max(1, int(options.cpus_per_worker))
        self.start_seconds = options.worker_start_seconds
        self._device = "auto" if has_gpu else "cpu"
        # A Ray of this process alone has nobody to reserve CPUs from, but maybe another runtime.
        self._reserved_cpus = 0.0 if options.ray_address == "local" else options.cpus_per_worker

    def check_room(self) -> int:
        """Returns how many workers the nodes of this Ray have room for.

        Raises:
            UserError: If it is less than what was asked for, or nothing.
        """
        options = self._options
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(_room_on(node, options) for node in nodes)
        if room < (options.num_workers or 1):
            cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
            raise UserError(
                f"--num_workers={options.num_workers or 1} of --cpus_per_worker="
                f"{options.cpus_per_worker:g}, --gpus_per_worker={options.gpus_per_worker:g}: Ray "
                f"at --ray_address={options.ray_address} has room for {room}: {cpus:g} CPUs and "
                f"{gpus:g} GPUs on {len(nodes)} node{'' if len(nodes) == 1 else 's'}"
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
            UserError: If it cannot run what this process sends.
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


_SAME_EVERYWHERE = "; every machine needs the same Python, TensorFlow and tff_agnostic"


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
