"""The reference runtime: TFF's own C++ executor, one process, CPU."""

import contextlib
from collections.abc import Sequence
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

    def __enter__(self) -> "TffRuntime":
        """Starts the worker and makes it TFF's current execution context."""
        worker = self._stack.enter_context(TffWorker())
        context_stack = tff.framework.get_context_stack()
        self._stack.enter_context(context_stack.install(create_context(worker)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the worker."""
        self._stack.close()

    def training(self, algorithm: FederatedAlgorithm, aggregation: Aggregation) -> "TffTraining":
        """Compiles the algorithm; see `runtime.Runtime.training`."""
        process = build_learning_process(algorithm, aggregation)
        secure = aggregation.name == "secure"
        return TffTraining(process, require_only_secure_sums(process.next) if secure else None)

    def evaluation(
        self, model: Model, num_domains: int, aggregation: Aggregation
    ) -> "TffEvaluation":
        """Compiles an evaluation; see `runtime.Runtime.evaluation`."""
        computation = build_evaluation(model, num_domains, aggregation)
        if aggregation.name == "secure":
            require_only_secure_sums(computation)
        return TffEvaluation(computation)


class TffTraining:
    """Rounds of a `tff.learning.templates.LearningProcess`; see `runtime.Training`."""

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        security: Optional[SecurityReport] = None,
    ) -> None:
        self.process = process
        self.security = security

    def initialize(self) -> ServerState:
        """Returns the state before the first round."""
        return self.process.initialize()

    def next(self, state: ServerState, cohort: Sequence[Examples]) -> tuple[ServerState, Metrics]:
        """Runs one round."""
        output = self.process.next(state, [to_numpy_examples(c) for c in cohort])
        return output.state, output.metrics


class TffEvaluation:
    """A compiled federated evaluation."""

    def __init__(self, computation: tff.Computation) -> None:
        self._computation = computation

    def __call__(self, weights: ModelWeights, clients: Sequence[Examples]) -> EvaluationOutput:
        """Returns the sums over `clients`."""
        return self._computation(weights, [to_numpy_examples(c) for c in clients])
