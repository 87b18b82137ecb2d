"""Training and evaluation as rounds of a plan, and the conformance rounds.

An evaluation keeps the training's state, so that a server can evaluate any checkpoint of the
training. Noisy sums have a state of their own: a key, and the number of releases.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

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
from tff_agnostic.deployment.profiles import two_results
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.runtime import to_numpy_examples

if TYPE_CHECKING:
    from tff_agnostic.deployment.export import ExportRequest
    from tff_agnostic.deployment.metrics import EvaluationMetrics
    from tff_agnostic.runtimes.tff import TffRuntime

TRAINING, EVALUATION = "training", "evaluation"
NUM_ROUNDS = 3
# Sizes of the made-up clients: one has no examples, and another one a single domain.
_SIZES = {"client_0": 7, "client_1": 3, "client_2": 0, "client_3": 12}
NUM_CLIENTS = len(_SIZES)
_SINGLE_DOMAIN = "client_1"


@dataclasses.dataclass(frozen=True)
class PlannedRounds:
    """Rounds as computations of TFF.

    Attributes:
        round_: Computation (state at the server, client data) -> (state, metrics) at the server.
        quantities: Descriptions of the metrics with an overall value.
        initialize: Called without arguments; returns the state before the first round.
        next: Called with (state, cohort); returns (next state, the server's report).
    """

    round_: tff.Computation
    quantities: ReportFields
    initialize: Callable[[], RunState]
    next: Callable[[RunState, Sequence[Examples]], tuple[RunState, Any]]


@dataclasses.dataclass(frozen=True)
class PlanKind:
    """A kind of rounds, training or evaluation.

    Attributes:
        rounds: Called with a runtime and a request; returns the rounds.
        algorithm: Called with a request; returns the algorithm that has the steps of these rounds.
        step: Called with a request; returns the single step of a round, with its aggregation.
        num_conformance_rounds: Number of rounds that a runner of the export must reproduce.
        is_in_paper: Whether Ro et al. 2021 count the numbers that these rounds send.
    """

    rounds: Callable[[TffRuntime, ExportRequest], PlannedRounds]
    algorithm: Callable[[ExportRequest], Algorithm]
    step: Callable[[ExportRequest], RoundStep]
    num_conformance_rounds: int
    is_in_paper: bool


def _training_rounds(runtime: TffRuntime, request: ExportRequest) -> PlannedRounds:
    training = runtime.training(request.algorithm, request.aggregation)
    round_ = two_results(training.process.learning_process)
    return PlannedRounds(round_, training.quantities, training.initialize, training.next)


def _metrics(request: ExportRequest) -> EvaluationMetrics:
    assert request.evaluation is not None, "an evaluation needs what it reports"
    return request.evaluation


def _measurement(request: ExportRequest) -> Measurement:
    return _metrics(request).measurement(_metrics(request).model, request.num_domains)


def _evaluated(request: ExportRequest) -> Algorithm:
    """Returns the algorithm with the evaluation as its single step."""
    step = _measurement(request).step
    return dataclasses.replace(request.algorithm, steps=(step,), single_step_options=())


def _evaluation_rounds(runtime: TffRuntime, request: ExportRequest) -> PlannedRounds:
    """Returns rounds that evaluate the main model; only the state of the aggregation changes."""
    algorithm, aggregation = request.algorithm, request.aggregation
    measurement, metrics = _measurement(request), _metrics(request)
    check_measurement(aggregation, measurement)
    functions = EvaluationFunctions(measurement, aggregation)

    @tff.tensorflow.computation
    def initial() -> RunState:
        aggregations = (functions.initialize(),)
        return RunState(algorithm.initialize(), aggregations, tf.constant(0, tf.int32))

    state_type = initial.type_signature.result

    @tff.tensorflow.computation(state_type)
    def message(state: RunState) -> Any:
        weights = algorithm.main_model(state.algorithm)
        return functions.message(weights, state.aggregations[0])

    step = placed_step(
        functions.step,
        message.type_signature.result,
        type_from_spec(measurement.client_data_spec),
    ).sum_computation

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

    def initialize() -> RunState:
        with runtime.installed():
            return initial()

    def next_(state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        require_enough_clients(aggregation, len(cohort))
        with runtime.installed():
            return round_(state, [to_numpy_examples(client) for client in cohort])

    # The report already contains overall values, and needs no descriptions.
    return PlannedRounds(round_, OrderedDict(), initialize, next_)


KINDS: Registry[PlanKind] = Registry(
    "kind of plan",
    {
        TRAINING: PlanKind(
            _training_rounds,
            lambda request: request.algorithm,
            lambda request: Round(request.algorithm, request.aggregation).steps[0],
            NUM_ROUNDS,
            True,
        ),
        # A second evaluation of the same model would only differ in its noise.
        EVALUATION: PlanKind(
            _evaluation_rounds,
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

    def ranges(spec: Any, arrays: Sequence[Any]) -> Any:
        if isinstance(spec, Mapping):
            return {name: ranges(spec[name], [array[name] for array in arrays]) for name in spec}
        return ColumnRange(min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays))

    return ranges({name: columns[name] for name in ("x", "y")}, filled)


def public_ranges(columns: Mapping[str, Any]) -> Any:
    """Returns ranges like `column_ranges` that do not depend on clients' data."""
    return tf.nest.map_structure(
        lambda spec: ColumnRange(0.0, 1.0), {name: columns[name] for name in ("x", "y")}
    )


def synthetic_clients(
    columns: Mapping[str, Any], ranges: Any, num_domains: int
) -> dict[str, Examples]:
    """Returns clients with uniformly random examples within the ranges, by name."""
    rng = np.random.default_rng(0)

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
            "domain_id": domain_id * 0 if name == _SINGLE_DOMAIN else domain_id,
        }
    return clients


def expected_rounds(
    training: PlannedRounds,
    state: RunState,
    cohort: Sequence[Examples],
    tensors: PlanTensors,
    num_rounds: int = NUM_ROUNDS,
) -> list[dict[str, np.ndarray]]:
    """Runs rounds with a cohort; returns each round's state and metrics, by checkpoint name."""
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
