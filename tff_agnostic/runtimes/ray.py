"""Rounds on Ray: what is sent, what comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import ray

from tff_agnostic.computations.algorithm import ClientResult
from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.later import tf
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.client_work import (
    CLIENT_MODES,
    ON_ACCELERATOR,
    ON_CPU,
    ClientWork,
    CompiledClientWork,
    ShardFunction,
)
from tff_agnostic.runtimes.cohort import SummingRuntime
from tff_agnostic.runtimes.devices import in_cohort_order, of_shard, summed_in_order
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray_session import ray_session
from tff_agnostic.runtimes.ray_worker import pack
from tff_agnostic.runtimes.ray_workers import Schedule, WorkerPool
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

_START_SECONDS = 120.0
_KEPT_WORKS = 8


class RayRuntime(SummingRuntime):
    """Runs rounds on Ray's workers; a context manager that owns them, and Ray if it started it.

    Shards are the cohort runtime's and are summed in their order, so no number of workers, and no
    death of one, changes the numbers.

    Args:
        options: How to execute.
        start_seconds: Seconds without any worker that has started, after which a round fails.
    """

    def __init__(
        self, options: RuntimeOptions = RuntimeOptions(), start_seconds: float = _START_SECONDS
    ) -> None:
        self._options = options
        self._start_seconds = start_seconds
        self._stack = contextlib.ExitStack()
        self._pool: Optional[WorkerPool] = None
        self._schedule: Optional[Schedule] = None
        # Trials that differ in their seeds only share what was traced and sent.
        self._sums = functools.lru_cache(maxsize=_KEPT_WORKS)(
            lambda work: SumOnRay(work, options, self._running)
        )

    def __enter__(self) -> RayRuntime:
        """Connects to Ray.

        Raises:
            ExecutionError: If it does not start.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(ray_session(self._options.ray_address, self._start_seconds))
            self._pool = WorkerPool(self._options, self._start_seconds)
            stack.callback(self._pool.close)
            self._pool.check_room()
            self._schedule = Schedule(self._pool)
            self._stack = stack.pop_all()
        drop_tff_context_at_exit()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the workers, and Ray if it was started here."""
        self._schedule = None
        self._stack.close()

    def sum_over_clients(self, work: ClientWork) -> SumOnRay:
        """Returns what runs the work on Ray's workers."""
        return self._sums(work)

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Refuses workers for whom there is nothing to do; see `runtime.Runtime`."""
        num_workers = self._options.num_workers or 1
        if clients_per_round < num_workers:
            raise UserError(
                f"--num_workers={num_workers}: expected at most one per client of a round, found "
                f"--clients_per_round={clients_per_round}"
            )

    def execution(self) -> dict[str, Any]:
        """Returns what may change last bits; see `runtime.Runtime.execution`."""
        device = "gpu" if self._options.gpus_per_worker else "cpu"
        return {**self._options.execution(), "device": device}

    def take_events(self) -> list[str]:
        """Returns what happened to workers since the last call; see `runtime.Runtime`."""
        if self._pool is None:
            return []
        events, self._pool.events = self._pool.events, []
        return events

    def _running(self) -> tuple[WorkerPool, Schedule]:
        if self._pool is None or self._schedule is None or not ray.is_initialized():
            raise ExecutionError("the Ray runtime is not running")
        return self._pool, self._schedule


class SumOnRay:
    """A `cohort.SumOverClients` on Ray's workers.

    Args:
        work: What clients do.
        options: How.
        running: Returns the workers and what gives them shards.
    """

    def __init__(
        self,
        work: ClientWork,
        options: RuntimeOptions,
        running: Callable[[], tuple[WorkerPool, Schedule]],
    ) -> None:
        grouping = ON_ACCELERATOR if options.gpus_per_worker else ON_CPU
        self.compiled = CompiledClientWork(work, options.xla, grouping)
        self._options = options
        self._running = running
        self._pool: Optional[WorkerPool] = None
        self._sent: dict[ShardFunction, _Sent] = {}

    def __call__(
        self, broadcast: Any, cohort: Sequence[Examples], client_state: Any = ()
    ) -> ClientResult:
        """Returns the sum over the cohort; see `cohort.SumOverClients`.

        Raises:
            ExecutionError: If it cannot be had from the workers.
        """
        pool, schedule = self._running()
        # First: workers start while this process traces.
        pool.start(max(1, len(cohort)))
        plan = CLIENT_MODES[self._options.client_mode]
        function, shards = plan(self.compiled, cohort, self._options.max_clients_in_step)
        if not shards:
            return self.compiled.zeros()
        sent = self._send(function, pool)
        # Freed with the last reference to it, at the end of the round.
        broadcast_ref = ray.put(_arrays(broadcast))
        structure: ClientResult = function.traced().structured_outputs
        num_summed = len(tf.nest.flatten(structure.output))

        def submit(actor: Any, index: int) -> Any:
            shard = shards[index]
            states = of_shard(client_state, shard)
            calls = function.inputs([cohort[k] for k in shard], states, shard)
            return actor.run.remote(
                sent.work_id,
                [sent.packed],
                broadcast_ref,
                [_arrays(inputs) for inputs in calls],
                num_summed,
            )

        def result(values: Sequence[np.ndarray]) -> ClientResult:
            summed = list(map(tf.convert_to_tensor, values[:num_summed]))
            packed: ClientResult = tf.nest.pack_sequence_as(
                structure, [*summed, *values[num_summed:]]
            )
            return packed

        flat_sums = _in_order(schedule.results(len(shards), submit))
        total, states = summed_in_order(map(result, flat_sums))
        return ClientResult(total, in_cohort_order(states, shards))

    def of_each(self, broadcasts: Sequence[Any], cohort: Sequence[Examples]) -> list[Any]:
        """Returns the sum for each broadcast, one after another; see `cohort.SumOverClients`."""
        return [self(broadcast, cohort).output for broadcast in broadcasts]

    def _send(self, function: ShardFunction, pool: WorkerPool) -> _Sent:
        if pool is not self._pool:
            # What was put into a Ray that has ended is gone.
            self._pool, self._sent = pool, {}
        if function not in self._sent:
            packed = ray.put(pack(function.traced()))
            self._sent[function] = _Sent(uuid.uuid4().hex, packed)
        return self._sent[function]


@dataclasses.dataclass(frozen=True)
class _Sent:
    work_id: str
    packed: Any


def _in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    early = {}
    wanted = 0
    for index, result in results:
        early[index] = result
        while wanted in early:
            yield early.pop(wanted)
            wanted += 1


def _arrays(structure: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in tf.nest.flatten(structure)]
