"""The same round and evaluation as `tff.federated_computation`s."""

from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.computations.clients import Place, group_of_one, one_client
from tff_agnostic.computations.evaluation import Measurement, measurement_of_model
from tff_agnostic.computations.round import AggregatedExchange, AggregatedRound, SumsSoFar
from tff_agnostic.models.model import Model, ModelWeights


class Process(NamedTuple):
    """An algorithm in TFF.

    Attributes:
        learning_process: Its rounds.
        exchanges: Each exchange of a round by itself, by name: (message at the server, client data,
            with what clients have kept if they have) -> the sum at the server. A round has no other
            communication.
        round_: The functions that it was made of.
    """

    learning_process: tff.learning.templates.LearningProcess
    exchanges: "dict[str, tff.Computation]"
    round_: AggregatedRound


def build_learning_process(
    algorithm: Algorithm, aggregation: Aggregation = PlainSum()
) -> tff.learning.templates.LearningProcess:
    """Wires an algorithm and an aggregation into a TFF learning process.

    `next` maps (state at the server, one mapping of arrays per client) to
    `tff.learning.templates.LearningProcessOutput(state, report)`; the state is a `RunState`. Where
    the aggregation numbers clients they have a `NumberedClient` each instead of the mapping alone.
    Reports of the aggregation are under "aggregator".
    """
    return build_process(algorithm, aggregation).learning_process


def build_process(algorithm: Algorithm, aggregation: Aggregation) -> Process:
    """Returns the learning process together with its exchanges; see `build_learning_process`."""
    round_ = AggregatedRound(algorithm, aggregation)
    client_data_type = client_type(type_from_spec(algorithm.client_data_spec), aggregation)
    initialize = tff.tensorflow.computation(round_.initialize)
    state_type = initialize.type_signature.result
    start = tff.tensorflow.computation(round_.start, state_type)
    exchanges: list[PlacedExchange] = []
    message_type, so_far_type = start.type_signature.result, tff.to_type(SumsSoFar())
    kept_type: Optional[tff.Type] = None
    steps = []
    for k, exchange in enumerate(round_.exchanges):
        exchanges.append(placed_exchange(exchange, message_type, client_data_type, kept_type))
        if exchange.exchange.keeps:
            kept_type = exchanges[k].kept_type
        sum_type = exchanges[k].sum_of.type_signature.result.member
        is_last = k == len(round_.exchanges) - 1
        after_sum = round_.finish if is_last else round_.go_on
        steps.append(tff.tensorflow.computation(after_sum, [state_type, so_far_type, sum_type]))
        if not is_last:
            message_type, so_far_type = steps[k].type_signature.result

    @tff.federated_computation
    def initialize_fn() -> Any:
        return tff.federated_eval(initialize, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def next_fn(state: Any, client_data: Any) -> Any:
        message = tff.federated_map(start, state)
        so_far = tff.federated_value(SumsSoFar(), tff.SERVER)
        kept = None
        for exchange, after_sum in zip(exchanges[:-1], steps[:-1]):
            summed, kept = exchange.called(message, client_data, kept)
            message, so_far = _unzipped(tff.federated_map(after_sum, (state, so_far, summed)))
        summed, _ = exchanges[-1].called(message, client_data, kept)
        next_state, report = tff.federated_map(steps[-1], (state, so_far, summed))
        return tff.learning.templates.LearningProcessOutput(next_state, report)

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state: Any) -> ModelWeights:
        return algorithm.main_model(state.algorithm)

    @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
    def set_model_weights(state: Any, weights: ModelWeights) -> Any:
        return state._replace(algorithm=algorithm.with_weights(state.algorithm, weights))

    process = tff.learning.templates.LearningProcess(
        initialize_fn, next_fn, get_model_weights, set_model_weights
    )
    names = [exchange.exchange.name for exchange in round_.exchanges]
    return Process(process, dict(zip(names, [e.sum_of for e in exchanges])), round_)


def _unzipped(value: Any) -> tuple[Any, Any]:
    return value[0], value[1]


class EvaluationParts(NamedTuple):
    """A federated evaluation in TFF, in two parts, so that sums can be added before decoding.

    Attributes:
        exchange: (message at the server, client data) -> the sum at the server.
        initialize: () -> the state of the aggregation, if nobody has another one.
        message: (what is measured, such as weights; state of the aggregation) -> message.
        decode: (state, the sum) -> (what clients contributed, report of the aggregation).
    """

    exchange: tff.Computation
    initialize: tff.Computation
    message: tff.Computation
    decode: tff.Computation


def build_evaluation_parts(measurement: Measurement, aggregation: Aggregation) -> EvaluationParts:
    """Returns the parts of `build_measurement`."""
    functions = EvaluationFunctions(measurement, aggregation)
    measured_type = type_from_spec(measurement.measured_spec)
    initialize = tff.tensorflow.computation(functions.initialize)
    state_type = initialize.type_signature.result
    message = tff.tensorflow.computation(functions.message, [measured_type, state_type])
    exchange = placed_exchange(
        functions.exchange,
        message.type_signature.result,
        client_type(type_from_spec(measurement.client_data_spec), aggregation),
    ).sum_of
    sum_type = exchange.type_signature.result.member
    decode = tff.tensorflow.computation(functions.decode, [state_type, sum_type])
    return EvaluationParts(exchange, initialize, message, decode)


class EvaluationFunctions:
    """What the server does before and after the sum of an evaluation.

    Args:
        measurement: What is evaluated, and how.
        aggregation: How clients are summed.

    Attributes:
        exchange: The evaluation with its aggregation.
    """

    def __init__(self, measurement: Measurement, aggregation: Aggregation) -> None:
        self.exchange = AggregatedExchange(measurement.exchange, aggregation)

    def initialize(self) -> Any:
        """Returns the state of the aggregation before its first sum."""
        return self.exchange.initialize()

    def message(self, measured: Any, state: Any) -> Any:
        """Returns what every client is sent."""
        return self.exchange.message(state, measured, tf.zeros([2], tf.int32))

    def decode(self, state: Any, summed: Any) -> tuple[Any, Any]:
        """Returns the sum of what clients contributed, and the report of the aggregation."""
        _, output, report = self.exchange.decode(state, summed)
        return output, report


def build_evaluation(
    model: Model, num_domains: int, aggregation: Aggregation = PlainSum()
) -> tff.Computation:
    """Returns a TFF computation (weights at the server, client data) -> `EvaluationOutput` sums."""
    return build_measurement(measurement_of_model(model, num_domains), aggregation)


def build_measurement(measurement: Measurement, aggregation: Aggregation) -> tff.Computation:
    """Returns a TFF computation (what is measured at the server, client data) -> its sums."""
    functions = EvaluationFunctions(measurement, aggregation)
    measured_type = type_from_spec(measurement.measured_spec)
    client_data_type = client_type(type_from_spec(measurement.client_data_spec), aggregation)

    @tff.tensorflow.computation(measured_type)
    def message_of(measured: Any) -> Any:
        return functions.message(measured, functions.initialize())

    exchange = placed_exchange(
        functions.exchange, message_of.type_signature.result, client_data_type
    ).sum_of

    @tff.tensorflow.computation(exchange.type_signature.result.member)
    def output_of(summed: Any) -> Any:
        return functions.decode(functions.initialize(), summed)[0]

    @tff.federated_computation(
        tff.FederatedType(measured_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def evaluate(measured: Any, client_data: Any) -> Any:
        summed = exchange(tff.federated_map(message_of, measured), client_data)
        return tff.federated_map(output_of, summed)

    return evaluate


def type_from_spec(spec: Any) -> tff.Type:
    """Returns the TFF type of a structure of tensor specs."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape.as_list()), spec
        )
    )


class NumberedClient(NamedTuple):
    """What a client has in TFF where the aggregation numbers clients.

    Attributes:
        examples: Its examples.
        place: Its `Place` in the cohort.
    """

    examples: Any
    place: Any


def client_type(examples_type: tff.Type, aggregation: Aggregation) -> tff.Type:
    """Returns the type of what a client has: its examples, or a `NumberedClient`."""
    if not aggregation.numbers_clients:
        return examples_type
    return tff.to_type(NumberedClient(examples_type, Place(np.int32, np.int32)))


class PlacedExchange(NamedTuple):
    """An exchange in TFF.

    Attributes:
        sum_of: (message at the server, what clients have) -> the sum at the server. Clients have
            their examples, or a pair of these and of what they have kept.
        kept_type: Type of what a client keeps; None if the exchange keeps nothing.
        with_kept: The same with what clients keep, placed at them, beside the sum; only if they do.
    """

    sum_of: tff.Computation
    kept_type: Optional[tff.Type] = None
    with_kept: Optional[tff.Computation] = None

    def called(self, message: Any, client_data: Any, kept: Any) -> tuple[Any, Any]:
        """In a federated computation: returns the sum, and what clients have kept after it."""
        on_clients = client_data if kept is None else tff.federated_zip((client_data, kept))
        if self.with_kept is None:
            return self.sum_of(message, on_clients), kept
        both = self.with_kept(message, on_clients)
        return both[0], both[1]


def placed_exchange(
    exchange: AggregatedExchange,
    message_type: tff.Type,
    client_data_type: tff.Type,
    kept_type: Optional[tff.Type] = None,
) -> PlacedExchange:
    """Returns an exchange in TFF.

    Args:
        exchange: The exchange with its aggregation.
        message_type: Of what every client is sent.
        client_data_type: Of what a client has; see `client_type`.
        kept_type: Of what it has kept of earlier exchanges; None if that is nothing.
    """
    has_kept = kept_type is not None
    on_client_type = tff.to_type((client_data_type, kept_type)) if has_kept else client_data_type
    at_server = tff.FederatedType(message_type, tff.SERVER)
    at_clients = tff.FederatedType(on_client_type, tff.CLIENTS)
    keeps = exchange.exchange.keeps

    @tff.tensorflow.computation(message_type, on_client_type)
    def client_work(message: Any, on_client: Any) -> Any:
        client, kept = on_client if has_kept else (on_client, ())
        examples, place = client if exchange.aggregation.numbers_clients else (client, ())
        place = Place(*place) if place else ()
        clients = group_of_one(examples, kept, place)
        submission = exchange.client_work(message, clients, one_client)
        return submission if keeps else submission.submitted

    def worked(message: Any, client_data: Any) -> Any:
        return tff.federated_map(client_work, (tff.federated_broadcast(message), client_data))

    if not keeps:

        @tff.federated_computation(at_server, at_clients)
        def exchange_fn(message: Any, client_data: Any) -> Any:
            return exchange.federated_sum(worked(message, client_data))

        return PlacedExchange(exchange_fn)

    @tff.federated_computation(at_server, at_clients)
    def keeping_fn(message: Any, client_data: Any) -> Any:
        submission = worked(message, client_data)
        return exchange.federated_sum(submission.submitted), submission.kept

    # What is checked: the sum is all that leaves clients, as of any exchange.
    @tff.federated_computation(at_server, at_clients)
    def sum_fn(message: Any, client_data: Any) -> Any:
        return keeping_fn(message, client_data)[0]

    return PlacedExchange(sum_fn, client_work.type_signature.result.kept, keeping_fn)
