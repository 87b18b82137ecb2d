"""Evaluations as rounds: the algorithm's state is that of the training, and stays as it is.

So a server can give an evaluation any checkpoint that a training has left. With noise there is a
state of its own beside it, of the evaluation's sums: a key, and how many were released.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.computations.exchange import Algorithm, Report, RunState
from tff_agnostic.computations.guarantees import check_measurement
from tff_agnostic.computations.placed_exchange import placed_exchange
from tff_agnostic.computations.template import EvaluationFunctions, type_from_spec
from tff_agnostic.deployment.evaluation.metrics import EvaluationMetrics
from tff_agnostic.models.functional import Examples
from tff_agnostic.quantities import Quantities
from tff_agnostic.runtimes.runtime import to_numpy_examples
from tff_agnostic.runtimes.tff import TffRuntime


class EvaluationRounds:
    """Evaluations of an algorithm's main model on whatever clients take part.

    Args:
        runtime: Runs them; entered by the caller.
        algorithm: Whose state is evaluated.
        aggregation: How clients are summed.
        num_domains: p.
        metrics: What the server reports.

    Attributes:
        round_: (state at the server, client data) -> (state, metrics) at the server; the state is
            the same but for what the aggregation remembers.
        quantities: Empty: what is reported has the values of all domains.

    Raises:
        UserError: If what the aggregation promises does not hold.
    """

    def __init__(
        self,
        runtime: TffRuntime,
        algorithm: Algorithm,
        aggregation: Aggregation,
        num_domains: int,
        metrics: EvaluationMetrics,
    ) -> None:
        self._runtime = runtime
        self._aggregation = aggregation
        measurement = metrics.measurement(metrics.model, num_domains)
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

        exchange = placed_exchange(
            functions.exchange,
            message.type_signature.result,
            type_from_spec(measurement.client_data_spec),
        ).sum_of

        @tff.tensorflow.computation(state_type, exchange.type_signature.result.member)
        def report(state: RunState, summed: Any) -> tuple[RunState, Any]:
            decoded = functions.exchange.decode(state.aggregations[0], summed)
            aggregation_state, output, aggregator = decoded
            next_state = state._replace(aggregations=(aggregation_state,))
            return next_state, metrics(output, aggregator)

        @tff.federated_computation(
            tff.FederatedType(state_type, tff.SERVER), exchange.type_signature.parameter[1]
        )
        def round_(state: tff.Value, client_data: tff.Value) -> tuple[tff.Value, tff.Value]:
            summed = exchange(tff.federated_map(message, state), client_data)
            result = tff.federated_map(report, (state, summed))
            return result[0], result[1]

        self._initialize = initialize
        self.round_ = round_
        self.quantities: Quantities = OrderedDict()

    def initialize(self) -> RunState:
        """Returns the state of the training before its first round."""
        with self._runtime.installed():
            return self._initialize()

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one evaluation; returns the state after it, and what is reported."""
        require_enough_clients(self._aggregation, len(cohort))
        with self._runtime.installed():
            return self.round_(state, [to_numpy_examples(client) for client in cohort])


def evaluated_algorithm(
    algorithm: Algorithm, metrics: EvaluationMetrics, num_domains: int
) -> Algorithm:
    """Returns an algorithm whose rounds have one exchange, an evaluation."""
    exchange = metrics.measurement(metrics.model, num_domains).exchange
    return dataclasses.replace(algorithm, exchanges=(exchange,), in_one_exchange="")
