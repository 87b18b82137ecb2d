"""Converts rounds and evaluations to `tff.federated_computation`s."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.computations.clients import Clients, Place, client_arrays
from tff_agnostic.computations.evaluation import Measurement, model_measurement
from tff_agnostic.computations.round import Round, RoundProgress, RoundStep, floats_are_finite
from tff_agnostic.models.model import Model, ModelWeights

# A `tff.learning.templates.LearningProcess`, for signatures in modules that do not load TFF.
LearningProcess = Any


class TffSums:
    """Implements `aggregation.FederatedSums` by TFF's intrinsics."""

    def plain(self, values: tff.Value) -> tff.Value:
        """Returns the plain sum."""
        return tff.federated_sum(values)

    def secure(self, values: tff.Value, bit_widths: Any) -> tff.Value:
        """Returns the secure sum of integers with the given bit widths."""
        return tff.federated_secure_sum_bitwidth(values, bit_widths)

    def secure_modular(self, values: tff.Value, moduli: Any) -> tff.Value:
        """Returns the modular secure sum, by an intrinsic of TFF's MapReduce backend."""
        return tff.backends.mapreduce.federated_secure_modular_sum(values, moduli)

    def joined(self, values: Any) -> tff.Value:
        """Returns a structure of placed values as one placed value."""
        return tff.federated_zip(values)

    def spec(self, values: tff.Value) -> Any:
        """Returns the tensor specs of one client's value."""
        return tff.types.type_to_tf_tensor_specs(values.type_signature.member)


class Process(NamedTuple):
    """An algorithm as TFF computations.

    Attributes:
        learning_process: The TFF learning process that runs rounds.
        steps: A computation for each communication step, by name: (message at the server, client
            data) -> the sum at the server. Client data are the examples, or pairs of examples and
            client state. A round has no other communication.
        round_: The round's functions.
    """

    learning_process: LearningProcess
    steps: dict[str, tff.Computation]
    round_: Round


class PlacedAggregation(Aggregation):
    """An aggregation that sums in a `tff.templates.AggregationProcess` with its own state.

    The process exists only in TFF. The functions of a `Round` do not see its state; the state of a
    learning process contains it, see `with_placed`.
    """

    def process(self, encoded_type: tff.Type, bounds: Any) -> Optional[Any]:
        """Returns the process that sums encoded outputs; None if plain sums suffice."""
        raise NotImplementedError

    def with_placed(self, state: Any, placed: Any) -> Any:
        """Returns the aggregation's state with `placed` as the state of its process."""
        raise NotImplementedError

    def placed_in(self, state: Any) -> Any:
        """Returns the state of the process, from the aggregation's state."""
        raise NotImplementedError


def build_learning_process(
    algorithm: Algorithm, aggregation: Aggregation = PlainSum()
) -> LearningProcess:
    """Converts an algorithm and an aggregation to a TFF learning process.

    `next` maps (state at the server, one mapping of arrays per client) to
    `tff.learning.templates.LearningProcessOutput(state, report)`. The state is a `RunState`; the
    aggregation's reports are under "aggregator". If the aggregation numbers clients, each client is
    a `NumberedClient` instead of a mapping.

    Example:
        >>> algorithm = agnostic_fed_avg(problem, AgnosticFedAvgOptions())
        >>> process = build_learning_process(algorithm)
        >>> str(process.next.type_signature.parameter.client_data.member["x"])
        'float32[?,4]'
    """
    return build_process(algorithm, aggregation).learning_process


def build_process(algorithm: Algorithm, aggregation: Aggregation) -> Process:
    """Returns the learning process and its separate steps; see `build_learning_process`."""
    round_ = Round(algorithm, aggregation)
    client_data_type = client_type(type_from_spec(algorithm.client_data_spec), aggregation)
    initialize = tff.tensorflow.computation(round_.initialize)
    # Type of the state without process states, which `_PlacedStates` adds.
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
        sum_type = placed[k].sum_type
        is_last = k == len(round_.steps) - 1
        after_sum = round_.finish if is_last else round_.next_step
        after_sums.append(
            tff.tensorflow.computation(after_sum, [state_type, progress_type, sum_type])
        )
        if not is_last:
            message_type, progress_type = after_sums[k].type_signature.result

    states = _PlacedStates(round_, placed, state_type)

    @tff.federated_computation
    def initialize_fn() -> Any:
        return states.first(tff.federated_eval(initialize, tff.SERVER))

    @tff.federated_computation(
        tff.FederatedType(states.whole_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def next_fn(whole: Any, client_data: Any) -> Any:
        state = states.without(whole)
        message = tff.federated_map(start, state)
        progress = tff.federated_value(RoundProgress(), tff.SERVER)
        client_state, remaining = None, []
        for k, (step, after_sum) in enumerate(zip(placed, after_sums)):
            called = step.called(message, client_data, client_state, states.step_state(k, whole))
            summed, client_state, placed_state = called
            remaining.append(placed_state)
            after = tff.federated_map(after_sum, (state, progress, summed))
            if k < len(placed) - 1:
                message, progress = after[0], after[1]
        next_state, report = after[0], after[1]
        next_whole = states.joined(whole, next_state, remaining)
        return tff.learning.templates.LearningProcessOutput(next_whole, report)

    state_type = states.whole_type

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
    return Process(process, dict(zip(names, [step.sum_computation for step in placed])), round_)


class _PlacedStates:
    """Adds the process states of placed aggregations to the state of a learning process.

    Args:
        placed: All steps of the round.
        state_type: Type of the state without the process states.

    Attributes:
        whole_type: Type of the state with the process states.
    """

    def __init__(self, round_: Round, placed: list[PlacedStep], state_type: tff.Type) -> None:
        self._processes = {k: s.process for k, s in enumerate(placed) if s.process is not None}
        self._having = list(self._processes)
        self.whole_type = state_type
        if not self._having:
            return
        steps: dict[int, Any] = {k: round_.steps[k].aggregation for k in self._having}
        types = [process.state_type.member for process in self._processes.values()]

        def with_states(state: Any, placed_states: Any) -> Any:
            aggregations = list(state.aggregations)
            for k, placed_state in zip(self._having, placed_states):
                aggregations[k] = steps[k].with_placed(aggregations[k], placed_state)
            return state._replace(aggregations=tuple(aggregations))

        self._join_first = tff.tensorflow.computation(with_states, [state_type, types])
        self.whole_type = self._join_first.type_signature.result

        @tff.tensorflow.computation(self.whole_type)
        def without(whole: Any) -> Any:
            return with_states(whole, [()] * len(self._having))

        def in_whole(k: int) -> Any:
            @tff.tensorflow.computation(self.whole_type)
            def select_state(whole: Any) -> Any:
                return steps[k].placed_in(whole.aggregations[k])

            return select_state

        @tff.tensorflow.computation(self.whole_type, [state_type, types])
        def join(whole: Any, state_and_placed: Any) -> Any:
            state, placed_states = state_and_placed
            before = [steps[k].placed_in(whole.aggregations[k]) for k in self._having]
            # Keep the previous state instead of a non-finite one, which would never recover.
            kept = [
                tf.nest.map_structure(
                    lambda n, o, ok=floats_are_finite(new): tf.where(ok, n, o), new, old
                )
                for new, old in zip(placed_states, before)
            ]
            return with_states(state, kept)

        self._without, self._join = without, join
        self._in_whole = {k: in_whole(k) for k in self._having}

    def first(self, state: Any) -> Any:
        """In a federated computation: returns the first state, including the processes' states."""
        if not self._having:
            return state
        firsts = [process.initialize() for process in self._processes.values()]
        return tff.federated_map(self._join_first, (state, tff.federated_zip(firsts)))

    def without(self, whole: Any) -> Any:
        """In a federated computation: returns the state without the processes' states."""
        return tff.federated_map(self._without, whole) if self._having else whole

    def step_state(self, k: int, whole: Any) -> Any:
        """In a federated computation: returns the state of a step's process; None without one."""
        return tff.federated_map(self._in_whole[k], whole) if k in self._having else None

    def joined(self, whole: Any, state: Any, placed_states: Any) -> Any:
        """In a federated computation: returns the next state.

        Args:
            whole: The complete state before the round.
            state: The state after the round, without the processes' states.
            placed_states: The states of all steps' processes.
        """
        if not self._having:
            return state
        new_states = tff.federated_zip([placed_states[k] for k in self._having])
        return tff.federated_map(self._join, (whole, (state, new_states)))


class EvaluationParts(NamedTuple):
    """The parts of a federated evaluation in TFF, so that sums can be added before decoding.

    Attributes:
        step: (message at the server, client data) -> the sum at the server.
        initialize: () -> the state of the aggregation before its first sum.
        message: (measured values, such as weights; state of the aggregation) -> the message.
        decode: (state, the sum) -> (sum of client outputs, report of the aggregation).
    """

    step: tff.Computation
    initialize: tff.Computation
    message: tff.Computation
    decode: tff.Computation


def build_evaluation_parts(measurement: Measurement, aggregation: Aggregation) -> EvaluationParts:
    """Returns the parts of the computation that `build_measurement` returns."""
    functions = EvaluationFunctions(measurement, aggregation)
    measured_type = type_from_spec(measurement.measured_spec)
    initialize = tff.tensorflow.computation(functions.initialize)
    state_type = initialize.type_signature.result
    message = tff.tensorflow.computation(functions.message, [measured_type, state_type])
    step = placed_step(
        functions.step,
        message.type_signature.result,
        client_type(type_from_spec(measurement.client_data_spec), aggregation),
    ).sum_computation
    sum_type = step.type_signature.result.member
    decode = tff.tensorflow.computation(functions.decode, [state_type, sum_type])
    return EvaluationParts(step, initialize, message, decode)


class EvaluationFunctions:
    """The server's functions before and after the sum of an evaluation.

    Args:
        measurement: The evaluation to run.

    Attributes:
        step: The evaluation with its aggregation.
    """

    def __init__(self, measurement: Measurement, aggregation: Aggregation) -> None:
        self.step = RoundStep(measurement.step, aggregation)

    def initialize(self) -> Any:
        """Returns the state of the aggregation before its first sum."""
        return self.step.initialize()

    def message(self, measured: Any, state: Any) -> Any:
        """Returns the message to every client."""
        return self.step.message(state, measured, tf.zeros([2], tf.int32))

    def decode(self, state: Any, summed: Any) -> tuple[Any, Any]:
        """Returns the decoded sum of client outputs, and the report of the aggregation."""
        _, output, report = self.step.decode(state, summed)
        return output, report


def build_evaluation(
    model: Model, num_domains: int, aggregation: Aggregation = PlainSum()
) -> tff.Computation:
    """Returns a TFF computation: (weights at the server, client data) -> `EvaluationOutput` sum."""
    return build_measurement(model_measurement(model, num_domains), aggregation)


def build_measurement(measurement: Measurement, aggregation: Aggregation) -> tff.Computation:
    """Returns a TFF computation: (measured values at the server, client data) -> summed outputs."""
    functions = EvaluationFunctions(measurement, aggregation)
    measured_type = type_from_spec(measurement.measured_spec)
    client_data_type = client_type(type_from_spec(measurement.client_data_spec), aggregation)

    @tff.tensorflow.computation(measured_type)
    def build_message(measured: Any) -> Any:
        return functions.message(measured, functions.initialize())

    step = placed_step(
        functions.step, build_message.type_signature.result, client_data_type
    ).sum_computation

    @tff.tensorflow.computation(step.type_signature.result.member)
    def decode_sum(summed: Any) -> Any:
        return functions.decode(functions.initialize(), summed)[0]

    @tff.federated_computation(
        tff.FederatedType(measured_type, tff.SERVER),
        tff.FederatedType(client_data_type, tff.CLIENTS),
    )
    def evaluate(measured: Any, client_data: Any) -> Any:
        summed = step(tff.federated_map(build_message, measured), client_data)
        return tff.federated_map(decode_sum, summed)

    return evaluate


def type_from_spec(spec: Any) -> tff.Type:
    """Returns the TFF type of a structure of tensor specs."""
    return tff.to_type(
        tf.nest.map_structure(
            lambda s: tff.TensorType(s.dtype.as_numpy_dtype, s.shape.as_list()), spec
        )
    )


class NumberedClient(NamedTuple):
    """A client's data in TFF if the aggregation numbers clients.

    Attributes:
        examples: The client's examples.
        place: The client's `Place` in the cohort.
    """

    examples: Any
    place: Any


def client_type(examples_type: tff.Type, aggregation: Aggregation) -> tff.Type:
    """Returns the type of a client's data: its examples, or a `NumberedClient`."""
    if not aggregation.numbers_clients:
        return examples_type
    return tff.to_type(NumberedClient(examples_type, Place(np.int32, np.int32)))


class PlacedStep(NamedTuple):
    """A communication step as a TFF computation.

    Attributes:
        sum_computation: (message at the server, client data) -> the sum at the server. Client data
            are the examples, or a pair of the examples and the client's state.
        client_state_type: Type of a client's state after the step; None if clients keep none.
        with_client_state: Like `sum_computation`, but also returns the client states, placed at the
            clients; None if clients keep none.
        process: Process of a placed aggregation, None for other aggregations. With a process,
            `sum_computation` takes a pair of the message and the process state at the server, and
            returns the sum and the next process state.
    """

    sum_computation: tff.Computation
    client_state_type: Optional[tff.Type] = None
    with_client_state: Optional[tff.Computation] = None
    process: Optional[Any] = None

    @property
    def sum_type(self) -> tff.Type:
        """Type of the sum."""
        result = self.sum_computation.type_signature.result
        return (result if self.process is None else result[0]).member

    def called(
        self, message: Any, client_data: Any, client_state: Any, placed_state: Any
    ) -> tuple[Any, Any, Any]:
        """In a federated computation: returns sum, client states and next process state."""
        on_clients = client_data
        if client_state is not None:
            on_clients = tff.federated_zip((client_data, client_state))
        if self.process is not None:
            at_server = tff.federated_zip((message, placed_state))
            both = self.sum_computation(at_server, on_clients)
            return both[0], client_state, both[1]
        if self.with_client_state is None:
            return self.sum_computation(message, on_clients), client_state, None
        both = self.with_client_state(message, on_clients)
        return both[0], both[1], None


def placed_step(
    step: RoundStep,
    message_type: tff.Type,
    client_data_type: tff.Type,
    client_state_type: Optional[tff.Type] = None,
) -> PlacedStep:
    """Returns a communication step in TFF.

    Args:
        step: The step with its aggregation.
        message_type: Type of the message to every client.
        client_data_type: Type of a client's data; see `client_type`.
        client_state_type: Type of a client's state from earlier steps; None if clients keep none.
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
        clients = Clients.from_arrays(client_arrays(examples, state, place))
        result = step.client_work(message, clients)
        return result if keeps else result.output

    def worked(message: Any, client_data: Any) -> Any:
        return tff.federated_map(client_work, (tff.federated_broadcast(message), client_data))

    process = None
    if isinstance(step.aggregation, PlacedAggregation):
        result_type = client_work.type_signature.result
        process = step.aggregation.process(
            result_type.output if keeps else result_type, step.bounds
        )
    if process is not None:
        if keeps:
            raise UserError(
                f"step {step.step.name!r}: expected keeps_client_state=False with an aggregator of "
                "TFF, found True"
            )
        state_type = process.state_type.member

        @tff.federated_computation(
            tff.FederatedType((message_type, state_type), tff.SERVER), at_clients
        )
        def placed_fn(both: Any, client_data: Any) -> Any:
            output = process.next(both[1], worked(both[0], client_data))
            return output.result, output.state

        return PlacedStep(placed_fn, process=process)

    if not keeps:

        @tff.federated_computation(at_server, at_clients)
        def step_fn(message: Any, client_data: Any) -> Any:
            return step.federated_sum(worked(message, client_data), TffSums())

        return PlacedStep(step_fn)

    @tff.federated_computation(at_server, at_clients)
    def keeping_fn(message: Any, client_data: Any) -> Any:
        result = worked(message, client_data)
        return step.federated_sum(result.output, TffSums()), result.state

    # The security checks compile this computation without client states, which never leave clients.
    @tff.federated_computation(at_server, at_clients)
    def sum_fn(message: Any, client_data: Any) -> Any:
        return keeping_fn(message, client_data)[0]

    return PlacedStep(sum_fn, client_work.type_signature.result.state, keeping_fn)
