"""The reference runtime: TFF's own C++ executor, one process, CPU."""

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# The public factories of TFF's contexts start their own worker, which outlives Python; these two
# functions are what they hand to the context beside it.
from tensorflow_federated.python.core.environments.tensorflow_frontend import (
    tensorflow_computation,
)

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.client_group import place_of
from tff_agnostic.computations.evaluation import Measurement, measurement_of_model
from tff_agnostic.computations.exchange import Algorithm, Report, RunState
from tff_agnostic.computations.guarantees import check_measurement, check_process
from tff_agnostic.computations.placed_exchange import NumberedClient
from tff_agnostic.computations.secure_check import SecurityReport
from tff_agnostic.computations.template import (
    EvaluationParts,
    Process,
    build_evaluation_parts,
    build_process,
)
from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.quantities import Quantities
from tff_agnostic.runtimes.runtime import Evaluated, evaluated, to_numpy_examples
from tff_agnostic.runtimes.tff_exit import end_quietly
from tff_agnostic.runtimes.worker import TffWorker


def _compile(computation: Any) -> Any:
    # TFF's native compiler has no secure sums: in a simulation, which has no adversary, their
    # insecure bodies stand in for them.
    with_bodies = tff.backends.test.replace_secure_intrinsics_with_bodies(computation)
    return tff.backends.native.desugar_and_transform_to_native(with_bodies)


def create_context(worker: TffWorker) -> tff.framework.SyncExecutionContext:
    """Returns an execution context, for plain and secure sums, that runs in `worker`."""
    return tff.framework.SyncExecutionContext(
        executor_fn=worker.executor_factory(),
        compiler_fn=_compile,
        transform_args=tensorflow_computation.transform_args,
        transform_result=tensorflow_computation.transform_result,
    )


def create_async_context(worker: TffWorker) -> tff.framework.AsyncExecutionContext:
    """Returns the asynchronous form of `create_context`, for `tff.program`."""
    return tff.framework.AsyncExecutionContext(
        executor_fn=worker.executor_factory(),
        compiler_fn=_compile,
        transform_args=tensorflow_computation.transform_args,
        transform_result=tensorflow_computation.transform_result,
    )


class TffRuntime:
    """Runs rounds in TFF's worker process, which lives as long as this context manager."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._worker = TffWorker()
        self._context = create_context(self._worker)

    def __enter__(self) -> "TffRuntime":
        """Starts the worker and makes it TFF's current execution context."""
        end_quietly()
        self._stack.enter_context(self._worker)
        # A context keeps connections, so a worker that is started again needs a new one.
        self._context = create_context(self._worker)
        self._stack.enter_context(self.installed())
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the worker."""
        self._stack.close()

    def installed(self) -> AbstractContextManager:
        """Makes the worker TFF's current execution context while entered.

        What a runtime has prepared runs in its own worker only: in TFF's default context, to which
        a call after the runtime's end would fall back, a worker starts that nobody ends.
        """
        return tff.framework.get_context_stack().install(self._context)

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> "TffTraining":
        """Compiles the algorithm; see `runtime.Runtime.training`."""
        process = build_process(algorithm, aggregation)
        security = check_process(aggregation, process) if aggregation.guarantees else None
        quantities = AggregatedRound(algorithm, aggregation).quantities
        return TffTraining(self, process, aggregation, quantities, security)

    def evaluation(
        self, model: Model, num_domains: int, aggregation: Aggregation
    ) -> "TffEvaluation":
        """Compiles an evaluation; see `runtime.Runtime.evaluation`."""
        return self.measurement(measurement_of_model(model, num_domains), aggregation)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> "TffEvaluation":
        """Compiles a measurement; see `runtime.Runtime.measurement`."""
        check_measurement(aggregation, measurement)
        return TffEvaluation(self, build_evaluation_parts(measurement, aggregation), aggregation)

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Accepts any number; see `runtime.Runtime.check_clients_per_round`."""

    def execution(self) -> dict[str, Any]:
        """Returns nothing: TFF's worker has one way to run."""
        return {}

    def take_events(self) -> list[str]:
        """Returns nothing: what happens to this runtime's worker ends the run."""
        return []


class TffTraining:
    """Rounds of a `tff.learning.templates.LearningProcess`; see `runtime.Training`.

    Attributes:
        process: The algorithm in TFF.
        quantities: Describes what a round reports.
        security: What reaches the server, where the aggregation promises something of it.
    """

    def __init__(
        self,
        runtime: TffRuntime,
        process: Process,
        aggregation: Aggregation,
        quantities: Quantities,
        security: Optional[SecurityReport] = None,
    ) -> None:
        self._runtime = runtime
        self._aggregation = aggregation
        self.process = process
        self.quantities = quantities
        self.security = security

    def initialize(self) -> RunState:
        """Returns the state before the first round."""
        with self._runtime.installed():
            return self.process.learning_process.initialize()

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one round."""
        require_enough_clients(self._aggregation, len(cohort))
        with self._runtime.installed():
            output = self.process.learning_process.next(
                state, _on_clients(cohort, self._aggregation)
            )
        return output.state, output.metrics


class TffEvaluation:
    """A compiled federated evaluation; see `runtime.Evaluation`."""

    def __init__(
        self, runtime: TffRuntime, parts: EvaluationParts, aggregation: Aggregation
    ) -> None:
        self._runtime = runtime
        self._parts = parts
        self._aggregation = aggregation

    def __call__(
        self, measured: Any, parts: Iterable[Sequence[Examples]], state: Any = None
    ) -> Evaluated:
        """Returns the sums over all parts."""
        with self._runtime.installed():
            state = self._parts.initialize() if state is None else state
            message = self._parts.message(measured, state)
            total, num_clients = None, 0
            for clients in parts:
                num_clients += len(clients)
                summed = self._sum(message, clients)
                total = summed if total is None else tf.nest.map_structure(np.add, total, summed)
            require_enough_clients(self._aggregation, num_clients)
            if total is None:
                total = self._sum(message, [])
            return evaluated(*self._parts.decode(state, total))

    def _sum(self, message: Any, clients: Sequence[Examples]) -> Any:
        return self._parts.exchange(message, _on_clients(clients, self._aggregation))


def _on_clients(cohort: Sequence[Examples], aggregation: Aggregation) -> list[Any]:
    clients = [to_numpy_examples(client) for client in cohort]
    if not aggregation.numbers_clients:
        return clients
    places = [place_of(client, k) for k, client in enumerate(cohort)]
    return [NumberedClient(client, place) for client, place in zip(clients, places)]
