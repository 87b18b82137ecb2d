"""Ray workers: actors that run shards of a cohort, and a pool that replaces dead workers.

Workers receive traced functions as bytes, and import TensorFlow only: importing TensorFlow
Federated would take seconds and memory.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import platform
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import ray

import tff_agnostic
from tff_agnostic.base.errors import ExecutionError, UserError, counted
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.runtimes.devices import DEVICES, one_thread_per_operation, sum_in_order
from tff_agnostic.runtimes.options import RayOptions

# Number of functions that a worker keeps: enough for training and evaluation in two runs.
_MAX_FUNCTIONS = 4
_MAX_FAILED_STARTS = 3
# After this many worker deaths on one shard, the shard is the likely cause, and the run fails.
_MAX_LOSSES = 5
# Number of concurrent shards of a worker with a GPU: it prepares one while the other runs.
_LANES_PER_GPU = 2
_SAME_EVERYWHERE = "; every machine needs the same Python, TensorFlow and tff_agnostic"

Arrays = Sequence[np.ndarray]
# Function that maps an actor and the index of a shard to a reference to the shard's result.
Submit = Callable[[Any, int], Any]


def versions() -> dict[str, str]:
    """Returns the versions of the software that must be the same in every process."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "TensorFlow": tf.__version__,
        "tff_agnostic": tff_agnostic.__version__,
    }


class RayWorker:
    """An actor that runs shards; Ray's `max_concurrency` sets its number of threads.

    Args:
        device: A name in `devices.DEVICES`.
    """

    def __init__(self, device: str) -> None:
        one_thread_per_operation()
        self._devices = itertools.cycle(DEVICES[device]())
        self._loading = threading.Lock()
        self._function = functools.lru_cache(maxsize=_MAX_FUNCTIONS)(
            lambda packed: unpack(ray.get(packed))
        )

    def versions(self) -> dict[str, str]:
        """See `versions`."""
        return versions()

    def run(
        self, packed: Sequence[Any], broadcast: Arrays, calls: Sequence[Arrays], num_summed: int
    ) -> list[np.ndarray]:
        """Calls a function once per element of `calls`; returns the sum of its outputs, in order.

        Each output consists of values to sum, followed by client states, which are concatenated.

        Args:
            packed: A list with a reference to the function's bytes. Ray would resolve a reference
                that is itself an argument.
            broadcast: The first arguments, the same in every call.
            calls: The other arguments of each call; there is at least one call.
            num_summed: Number of values to sum in each output.

        Raises:
            ExecutionError: If a device is out of memory.
        """
        with self._loading:
            function = self._function(packed[0])
        try:
            with tf.device(next(self._devices)):
                shared = _tensors(broadcast)
                states = []

                def outputs() -> Iterator[list[tf.Tensor]]:
                    for inputs in calls:
                        output = function(*shared, *_tensors(inputs))
                        states.append(output[num_summed:])
                        yield output[:num_summed]

                total = sum_in_order(outputs(), lambda a, b: [x + y for x, y in zip(a, b)])
                return [
                    *(value.numpy() for value in total),
                    *(np.concatenate(columns) for columns in zip(*states)),
                ]
        except tf.errors.ResourceExhaustedError as e:
            raise ExecutionError(
                "out of memory on a device of a Ray worker: lower max_clients_in_step, "
                f"client_batch_size or max_examples: {e.message.splitlines()[0]}"
            ) from None


def _tensors(values: Arrays) -> list[Any]:
    return [tf.convert_to_tensor(value) for value in values]


def pack(traced: Any) -> dict[str, bytes]:
    """Returns a function as the files of a SavedModel; `unpack` reads them.

    Args:
        traced: A concrete function without keyword arguments, variables or captured tensors.
    """
    arguments, _ = traced.structured_input_signature
    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in tf.nest.flatten(arguments)]

    def flat(*values: Any) -> list[Any]:
        results = traced(*tf.nest.pack_sequence_as(arguments, list(values)))
        flat_results: list[Any] = tf.nest.flatten(results)
        return flat_results

    module = tf.Module()
    module.run = tf.function(flat, input_signature=specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def unpack(files: Mapping[str, bytes]) -> Callable[..., Any]:
    """Returns the function that `pack` saved; it takes flat arguments and returns a flat list."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        module = tf.saved_model.load(folder)
    run = module.run
    # Keep a reference to the module, because the function does not keep the module alive.
    run.module = module
    function: Callable[..., Any] = run
    return function


@dataclasses.dataclass(frozen=True, eq=False)
class _Worker:
    """An actor of a pool.

    Attributes:
        number: Number of the worker, from 1; its replacement has the same number.
        actor: Handle of the actor.
        versions: Reference to the actor's `versions`, available once it has started.
    """

    number: int
    actor: Any
    versions: Any


class WorkerPool:
    """Actors, started on first use and replaced when they die.

    Args:
        options: Number and resources of the workers.
        start_seconds: A round fails if no worker has started within this many seconds.

    Attributes:
        events: Deaths of workers, one line each.

    Raises:
        OptionError: If the nodes lack the resources.
    """

    def __init__(self, options: RayOptions, start_seconds: float) -> None:
        self._options = options
        self._start_seconds = start_seconds
        has_gpu = options.gpus_per_worker > 0
        self._device = "auto" if has_gpu else "cpu"
        self._lanes = _LANES_PER_GPU if has_gpu else max(1, int(options.cpus_per_worker))
        self._room = self._check_room()
        self._failed_starts = 0
        self._starting: list[_Worker] = []
        self._started: list[_Worker] = []
        self.events: list[str] = []

    def start(self, most: int) -> None:
        """Starts the workers at the first call, without waiting for them.

        Args:
            most: Maximum number of workers that a round can use.
        """
        if not self._starting and not self._started:
            count = self._options.num_workers or min(self._room, most)
            self._starting = [self._new(number) for number in range(1, count + 1)]

    def close(self) -> None:
        """Stops the workers."""
        if ray.is_initialized():
            for worker in (*self._starting, *self._started):
                ray.kill(worker.actor)
        self._starting, self._started = [], []

    def results(self, num_shards: int, submit: Submit) -> Iterator[Any]:
        """Runs each shard on any free worker, and yields the results in the order of the shards.

        If a worker dies, other workers run its shards.

        Raises:
            ExecutionError: If a shard fails, or workers fail to start or die repeatedly.
        """
        waiting = collections.deque(range(num_shards))
        tasks: dict[Any, tuple[_Worker, int]] = {}
        results: dict[int, Any] = {}
        losses: collections.Counter[int] = collections.Counter()
        for index in range(num_shards):
            while index not in results:
                while waiting and (worker := self._free_worker(tasks)) is not None:
                    shard = waiting.popleft()
                    tasks[submit(worker.actor, shard)] = worker, shard
                for ref in self._wait(tasks):
                    worker, shard = tasks.pop(ref)
                    try:
                        results[shard] = ray.get(ref)
                    except ray.exceptions.RayTaskError as e:
                        # The function itself failed, and another worker would not help.
                        raise (e.cause if isinstance(e.cause, ExecutionError) else e) from None
                    except ray.exceptions.RayError as e:
                        self._replace(worker, "died; its clients run again")
                        waiting.appendleft(shard)
                        losses[shard] += 1
                        if losses[shard] == _MAX_LOSSES:
                            raise ExecutionError(
                                f"Ray workers died {_MAX_LOSSES} times over the same clients, "
                                f"perhaps because memory ran out: {_last_line(e)}"
                            ) from None
            yield results.pop(index)

    def _free_worker(self, tasks: Mapping[Any, tuple[_Worker, int]]) -> Optional[_Worker]:
        load = collections.Counter(worker.number for worker, _ in tasks.values())
        free = [worker for worker in self._started if load[worker.number] < self._lanes]
        return min(free, key=lambda worker: load[worker.number]) if free else None

    def _wait(self, tasks: Mapping[Any, Any]) -> list[Any]:
        """Waits until a task has finished or a worker has started; returns the finished tasks."""
        starting = {worker.versions: worker for worker in self._starting}
        ready, _ = ray.wait([*tasks, *starting], timeout=self._start_seconds)
        if not ready and not tasks:
            raise ExecutionError(
                f"no Ray worker has started within {self._start_seconds:g} seconds: other jobs may "
                "hold the CPUs and GPUs, or nodes may have left"
            )
        for ref in ready:
            if ref in starting:
                self._finish_start(starting[ref])
        return [ref for ref in ready if ref in tasks]

    def _finish_start(self, worker: _Worker) -> None:
        try:
            remote = ray.get(worker.versions)
        except ray.exceptions.RayError as e:
            self._failed_starts += 1
            if self._failed_starts == _MAX_FAILED_STARTS:
                raise ExecutionError(
                    f"Ray workers do not start: {_last_line(e)}{_SAME_EVERYWHERE}"
                ) from None
            self._replace(worker, "died before it had started")
            return
        if remote != versions():
            expected, remote_versions = (
                ", ".join(map(" ".join, v.items())) for v in (versions(), remote)
            )
            raise UserError(
                f"a Ray worker: expected {expected}, found {remote_versions}{_SAME_EVERYWHERE}"
            )
        self._failed_starts = 0
        self._starting.remove(worker)
        self._started.append(worker)

    def _replace(self, worker: _Worker, event: str) -> None:
        """Replaces a dead worker, unless it has been replaced already."""
        for workers in (self._starting, self._started):
            if worker in workers:
                workers.remove(worker)
                self._starting.append(self._new(worker.number))
                self.events.append(f"ray: worker {worker.number} {event}")

    def _new(self, number: int) -> _Worker:
        actor_class = ray.remote(RayWorker).options(
            num_cpus=self._options.cpus_per_worker,
            num_gpus=self._options.gpus_per_worker,
            max_concurrency=self._lanes,
            scheduling_strategy="SPREAD",
        )
        actor = actor_class.remote(self._device)
        return _Worker(number, actor, actor.versions.remote())

    def _check_room(self) -> int:
        """Returns the number of workers for which the nodes have resources."""
        options = self._options
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(_room_on(node, options) for node in nodes)
        if room < (options.num_workers or 1):
            cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
            needed = f"{options.cpus_per_worker:g} CPUs and {options.gpus_per_worker:g} GPUs each"
            raise OptionError(
                "num_workers",
                f"at most {room} with {needed}",
                Verbatim(
                    f"{options.num_workers or 'none'}: Ray has {cpus:g} CPUs and {gpus:g} GPUs on "
                    f"{counted(len(nodes), 'node')}"
                ),
                type(options),
            )
        return room


def _room_on(node: Mapping[str, float], options: RayOptions) -> int:
    room = node.get("CPU", 0.0) / options.cpus_per_worker
    if options.gpus_per_worker > 0:
        room = min(room, node.get("GPU", 0.0) / options.gpus_per_worker)
    # Tolerate rounding, so that three workers with a third of a CPU each fit on one CPU.
    return int(room + 1e-6)


def _last_line(error: BaseException) -> str:
    """Returns the last line of a traceback, which contains the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
