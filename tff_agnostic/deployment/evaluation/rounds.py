"""Evaluations as rounds: the state is that of the training, and comes out as it went in.

So a server can give an evaluation any checkpoint that a training has left.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.computations.evaluation import measurement_of_model
from tff_agnostic.computations.exchange import Algorithm, Report, RunState
from tff_agnostic.computations.guarantees import check_guarantees
from tff_agnostic.computations.placed_exchange import placed_exchange
from tff_agnostic.computations.template import EvaluationFunctions, type_from_spec
from tff_agnostic.deployment.evaluation.metrics import EvaluationMetrics
from tff_agnostic.models.functional import Examples, Model
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
        round_: (state at the server, client data) -> (the same state, metrics) at the server.
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
        training = AggregatedRound(algorithm, aggregation)
        self._initialize = tff.tensorflow.computation(training.initialize)
        state_type = self._initialize.type_signature.result
        measurement = measurement_of_model(metrics.model, num_domains)
        functions = EvaluationFunctions(measurement, aggregation)

        @tff.tensorflow.computation(state_type)
        def message(state: RunState) -> Any:
            return functions.message(algorithm.main_model(state.algorithm), functions.initialize())

        exchange = placed_exchange(
            functions.exchange,
            message.type_signature.result,
            type_from_spec(measurement.client_data_spec),
        ).sum_of

        @tff.tensorflow.computation(exchange.type_signature.result.member)
        def report(summed: Any) -> Any:
            output, aggregator = functions.decode(functions.initialize(), summed)
            return metrics(output, aggregator)

        @tff.federated_computation(
            tff.FederatedType(state_type, tff.SERVER), exchange.type_signature.parameter[1]
        )
        def round_(state: tff.Value, client_data: tff.Value) -> tuple[tff.Value, tff.Value]:
            summed = exchange(tff.federated_map(message, state), client_data)
            return state, tff.federated_map(report, summed)

        if aggregation.guarantees:
            check_guarantees(aggregation, {measurement.exchange.name: exchange})
        self.round_ = round_
        self.quantities: Quantities = OrderedDict()

    def initialize(self) -> RunState:
        """Returns the state of the training before its first round."""
        with self._runtime.installed():
            return self._initialize()

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one evaluation; returns the state as it was, and what is reported."""
        require_enough_clients(self._aggregation, len(cohort))
        with self._runtime.installed():
            return self.round_(state, [to_numpy_examples(client) for client in cohort])


def evaluated_algorithm(algorithm: Algorithm, model: Model, num_domains: int) -> Algorithm:
    """Returns an algorithm whose rounds have one exchange, an evaluation."""
    exchange = measurement_of_model(model, num_domains).exchange
    return dataclasses.replace(algorithm, exchanges=(exchange,), in_one_exchange="")
