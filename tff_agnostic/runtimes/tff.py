"""The reference runtime: TFF's own C++ executor, one process, CPU."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Optional

import tensorflow_federated as tff

# The public factories of TFF's contexts start their own worker, which outlives Python; these two
# functions are what they hand to the context beside it.
from tensorflow_federated.python.core.environments.tensorflow_frontend import (
    tensorflow_computation,
)

from tff_agnostic.computations.aggregation import Aggregation
from tff_agnostic.computations.algorithm import FederatedAlgorithm, Metrics, ServerState
from tff_agnostic.computations.evaluation import EvaluationOutput, build_evaluation
from tff_agnostic.computations.secure_check import SecurityReport, require_only_secure_sums
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.models.functional import Examples, Model, ModelWeights
from tff_agnostic.runtimes.runtime import to_numpy_examples
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

    def training(self, algorithm: FederatedAlgorithm, aggregation: Aggregation) -> "TffTraining":
        """Compiles the algorithm; see `runtime.Runtime.training`."""
        process = build_learning_process(algorithm, aggregation)
        secure = aggregation.name == "secure"
        security = require_only_secure_sums(process.next) if secure else None
        return TffTraining(self, process, security)

    def evaluation(
        self, model: Model, num_domains: int, aggregation: Aggregation
    ) -> "TffEvaluation":
        """Compiles an evaluation; see `runtime.Runtime.evaluation`."""
        computation = build_evaluation(model, num_domains, aggregation)
        if aggregation.name == "secure":
            require_only_secure_sums(computation)
        return TffEvaluation(self, computation)

    def take_events(self) -> list[str]:
        """Returns nothing: what happens to this runtime's worker ends the run."""
        return []


class TffTraining:
    """Rounds of a `tff.learning.templates.LearningProcess`; see `runtime.Training`."""

    def __init__(
        self,
        runtime: TffRuntime,
        process: tff.learning.templates.LearningProcess,
        security: Optional[SecurityReport] = None,
    ) -> None:
        self._runtime = runtime
        self.process = process
        self.security = security

    def initialize(self) -> ServerState:
        """Returns the state before the first round."""
        with self._runtime.installed():
            return self.process.initialize()

    def next(self, state: ServerState, cohort: Sequence[Examples]) -> tuple[ServerState, Metrics]:
        """Runs one round."""
        with self._runtime.installed():
            output = self.process.next(state, [to_numpy_examples(c) for c in cohort])
        return output.state, output.metrics


class TffEvaluation:
    """A compiled federated evaluation."""

    def __init__(self, runtime: TffRuntime, computation: tff.Computation) -> None:
        self._runtime = runtime
        self._computation = computation

    def __call__(self, weights: ModelWeights, clients: Sequence[Examples]) -> EvaluationOutput:
        """Returns the sums over `clients`."""
        with self._runtime.installed():
            return self._computation(weights, [to_numpy_examples(c) for c in clients])
