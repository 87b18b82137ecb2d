"""The same round and evaluation as `tff.federated_computation`s."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.computations.clients import Clients, Place, arrays_of_client
from tff_agnostic.computations.evaluation import Measurement, measurement_of_model
from tff_agnostic.computations.round import Round, RoundProgress, RoundStep
from tff_agnostic.later import tf, tff
from tff_agnostic.models.model import Model, ModelWeights


class Process(NamedTuple):
    """An algorithm in TFF.

    Attributes:
        learning_process: Its rounds.
        steps: Each communication step of a round by itself, by name: (message at the server, client
            data, with what clients remember if they do) -> the sum at the server. A round has no
            other communication.
        round_: The functions that it was made of.
    """

    learning_process: tff.learning.templates.LearningProcess
    steps: dict[str, tff.Computation]
    round_: Round


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
    """Returns the learning process together with its steps; see `build_learning_process`."""
    round_ = Round(algorithm, aggregation)
    client_data_type = client_type(type_from_spec(algorithm.client_data_spec), aggregation)
    initialize = tff.tensorflow.computation(round_.initialize)
    state_type = initialize.type_signature.result
    start = tff.tensorflow.computation(round_.start, state_type)
    placed: list[PlacedStep] = []
    message_type, progress_type = start.type_signature.result, tff.to_type(RoundProgress())
    client_state_type: Optional[tff.Type] = None
    after_sums = []
    for k, step in enumerate(round_.steps):
        placed.append(placed_step(step, message_type, client_data_type, client_state_type))
        if step.step.keeps_client_state:
            client_state_type = placed[k].client_state_type
        sum_type = placed[k].sum_of.type_signature.result.member
        is_last = k == len(round_.steps) - 1
        after_sum = round_.finish if is_last else round_.next_step
        after_sums.append(
            tff.tensorflow.computation(after_sum, [state_type, progress_type, sum_type])
        )
        if not is_last:
            message_type, progress_type = after_sums[k].type_signature.result

    @tff.federated_computation
    def initialize_fn() -> Any:
        return tff.federated_eval(initialize, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def next_fn(state: Any, client_data: Any) -> Any:
        message = tff.federated_map(start, state)
        progress = tff.federated_value(RoundProgress(), tff.SERVER)
        client_state = None
        for step, after_sum in zip(placed[:-1], after_sums[:-1]):
            summed, client_state = step.called(message, client_data, client_state)
            message, progress = _unzipped(tff.federated_map(after_sum, (state, progress, summed)))
        summed, _ = placed[-1].called(message, client_data, client_state)
        next_state, report = tff.federated_map(after_sums[-1], (state, progress, summed))
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
    names = [step.step.name for step in round_.steps]
    return Process(process, dict(zip(names, [step.sum_of for step in placed])), round_)


def _unzipped(value: Any) -> tuple[Any, Any]:
    return value[0], value[1]


class EvaluationParts(NamedTuple):
    """A federated evaluation in TFF, in parts, so that sums can be added before decoding.

    Attributes:
        step: (message at the server, client data) -> the sum at the server.
        initialize: () -> the state of the aggregation before its first sum.
        message: (what is measured, such as weights; state of the aggregation) -> message.
        decode: (state, the sum) -> (what clients contributed, report of the aggregation).
    """

    step: tff.Computation
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
    step = placed_step(
        functions.step,
        message.type_signature.result,
        client_type(type_from_spec(measurement.client_data_spec), aggregation),
    ).sum_of
    sum_type = step.type_signature.result.member
    decode = tff.tensorflow.computation(functions.decode, [state_type, sum_type])
    return EvaluationParts(step, initialize, message, decode)


class EvaluationFunctions:
    """What the server does before and after the sum of an evaluation.

    Args:
        measurement: What is evaluated, and how.
        aggregation: How clients are summed.

    Attributes:
        step: The evaluation with its aggregation.
    """

    def __init__(self, measurement: Measurement, aggregation: Aggregation) -> None:
        self.step = RoundStep(measurement.step, aggregation)

    def initialize(self) -> Any:
        """Returns the state of the aggregation before its first sum."""
        return self.step.initialize()

    def message(self, measured: Any, state: Any) -> Any:
        """Returns what every client is sent."""
        return self.step.message(state, measured, tf.zeros([2], tf.int32))

    def decode(self, state: Any, summed: Any) -> tuple[Any, Any]:
        """Returns the sum of what clients contributed, and the report of the aggregation."""
        _, output, report = self.step.decode(state, summed)
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

    step = placed_step(functions.step, message_of.type_signature.result, client_data_type).sum_of

    @tff.tensorflow.computation(step.type_signature.result.member)
    def output_of(summed: Any) -> Any:
        return functions.decode(functions.initialize(), summed)[0]

    @tff.federated_computation(
        tff.FederatedType(measured_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def evaluate(measured: Any, client_data: Any) -> Any:
        summed = step(tff.federated_map(message_of, measured), client_data)
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


class PlacedStep(NamedTuple):
    """A communication step in TFF.

    Attributes:
        sum_of: (message at the server, what clients have) -> the sum at the server. Clients have
            their examples, or a pair of these and of what they remember.
        client_state_type: Type of what a client remembers after it; None if that is nothing.
        with_client_state: The same with what clients remember, placed at them, beside the sum; only
            if they do.
    """

    sum_of: tff.Computation
    client_state_type: Optional[tff.Type] = None
    with_client_state: Optional[tff.Computation] = None

    def called(self, message: Any, client_data: Any, client_state: Any) -> tuple[Any, Any]:
        """In a federated computation: returns the sum, and what clients remember after it."""
        on_clients = client_data
        if client_state is not None:
            on_clients = tff.federated_zip((client_data, client_state))
        if self.with_client_state is None:
            return self.sum_of(message, on_clients), client_state
        both = self.with_client_state(message, on_clients)
        return both[0], both[1]


def placed_step(
    step: RoundStep,
    message_type: tff.Type,
    client_data_type: tff.Type,
    client_state_type: Optional[tff.Type] = None,
) -> PlacedStep:
    """Returns a communication step in TFF.

    Args:
        step: The step with its aggregation.
        message_type: Of what every client is sent.
        client_data_type: Of what a client has; see `client_type`.
        client_state_type: Of what it remembers of earlier steps; None if that is nothing.
    """
    has_state = client_state_type is not None
    on_client_type = client_data_type
    if has_state:
        on_client_type = tff.to_type((client_data_type, client_state_type))
    at_server = tff.FederatedType(message_type, tff.SERVER)
    at_clients = tff.FederatedType(on_client_type, tff.CLIENTS)
    keeps = step.step.keeps_client_state

    @tff.tensorflow.computation(message_type, on_client_type)
    def client_work(message: Any, on_client: Any) -> Any:
        client, state = on_client if has_state else (on_client, ())
        examples, place = client if step.aggregation.numbers_clients else (client, ())
        place = Place(*place) if place else ()
        clients = Clients.of(arrays_of_client(examples, state, place))
        result = step.client_work(message, clients)
        return result if keeps else result.output

    def worked(message: Any, client_data: Any) -> Any:
        return tff.federated_map(client_work, (tff.federated_broadcast(message), client_data))

    if not keeps:

        @tff.federated_computation(at_server, at_clients)
        def step_fn(message: Any, client_data: Any) -> Any:
            return step.federated_sum(worked(message, client_data))

        return PlacedStep(step_fn)

    @tff.federated_computation(at_server, at_clients)
    def keeping_fn(message: Any, client_data: Any) -> Any:
        result = worked(message, client_data)
        return step.federated_sum(result.output), result.state

    # What is checked: the sum is all that leaves clients, as in any step.
    @tff.federated_computation(at_server, at_clients)
    def sum_fn(message: Any, client_data: Any) -> Any:
        return keeping_fn(message, client_data)[0]

    return PlacedStep(sum_fn, client_work.type_signature.result.state, keeping_fn)
