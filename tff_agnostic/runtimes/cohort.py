"""The cohort runtime: runs rounds in this process, on any device, without TFF's executor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import Algorithm, ClientResult, Report, RunState
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.round import Message, Round, RoundFunctions, play, tensor_specs
from tff_agnostic.computations.server import as_tensors
from tff_agnostic.computations.tff_process import EvaluationFunctions
from tff_agnostic.computations.verification import check_measurement, check_rounds
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.client_work import (
    CLIENT_MODES,
    ON_ACCELERATOR,
    ON_CPU,
    ClientWork,
    CompiledClientWork,
    Grouping,
    ShardFunction,
)
from tff_agnostic.runtimes.devices import (
    DEVICES,
    DeviceThreads,
    Shard,
    default_num_lanes,
    in_cohort_order,
    one_thread_per_operation,
    select_shard_states,
    summed_in_order,
)
from tff_agnostic.runtimes.options import CohortOptions
from tff_agnostic.runtimes.runtime import Evaluation, Runtime
from tff_agnostic.runtimes.tff_exit import drop_tff_context_at_exit

# Number of traces to keep. Later trials of a comparison reuse them; those of small models serve
# later runs in this process as well.
_KEPT_TRACES = 32
_SMALL_MODEL_BYTES = 2**22


class SumOverClients(Protocol):
    """Runs a `ClientWork` for every client of a cohort, and sums the clients' outputs."""

    def __call__(
        self, broadcast: Any, cohort: Sequence[Examples], client_state: Any = ()
    ) -> ClientResult:
        """Returns the sum of the clients' outputs (zeros for no clients), and their states.

        Args:
            broadcast: Message to every client.
            client_state: States of the clients, NumPy arrays whose first axis is clients, as in the
                returned states.
        """

    def for_each(self, broadcasts: Sequence[Any], cohort: Sequence[Examples]) -> list[Any]:
        """Returns the sum for each of several broadcasts, for clients without state."""


class SummingRuntime(Runtime):
    """Base class of runtimes that differ only in where clients run."""

    def sum_over_clients(self, work: ClientWork) -> SumOverClients:
        """Returns the function that runs `work` for every client of a cohort."""
        raise NotImplementedError

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> CohortTraining:
        """Prepares rounds; see `runtime.Runtime.training`."""
        return CohortTraining(algorithm, aggregation, self.sum_over_clients)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> CohortEvaluation:
        """Prepares measurements; see `runtime.Runtime.measurement`."""
        return CohortEvaluation(measurement, aggregation, self.sum_over_clients)


class CohortRuntime(SummingRuntime):
    """Runs rounds in this process; as a context manager it owns its threads."""

    def __init__(self, options: CohortOptions = CohortOptions()) -> None:
        self._options = options
        self._lanes: Optional[DeviceThreads] = None
        self._devices: list[str] = []
        # Trials that differ only in their seeds share traces.
        self._compile = functools.lru_cache(maxsize=_KEPT_TRACES)(CompiledClientWork)

    def __enter__(self) -> CohortRuntime:
        drop_tff_context_at_exit()
        one_thread_per_operation()
        self._devices = DEVICES[self._options.device]()
        num_lanes = self._options.lanes or default_num_lanes(self._devices)
        self._lanes = DeviceThreads(self._devices, num_lanes)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._lanes is not None:
            self._lanes.close()
        self._lanes = None

    def sum_over_clients(self, work: ClientWork) -> SumOnLanes:
        """Returns the function that runs `work` on this process's lanes."""
        is_small = work.message_bytes <= _SMALL_MODEL_BYTES
        compile_ = _compiled_for_all_runs if is_small else self._compile
        grouping = ON_CPU if self.device_kinds() <= {"cpu"} else ON_ACCELERATOR
        compiled = compile_(work, self._options.xla, grouping)
        return SumOnLanes(compiled, self._options, self.running_lanes)

    def execution(self) -> dict[str, Any]:
        """Returns settings that may change last bits of results; see `Runtime.execution`."""
        return {**self._options.execution(), "device": ", ".join(sorted(self.device_kinds()))}

    def device_kinds(self) -> set[str]:
        """Returns the kinds of devices in use, such as cpu; empty before the runtime is entered."""
        return {name.rpartition("device:")[2].split(":")[0].lower() for name in self._devices}

    def running_lanes(self) -> DeviceThreads:
        """Returns the running threads.

        Raises:
            ExecutionError: If the runtime was not entered, or was exited.
        """
        if self._lanes is None:
            raise ExecutionError("the cohort runtime is not running")
        return self._lanes


@functools.lru_cache(maxsize=_KEPT_TRACES)
def _compiled_for_all_runs(work: ClientWork, xla: bool, grouping: Grouping) -> CompiledClientWork:
    return CompiledClientWork(work, xla, grouping)


class SumOnLanes:
    """A `SumOverClients` on this process's lanes."""

    def __init__(
        self,
        compiled: CompiledClientWork,
        options: CohortOptions,
        lanes: Callable[[], DeviceThreads],
    ) -> None:
        self.compiled = compiled
        self._options = options
        self._lanes = lanes

    def __call__(
        self, broadcast: Any, cohort: Sequence[Examples], client_state: Any = ()
    ) -> ClientResult:
        """See `SumOverClients`."""

        def run_shard(run: ShardFunction, shard: Shard) -> ClientResult:
            clients = [cohort[k] for k in shard]
            return run(broadcast, clients, select_shard_states(client_state, shard), shard)

        result = self._summed(run_shard, cohort)
        return self.compiled.zeros() if result is None else result

    def for_each(self, broadcasts: Sequence[Any], cohort: Sequence[Examples]) -> list[Any]:
        """Returns the sum for each broadcast; see `SumOverClients`."""

        def run_shard(run: ShardFunction, shard: Shard) -> ClientResult:
            return run.for_each(broadcasts, [cohort[k] for k in shard], shard)

        result = self._summed(run_shard, cohort)
        if result is None:
            return [self.compiled.zeros().output for _ in broadcasts]
        sums: list[Any] = result.output
        return sums

    def _summed(
        self, run_shard: Callable[[ShardFunction, Shard], ClientResult], cohort: Sequence[Examples]
    ) -> Optional[ClientResult]:
        """Returns the sum over a cohort's shards; None if it has no clients."""
        lanes = self._lanes()
        plan = CLIENT_MODES[self._options.client_mode]
        run, shards = plan(self.compiled, cohort, self._options.max_clients_in_step)
        if not shards:
            return None
        partial_sums = lanes.map_in_order(lambda shard: run_shard(run, shard), shards)
        try:
            total, states = summed_in_order(partial_sums)
        except (tf.errors.ResourceExhaustedError, MemoryError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise ExecutionError(
                "out of memory: lower lanes, max_clients_in_step, client_batch_size or "
                f"max_examples: {reason}"
            ) from e
        return ClientResult(total, in_cohort_order(states, shards))


class CohortTraining:
    """Runs an algorithm's rounds as TensorFlow functions; see `runtime.Training`.

    Args:
        aggregation: How client outputs are summed.
        sum_over_clients: Maps a `ClientWork` to the function that runs it for a cohort.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        aggregation: Aggregation,
        sum_over_clients: Callable[[ClientWork], SumOverClients],
    ) -> None:
        self.security = check_rounds(algorithm, aggregation)
        self._aggregation = aggregation
        round_ = Round(algorithm, aggregation)
        self.quantities = round_.quantities
        self._initialize = tf.function(round_.initialize, autograph=False)
        state_spec = tensor_specs(self._initialize.get_concrete_function().structured_outputs)
        # Concrete functions avoid looking up a trace, which takes a few percent of
        # a small model's round.
        start = tf.function(round_.start, autograph=False).get_concrete_function(state_spec)
        next_step = tf.function(round_.next_step, autograph=False, reduce_retracing=True)
        self._finish = tf.function(round_.finish, autograph=False, reduce_retracing=True)
        self._finish_trace: Any = None
        self._functions = RoundFunctions(
            start, functools.partial(_called, next_step), self._finished
        )
        self._steps = round_.steps
        self._on_clients = [step.on_clients() for step in round_.steps]
        self._client_spec = algorithm.client_data_spec
        self._sum_over_clients = sum_over_clients
        self._sums: dict[tuple[int, bool], SumOverClients] = {}

    def initialize(self) -> RunState:
        """Returns the state before the first round."""
        return _to_numpy(_called(self._initialize))

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one round."""
        require_enough_clients(self._aggregation, len(cohort))

        def sum_step(k: int, message: Message, client_state: Any, is_due: bool) -> ClientResult:
            clients = cohort if is_due else []
            return self._sum(k, message, client_state)(message, clients, client_state)

        next_state, report = play(self._functions, self._steps, as_tensors(state), sum_step)
        return _to_numpy(next_state), _to_numpy(report)

    def _finished(self, *arguments: Any) -> Any:
        if self._finish_trace is None:
            self._finish_trace = self._finish.get_concrete_function(*arguments)
        return self._finish_trace(*arguments)

    def _sum(self, k: int, message: Message, client_state: Any) -> SumOverClients:
        # Trace here, because a message's spec is known only after the previous sums. Client states
        # are absent if the step that creates them is not due in this round.
        key = k, bool(tf.nest.flatten(client_state))
        if key not in self._sums:
            state_spec = tf.nest.map_structure(
                lambda column: tf.TensorSpec(column.shape[1:], column.dtype), client_state
            )
            work = ClientWork(
                self._on_clients[k], tensor_specs(message), self._client_spec, state_spec
            )
            self._sums[key] = self._sum_over_clients(work)
        return self._sums[key]


class CohortEvaluation(Evaluation):
    """Runs federated evaluations as TensorFlow functions.

    Args:
        measurement: The evaluation to run.
        aggregation: How client outputs are summed.
        sum_over_clients: Maps a `ClientWork` to the function that runs it for a cohort.
    """

    def __init__(
        self,
        measurement: Measurement,
        aggregation: Aggregation,
        sum_over_clients: Callable[[ClientWork], SumOverClients],
    ) -> None:
        super().__init__(aggregation)
        check_measurement(aggregation, measurement)
        functions = EvaluationFunctions(measurement, aggregation)
        self._first_state = as_tensors(functions.initialize())
        # Use concrete functions, which make a small model's evaluation a few percent faster.
        self._start = tf.function(functions.message, autograph=False).get_concrete_function(
            measurement.measured_spec, tensor_specs(self._first_state)
        )
        message_spec = tensor_specs(self._start.structured_outputs)
        self._decode = tf.function(functions.decode, autograph=False)
        step = functions.step.on_clients()
        work = ClientWork(step, message_spec, measurement.client_data_spec)
        self._sum = sum_over_clients(work)

    def _state_or_initial(self, state: Any) -> Any:
        return self._first_state if state is None else as_tensors(state)

    def _message(self, measured: Any, state: Any) -> Any:
        return self._start(as_tensors(measured), state)

    def _sums(self, messages: Sequence[Any], clients: Sequence[Examples]) -> list[Any]:
        return self._sum.for_each(messages, clients)

    def _added(self, totals: list[Any], sums: list[Any]) -> list[Any]:
        added: list[Any] = tf.nest.map_structure(tf.add, totals, sums)
        return added

    def _decoded(self, state: Any, total: Any) -> tuple[Any, Report]:
        decoded: tuple[Any, Report] = _called(self._decode, state, total)
        return decoded


def _called(function: Any, *arguments: Any) -> Any:
    """Calls a tf.function; unlike a plain call, this logs no retracing warnings in short runs."""
    return function.get_concrete_function(*arguments)(*arguments)


def _to_numpy(structure: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), structure)
