"""The cohort runtime: rounds in this process, on any device, without a call per client to TFF."""

import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

import tensorflow as tf

from tff_agnostic.computations.aggregation import Aggregation
from tff_agnostic.computations.algorithm import FederatedAlgorithm, Metrics, ServerState
from tff_agnostic.computations.evaluation import (
    EvaluationOutput,
    build_evaluation,
    evaluation_bounds,
)
from tff_agnostic.computations.secure_check import SecurityReport, require_only_secure_sums
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.errors import ExecutionError
from tff_agnostic.models.functional import Examples, Model, ModelWeights
from tff_agnostic.runtimes.client_modes import CLIENT_MODES
from tff_agnostic.runtimes.client_work import (
    ClientWork,
    CompiledWork,
    evaluation_work,
    training_work,
)
from tff_agnostic.runtimes.devices import DEVICES, one_thread_per_operation
from tff_agnostic.runtimes.lanes import Lanes, default_num_lanes, sum_in_order
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.tff_exit import end_quietly

_KEPT_TRACES = 8


class MapSum(Protocol):
    """Maps a `ClientWork` over a cohort, and sums."""

    def __call__(self, broadcast: Any, cohort: Sequence[Examples]) -> Any:
        """Returns the sum of what the clients of a cohort send, zeros for no clients."""


class CohortRuntime:
    """Runs rounds in this process; a context manager that owns its threads.

    Args:
        options: How to execute.
    """

    def __init__(self, options: RuntimeOptions = RuntimeOptions()) -> None:
        self._options = options
        self._lanes: Optional[Lanes] = None
        # Trials that differ in their seeds only share what was traced.
        self._compile = functools.lru_cache(maxsize=_KEPT_TRACES)(
            lambda work: CompiledWork(work, options.xla)
        )

    def __enter__(self) -> "CohortRuntime":
        """Finds the devices.

        Raises:
            UserError: If there is none of the kind that was asked for.
        """
        end_quietly()
        one_thread_per_operation()
        devices = DEVICES[self._options.device]()
        self._lanes = Lanes(devices, self._options.lanes or default_num_lanes(devices))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the threads."""
        if self._lanes is not None:
            self._lanes.close()
        self._lanes = None

    def training(self, algorithm: FederatedAlgorithm, aggregation: Aggregation) -> "CohortTraining":
        """Prepares rounds; see `runtime.Runtime.training`."""
        return CohortTraining(algorithm, aggregation, self._map_sum)

    def evaluation(
        self, model: Model, num_domains: int, aggregation: Aggregation
    ) -> "CohortEvaluation":
        """Prepares evaluations; see `runtime.Runtime.evaluation`."""
        return CohortEvaluation(model, num_domains, aggregation, self._map_sum)

    def take_events(self) -> list[str]:
        """Returns nothing; see `runtime.Runtime.take_events`."""
        return []

    def _map_sum(self, work: ClientWork) -> "MapSumOnLanes":
        return MapSumOnLanes(self._compile(work), self._options, self.running_lanes)

    def running_lanes(self) -> Lanes:
        """Returns the threads.

        Raises:
            ExecutionError: If the runtime has not been entered, or has been left.
        """
        if self._lanes is None:
            raise ExecutionError("the cohort runtime is not running")
        return self._lanes


class MapSumOnLanes:
    """A `MapSum` on the lanes of this process."""

    def __init__(
        self, compiled: CompiledWork, options: RuntimeOptions, lanes: Callable[[], Lanes]
    ) -> None:
        self.compiled = compiled
        self._options = options
        self._lanes = lanes

    def __call__(self, broadcast: Any, cohort: Sequence[Examples]) -> Any:
        """Returns the sum over the cohort; see `MapSum`."""
        lanes = self._lanes()
        plan = CLIENT_MODES[self._options.client_mode]
        run, shards = plan(self.compiled, cohort, self._options.max_clients_in_step)
        partial_sums = lanes.map_in_order(
            lambda shard: run(broadcast, [cohort[k] for k in shard]), shards
        )
        try:
            total = sum_in_order(partial_sums, self.compiled.add)
        except (tf.errors.ResourceExhaustedError, MemoryError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise ExecutionError(
                "out of memory: lower --lanes, --max_clients_in_step, --batch_size or "
                f"--max_examples: {reason}"
            ) from e
        return self.compiled.zeros() if total is None else total


class CohortTraining:
    """Rounds of an algorithm's pure functions; see `runtime.Training`.

    Args:
        algorithm: What to run.
        aggregation: What happens before and after the sum.
        make_map_sum: Says where clients run.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        aggregation: Aggregation,
        make_map_sum: Callable[[ClientWork], MapSum],
    ) -> None:
        self.security = _checked_security(algorithm, aggregation)
        bounds = algorithm.output_bounds(aggregation.bounds)

        def finish(state: Any, summed: Any) -> tuple[Any, Any]:
            output, aggregator_metrics = aggregation.decode(summed, bounds)
            next_state, metrics = algorithm.server_update(state, output)
            return next_state, {**metrics, "aggregator": aggregator_metrics}

        self._initialize = tf.function(algorithm.initialize, autograph=False)
        state_spec = _specs(self._initialize.get_concrete_function().structured_outputs)
        self._prepare = tf.function(
            algorithm.prepare, input_signature=[state_spec], autograph=False
        )
        broadcast_spec = _specs(self._prepare.get_concrete_function().structured_outputs)
        self._finish = tf.function(finish, autograph=False, reduce_retracing=True)
        self._map_sum = make_map_sum(training_work(algorithm, aggregation, broadcast_spec))

    def initialize(self) -> ServerState:
        """Returns the state before the first round."""
        return _to_numpy(self._initialize())

    def next(self, state: ServerState, cohort: Sequence[Examples]) -> tuple[ServerState, Metrics]:
        """Runs one round."""
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        summed = self._map_sum(self._prepare(state), cohort)
        next_state, metrics = _called(self._finish, state, summed)
        return _to_numpy(next_state), _to_numpy(metrics)


class CohortEvaluation:
    """Federated evaluations; see `runtime.Evaluation`."""

    def __init__(
        self,
        model: Model,
        num_domains: int,
        aggregation: Aggregation,
        make_map_sum: Callable[[ClientWork], MapSum],
    ) -> None:
        if aggregation.name == "secure":
            require_only_secure_sums(build_evaluation(model, num_domains, aggregation))
        bounds = evaluation_bounds(model, aggregation.bounds)
        self._decode = tf.function(
            lambda summed: aggregation.decode(summed, bounds)[0], autograph=False
        )
        self._map_sum = make_map_sum(evaluation_work(model, num_domains, aggregation))

    def __call__(self, weights: ModelWeights, clients: Sequence[Examples]) -> EvaluationOutput:
        """Returns the sums over `clients`."""
        weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
        return _to_numpy(_called(self._decode, self._map_sum(weights, clients)))


def _called(function: Any, *arguments: Any) -> Any:
    """Calls a tf.function; unlike a plain call, without a warning when many short runs trace it."""
    return function.get_concrete_function(*arguments)(*arguments)


def _checked_security(
    algorithm: FederatedAlgorithm, aggregation: Aggregation
) -> Optional[SecurityReport]:
    # The same functions, compiled by TFF: its form of the round shows what is summed, and how.
    if aggregation.name != "secure":
        return None
    return require_only_secure_sums(build_learning_process(algorithm, aggregation).next)


def _specs(structure: Any) -> Any:
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure)


def _to_numpy(structure: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), structure)
