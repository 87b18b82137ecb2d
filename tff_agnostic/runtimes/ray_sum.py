"""A cohort on Ray's workers: what is sent to them, and the sum of what they return."""

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import ray
import tensorflow as tf

from tff_agnostic.computations.aggregated import Submission
from tff_agnostic.models.functional import Examples
from tff_agnostic.runtimes.client_modes import CLIENT_MODES
from tff_agnostic.runtimes.client_work import ClientWork, CompiledWork
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray_pool import WorkerPool
from tff_agnostic.runtimes.ray_schedule import Schedule
from tff_agnostic.runtimes.ray_work import pack
from tff_agnostic.runtimes.submissions import (
    ShardFunction,
    in_cohort_order,
    of_shard,
    summed_in_order,
)


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
        self.compiled = CompiledWork(work, options.xla)
        self._options = options
        self._running = running
        self._pool: Optional[WorkerPool] = None
        self._sent: dict[ShardFunction, _Sent] = {}

    def __call__(self, broadcast: Any, cohort: Sequence[Examples], kept: Any = ()) -> Submission:
        """Returns the sum over the cohort; see `cohort.SumOverClients`.

        Raises:
            ExecutionError: If it cannot be had from the workers.
            UserError: If a worker cannot run what this process sends.
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
        structure: Submission = function.traced().structured_outputs
        num_summed = len(tf.nest.flatten(structure.submitted))

        def submit(actor: Any, index: int) -> Any:
            shard = shards[index]
            calls = function.inputs([cohort[k] for k in shard], of_shard(kept, shard), shard)
            return actor.run.remote(
                sent.work_id,
                [sent.packed],
                broadcast_ref,
                [_arrays(inputs) for inputs in calls],
                num_summed,
            )

        def submission(values: Sequence[np.ndarray]) -> Submission:
            summed = _tensors(values[:num_summed])
            packed: Submission = tf.nest.pack_sequence_as(
                structure, [*summed, *values[num_summed:]]
            )
            return packed

        flat_sums = _in_order(schedule.results(len(shards), submit))
        total, kept_now = summed_in_order(map(submission, flat_sums), self.compiled.add)
        return Submission(total, in_cohort_order(kept_now, shards))

    def _send(self, function: ShardFunction, pool: WorkerPool) -> "_Sent":
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


def _tensors(values: Sequence[np.ndarray]) -> list[Any]:
    return [tf.convert_to_tensor(value) for value in values]
