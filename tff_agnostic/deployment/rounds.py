"""Training and evaluation as rounds of a plan, and rounds to verify it by.

In an evaluation's round the algorithm's state is the training's, and stays as it is, so a server
can evaluate any checkpoint of the training. With noise there is a state of the evaluation's sums as
well: a key, and the number of releases.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Protocol

import numpy as np

from tff_agnostic.aggregations.aggregation import require_enough_clients
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.algorithm import Algorithm, Report, RunState
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.round import Round, RoundStep
from tff_agnostic.computations.tff_process import EvaluationFunctions, placed_step, type_from_spec
from tff_agnostic.computations.verification import check_measurement
from tff_agnostic.deployment.compiled_plan import PlanTensors
from tff_agnostic.deployment.graphs import METRICS, SERVER, named_values
from tff_agnostic.deployment.profiles import round_of
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.runtime import to_numpy_examples

if TYPE_CHECKING:
    from tff_agnostic.deployment.export import ExportRequest
    from tff_agnostic.deployment.metrics import EvaluationMetrics
    from tff_agnostic.runtimes.tff import TffRuntime

TRAINING, EVALUATION = "training", "evaluation"
NUM_ROUNDS = 3
# Sizes of the made-up clients; one has no examples, and one has examples of one domain only.
_SIZES = {"client_0": 7, "client_1": 3, "client_2": 0, "client_3": 12}
NUM_CLIENTS = len(_SIZES)
_OF_ONE_DOMAIN = "client_1"


class Rounds(Protocol):
    """Runs rounds, as a `Training` does."""

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Any]:
        """Runs one round; returns the next state, and what the server reports."""


class PlannedRounds(Rounds, Protocol):
    """Rounds in TFF.

    Attributes:
        round_: (state at the server, client data) -> (state, metrics) at the server.
        quantities: Says of metrics what follows from them for all domains together; what is not
            described has no such value.
    """

    round_: tff.Computation
    quantities: ReportFields

    def initialize(self) -> RunState:
        """Returns the state before the first round."""


@dataclasses.dataclass(frozen=True)
class PlanKind:
    """A kind of rounds.

    Attributes:
        rounds: Returns the rounds.
        algorithm: Returns the algorithm with the steps that these rounds have.
        step: Returns the one step of a round, with its aggregation.
        num_conformance_rounds: How many rounds an export has to reproduce.
        is_in_paper: Whether Ro et al. 2021 count what it sends.
    """

    rounds: Callable[[TffRuntime, ExportRequest], PlannedRounds]
    algorithm: Callable[[ExportRequest], Algorithm]
    step: Callable[[ExportRequest], RoundStep]
    num_conformance_rounds: int
    is_in_paper: bool


class _TrainingRounds:
    def __init__(self, runtime: TffRuntime, request: ExportRequest) -> None:
        self._training = runtime.training(request.algorithm, request.aggregation)
        self.round_ = round_of(self._training.process.learning_process)
        self.quantities = self._training.quantities

    def initialize(self) -> RunState:
        return self._training.initialize()

    def next(self, state: RunState, cohort: Any) -> tuple[RunState, Any]:
        return self._training.next(state, cohort)


def _metrics(request: ExportRequest) -> EvaluationMetrics:
    assert request.evaluation is not None, "an evaluation needs what it reports"
    return request.evaluation


def _measurement(request: ExportRequest) -> Measurement:
    return _metrics(request).measurement(_metrics(request).model, request.num_domains)


def _evaluated(request: ExportRequest) -> Algorithm:
    """Returns the algorithm with rounds of one step, an evaluation."""
    step = _measurement(request).step
    return dataclasses.replace(request.algorithm, steps=(step,), single_step_options=())


class EvaluationRounds:
    """Evaluations of an algorithm's main model on whatever clients take part.

    Args:
        runtime: Runs them; entered by the caller.

    Attributes:
        round_: (state at the server, client data) -> (state, metrics) at the server; the state is
            the same but for what the aggregation remembers.
        quantities: Empty: the report has the values of all domains.
    """

    def __init__(self, runtime: TffRuntime, request: ExportRequest) -> None:
        algorithm, aggregation = request.algorithm, request.aggregation
        self._runtime = runtime
        self._aggregation = aggregation
        measurement, metrics = _measurement(request), _metrics(request)
        check_measurement(aggregation, measurement)
        functions = EvaluationFunctions(measurement, aggregation)

        @tff.tensorflow.computation
        def initialize() -> RunState:
            aggregations = (functions.initialize(),)
            return RunState(algorithm.initialize(), aggregations, tf.constant(0, tf.int32))

        state_type = initialize.type_signature.result

        @tff.tensorflow.computation(state_type)
        def message(state: RunState) -> Any:
            weights = algorithm.main_model(state.algorithm)
            return functions.message(weights, state.aggregations[0])

        step = placed_step(
            functions.step,
            message.type_signature.result,
            type_from_spec(measurement.client_data_spec),
        ).sum_of

        @tff.tensorflow.computation(state_type, step.type_signature.result.member)
        def report(state: RunState, summed: Any) -> tuple[RunState, Any]:
            decoded = functions.step.decode(state.aggregations[0], summed)
            aggregation_state, output, aggregator = decoded
            next_state = state._replace(aggregations=(aggregation_state,))
            return next_state, metrics(output, aggregator)

        @tff.federated_computation(
            tff.FederatedType(state_type, tff.SERVER), step.type_signature.parameter[1]
        )
        def round_(state: tff.Value, client_data: tff.Value) -> tuple[tff.Value, tff.Value]:
            summed = step(tff.federated_map(message, state), client_data)
            result = tff.federated_map(report, (state, summed))
            return result[0], result[1]

        self._initialize = initialize
        self.round_ = round_
        self.quantities: ReportFields = OrderedDict()

    def initialize(self) -> RunState:
        """Returns the state of the training before its first round."""
        with self._runtime.installed():
            return self._initialize()

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one evaluation; returns the state after it, and the report."""
        require_enough_clients(self._aggregation, len(cohort))
        with self._runtime.installed():
            return self.round_(state, [to_numpy_examples(client) for client in cohort])


KINDS: Registry[PlanKind] = Registry(
    "kind of plan",
    {
        TRAINING: PlanKind(
            _TrainingRounds,
            lambda request: request.algorithm,
            lambda request: Round(request.algorithm, request.aggregation).steps[0],
            NUM_ROUNDS,
            True,
        ),
        # Each leaves the model unchanged: a second one would differ in its noise alone.
        EVALUATION: PlanKind(
            EvaluationRounds,
            _evaluated,
            lambda request: RoundStep(_measurement(request).step, request.aggregation),
            1,
            False,
        ),
    },
)


class ColumnRange(NamedTuple):
    """The smallest and the largest value of a column."""

    low: float
    high: float


def column_ranges(clients: Iterable[Examples], columns: Mapping[str, Any]) -> Any:
    """Returns the `ColumnRange` of "x" and "y" over clients, in the structure of `columns`."""
    filled = [client for client in clients if len(client["domain_id"])]
    if not filled:
        raise UserError("export: expected a client with examples, found none")

    def of_column(spec: tf.TensorSpec, *arrays: np.ndarray) -> ColumnRange:
        del spec
        return ColumnRange(min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays))

    def of_mapping(specs: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> Any:
        return {
            name: of_mapping(spec, [v[name] for v in values])
            if isinstance(spec, Mapping)
            else of_column(spec, *(v[name] for v in values))
            for name, spec in specs.items()
        }

    return of_mapping({name: columns[name] for name in ("x", "y")}, filled)


def public_ranges(columns: Mapping[str, Any]) -> Any:
    """Returns ranges of "x" and "y" that depend on no client's data, as `column_ranges`."""
    return tf.nest.map_structure(
        lambda spec: ColumnRange(0.0, 1.0), {name: columns[name] for name in ("x", "y")}
    )


def synthetic_clients(
    columns: Mapping[str, Any], ranges: Any, num_domains: int, seed: int = 0
) -> dict[str, Examples]:
    """Returns clients with uniformly random examples, by name.

    Args:
        columns: Specs of a client's columns; see `Model.client_data_spec`.
        ranges: The result of `column_ranges` or `public_ranges`.
        num_domains: p.
        seed: Seeds the examples.
    """
    rng = np.random.default_rng(seed)

    def column(spec: Any, range_: Any, size: int) -> Any:
        if isinstance(spec, Mapping):
            return {name: column(spec[name], range_[name], size) for name in spec}
        shape, dtype = (size, *spec.shape[1:]), spec.dtype.as_numpy_dtype
        if spec.dtype.is_floating:
            return rng.uniform(range_.low, range_.high, shape).astype(dtype)
        return rng.integers(int(range_.low), int(range_.high), shape, endpoint=True).astype(dtype)

    clients: dict[str, Examples] = {}
    for name, size in _SIZES.items():
        domain_id = rng.integers(num_domains, size=size).astype(np.int32)
        drawn = {key: column(columns[key], ranges[key], size) for key in ("x", "y")}
        clients[name] = {
            **drawn,
            "domain_id": domain_id * 0 if name == _OF_ONE_DOMAIN else domain_id,
        }
    return clients


def expected_rounds(
    training: Rounds,
    state: RunState,
    cohort: Sequence[Examples],
    tensors: PlanTensors,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, np.ndarray]]:
    """Returns state and metrics after each round, by their names in checkpoints.

    Args:
        cohort: The clients of every round, in the order in which they are summed.
    """
    rounds = []
    for _ in range(num_rounds):
        state, metrics = training.next(state, cohort)
        rounds.append(
            {
                **named_values(state, tensors.state, SERVER),
                **named_values(metrics, tensors.metrics, METRICS),
            }
        )
    return rounds
