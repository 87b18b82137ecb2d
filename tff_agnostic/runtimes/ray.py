"""The Ray runtime: the cohort runtime's shards in Ray's workers, on one machine or on many."""

import contextlib
import functools
from typing import Any, Optional

import ray

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.evaluation import Measurement, measurement_of_model
from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.models.functional import Model
from tff_agnostic.runtimes.cohort import CohortEvaluation, CohortTraining
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray_pool import WorkerPool
from tff_agnostic.runtimes.ray_schedule import Schedule
from tff_agnostic.runtimes.ray_session import ray_session
from tff_agnostic.runtimes.ray_sum import SumOnRay
from tff_agnostic.runtimes.tff_exit import end_quietly

_KEPT_WORKS = 8


class RayRuntime:
    """Runs rounds on Ray's workers; a context manager that owns them, and Ray if it started it.

    Shards are the cohort runtime's and are summed in their order, so no number of workers, and no
    death of one, changes the numbers.

    Args:
        options: How to execute.
    """

    def __init__(self, options: RuntimeOptions = RuntimeOptions()) -> None:
        self._options = options
        self._stack = contextlib.ExitStack()
        self._pool: Optional[WorkerPool] = None
        self._schedule: Optional[Schedule] = None
        # Trials that differ in their seeds only share what was traced and sent.
        self._sum_over_clients = functools.lru_cache(maxsize=_KEPT_WORKS)(
            lambda work: SumOnRay(work, options, self._running)
        )

    def __enter__(self) -> "RayRuntime":
        """Connects to Ray.

        Raises:
            UserError: If there is none, or it has no room for the workers.
            ExecutionError: If it does not start.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                ray_session(self._options.ray_address, self._options.worker_start_seconds)
            )
            self._pool = WorkerPool(self._options)
            stack.callback(self._pool.close)
            self._pool.check_room()
            self._schedule = Schedule(self._pool)
            self._stack = stack.pop_all()
        end_quietly()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the workers, and Ray if it was started here."""
        self._schedule = None
        self._stack.close()

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> CohortTraining:
        """Prepares rounds; see `runtime.Runtime.training`."""
        return CohortTraining(algorithm, aggregation, self._sum_over_clients)

    def evaluation(
        self, model: Model, num_domains: int, aggregation: Aggregation
    ) -> CohortEvaluation:
        """Prepares evaluations; see `runtime.Runtime.evaluation`."""
        return self.measurement(measurement_of_model(model, num_domains), aggregation)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> CohortEvaluation:
        """Prepares measurements; see `runtime.Runtime.measurement`."""
        return CohortEvaluation(measurement, aggregation, self._sum_over_clients)

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
