"""The Ray runtime: runs rounds on a Ray cluster, which the user or this process starts."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import grpc
import numpy as np
import ray
from ray._private import worker as ray_driver

from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.computations.algorithm import ClientResult
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
from tff_agnostic.runtimes.devices import in_cohort_order, select_shard_states, summed_in_order
from tff_agnostic.runtimes.options import AUTO, LOCAL, RayOptions
from tff_agnostic.runtimes.ray_pool import WorkerPool, pack
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

_START_SECONDS = 120.0
_CONNECT_SECONDS = 10.0
_KEPT_WORKS = 8
# Number of attempts to start Ray. It allows its node 30 seconds to start, which a busy
# machine may occasionally exceed.
_START_ATTEMPTS = 3
_TOO_SLOW = "timed out during startup"
# Default values of environment variables, which disable Ray's usage reports and a warning
# about a future version.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayRuntime(SummingRuntime):
    """Runs rounds on Ray workers; as a context manager it owns them, and the Ray that it starts.

    Shards are the same as in the cohort runtime, and are summed in the same order. Neither the
    number of workers nor the death of a worker therefore changes the results.

    Args:
        start_seconds: A round fails if no worker has started within this many seconds.
    """

    def __init__(
        self, options: RayOptions = RayOptions(), start_seconds: float = _START_SECONDS
    ) -> None:
        self._options = options
        self._start_seconds = start_seconds
        self._stack = contextlib.ExitStack()
        self._pool: Optional[WorkerPool] = None
        # Trials that differ only in their seeds share traces.
        self._sums = functools.lru_cache(maxsize=_KEPT_WORKS)(
            lambda work: SumOnRay(work, options, self._running)
        )

    def __enter__(self) -> RayRuntime:
        """Connects to Ray.

        Raises:
            ExecutionError: If Ray does not start.
            OptionError: If no Ray answers at the address, or its nodes lack the resources.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(_connected(self._options.ray_address, self._start_seconds))
            self._pool = WorkerPool(self._options, self._start_seconds)
            stack.callback(self._pool.close)
            self._stack = stack.pop_all()
        drop_tff_context_at_exit()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stops the workers, and Ray if it was started here."""
        self._stack.close()
        self._pool = None

    def sum_over_clients(self, work: ClientWork) -> SumOnRay:
        """Returns the function that runs `work` on Ray workers."""
        return self._sums(work)

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Raises OptionError if there are more workers than clients; see `runtime.Runtime`."""
        num_workers = self._options.num_workers or 1
        if clients_per_round < num_workers:
            raise OptionError(
                "num_workers",
                f"at most one per client of a round, clients_per_round = {clients_per_round}",
                num_workers,
                type(self._options),
            )

    def execution(self) -> dict[str, Any]:
        """See `runtime.Runtime.execution`."""
        device = "gpu" if self._options.gpus_per_worker else "cpu"
        return {**self._options.execution(), "device": device}

    def take_events(self) -> list[str]:
        """Returns the worker deaths since the last call; see `runtime.Runtime`."""
        if self._pool is None:
            return []
        events, self._pool.events = self._pool.events, []
        return events

    def _running(self) -> WorkerPool:
        if self._pool is None or not ray.is_initialized():
            raise ExecutionError("the Ray runtime is not running")
        return self._pool


class SumOnRay:
    """A `cohort.SumOverClients` on Ray workers.

    Args:
        pool: Returns the running worker pool.
    """

    def __init__(
        self, work: ClientWork, options: RayOptions, pool: Callable[[], WorkerPool]
    ) -> None:
        grouping = ON_ACCELERATOR if options.gpus_per_worker else ON_CPU
        self.compiled = CompiledClientWork(work, options.xla, grouping)
        self._options = options
        self._pool = pool
        self._packed: dict[ShardFunction, Any] = {}

    def __call__(
        self, broadcast: Any, cohort: Sequence[Examples], client_state: Any = ()
    ) -> ClientResult:
        """Returns the sum over the cohort; see `cohort.SumOverClients`.

        Raises:
            ExecutionError: If the workers fail.
        """
        pool = self._pool()
        # Start the workers now, so that they start while this process traces functions.
        pool.start(max(1, len(cohort)))
        plan = CLIENT_MODES[self._options.client_mode]
        function, shards = plan(self.compiled, cohort, self._options.max_clients_in_step)
        if not shards:
            return self.compiled.zeros()
        if function not in self._packed:
            self._packed[function] = ray.put(pack(function.traced()))
        packed = self._packed[function]
        # Ray frees the message when this, its last reference, goes out of scope.
        broadcast_ref = ray.put(_arrays(broadcast))
        structure: ClientResult = function.traced().structured_outputs
        num_summed = len(tf.nest.flatten(structure.output))

        def submit(actor: Any, index: int) -> Any:
            shard = shards[index]
            states = select_shard_states(client_state, shard)
            calls = function.inputs([cohort[k] for k in shard], states, shard)
            inputs = [_arrays(call) for call in calls]
            return actor.run.remote([packed], broadcast_ref, inputs, num_summed)

        def to_result(values: Sequence[np.ndarray]) -> ClientResult:
            summed = list(map(tf.convert_to_tensor, values[:num_summed]))
            result: ClientResult = tf.nest.pack_sequence_as(
                structure, [*summed, *values[num_summed:]]
            )
            return result

        total, states = summed_in_order(map(to_result, pool.results(len(shards), submit)))
        return ClientResult(total, in_cohort_order(states, shards))

    def for_each(self, broadcasts: Sequence[Any], cohort: Sequence[Examples]) -> list[Any]:
        """Returns the sum for each broadcast, one after another; see `cohort.SumOverClients`."""
        return [self(broadcast, cohort).output for broadcast in broadcasts]


def _arrays(structure: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in tf.nest.flatten(structure)]


@contextlib.contextmanager
def _connected(address: str, start_seconds: float) -> Iterator[None]:
    """Connects this process to Ray for a `with` block; reuses and keeps an existing connection.

    A Ray started here stops when this process exits, however it exits.
    """
    if ray.is_initialized():
        yield
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Suppress Ray's paragraph about each dead worker, as the pool reports it in one line.
    ray_driver.print_to_stdstream = lambda *_, **__: None
    with _sigterm_kept():
        if address == LOCAL:
            _start(start_seconds)
        else:
            _join(address)
    try:
        yield
    finally:
        with _sigterm_kept():
            ray.shutdown()


def _start(start_seconds: float) -> None:
    """Starts Ray on this machine's loopback interface."""
    config = {
        # Ray's default is the lowest priority, with which workers barely run on a busy machine.
        "worker_niceness": 0,
        "worker_register_timeout_seconds": math.ceil(start_seconds),
    }
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            ray.init(
                LOCAL,
                num_cpus=len(os.sched_getaffinity(0)),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _system_config=config,
            )
            return
        # Catch every Exception, as Ray raises a plain one if its node starts too slowly.
        except Exception as e:
            ray.shutdown()
            if _TOO_SLOW not in str(e) or attempt == _START_ATTEMPTS:
                raise ExecutionError(f"Ray did not start: {_one_line(e)}") from e


def _join(address: str) -> None:
    """Connects to the Ray at an address."""
    # Check the address here, as Ray itself would wait for minutes.
    host_port = os.environ.get("RAY_ADDRESS", AUTO) if address == AUTO else address
    if host_port != AUTO and os.environ.get("RAY_USE_TLS", "0") == "0":
        _check_answers(host_port)
    try:
        ray.init(host_port, log_to_driver=False, logging_level=logging.ERROR)
    # Catch SystemExit, which Ray raises if the cluster rejects this process.
    except (Exception, SystemExit) as e:
        ray.shutdown()
        raise _no_ray(host_port, _one_line(e)) from e


def _check_answers(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
        except grpc.FutureTimeoutError as e:
            raise _no_ray(address, f"no answer within {_CONNECT_SECONDS:g} seconds") from e


def _no_ray(address: str, reason: str) -> OptionError:
    problem = Verbatim(f"{address}: {reason}")
    return OptionError("ray_address", "the address of a running Ray", problem, RayOptions)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restores the SIGTERM handler, which Ray replaces and the training loop needs."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
