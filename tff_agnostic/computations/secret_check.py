"""Says whether anything that clients are sent is made of what the server keeps secret.

Noise is made of a secret key, and what is made of noisy sums may be sent. So the key is followed
through the graphs of the server's functions, into those that they call, up to where random numbers
are drawn with it: what comes out there is noise.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.chacha20 import KEYSTREAM
from tff_agnostic.computations.aggregated import AggregatedExchange, AggregatedRound, SumsSoFar
from tff_agnostic.errors import UserError

# Operations, and what functions of our own are called in graphs, whose results are random numbers.
_DRAWS = frozenset({"StatelessRandomNormalV2"})
_DRAWING = re.compile(rf"__inference_{KEYSTREAM}_\d+")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BRANCHES = frozenset({"If", "StatelessIf"})
_LOOPS = frozenset({"While", "StatelessWhile"})


def require_secrets_stay(round_: AggregatedRound, exchanges: Iterable[tff.Computation]) -> None:
    """Checks every message of a round.

    Args:
        round_: The round.
        exchanges: Each exchange by itself, which says what its sum is; see `template.Process`.

    Raises:
        UserError: If a message is made of a secret.
    """
    state_spec = _specs(_traced(round_.initialize).structured_outputs)
    sums = [
        tff.types.type_to_tf_tensor_specs(computation.type_signature.result.member)
        for computation in exchanges
    ]
    step: Callable[..., Any] = round_.start
    arguments: tuple[Any, ...] = (state_spec,)
    so_far: Any = SumsSoFar()
    for k, exchange in enumerate(round_.exchanges):
        traced = _traced(step, *arguments)
        result = traced.structured_outputs
        message, so_far = (result, so_far) if k == 0 else result
        secrets = _secrets(traced.graph, round_, arguments)
        _require_made_of_none(message, traced.graph, secrets, exchange.exchange.name)
        step, arguments = round_.go_on, (state_spec, _specs(so_far), sums[k])


def require_secrets_of_measurement_stay(exchange: AggregatedExchange, measured_spec: Any) -> None:
    """Checks the message of an evaluation; see `require_secrets_stay`.

    Args:
        exchange: The evaluation.
        measured_spec: Spec of what is measured.
    """
    state_spec = _specs(tf.nest.map_structure(tf.convert_to_tensor, exchange.initialize()))

    def message(state: Any, measured: Any) -> Any:
        return exchange.message(state, measured, tf.zeros([2], tf.int32))

    traced = _traced(message, state_spec, measured_spec)
    num_of_state = len(tf.nest.flatten(state_spec))
    state = tf.nest.pack_sequence_as(state_spec, traced.graph.inputs[:num_of_state])
    secrets = exchange.aggregation.secrets(state)
    name = exchange.exchange.name
    _require_made_of_none(traced.structured_outputs, traced.graph, secrets, name)


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def _specs(structure: Any) -> Any:
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure)


def _secrets(
    graph: tf.Graph, round_: AggregatedRound, arguments: tuple[Any, ...]
) -> list[tf.Tensor]:
    num_arguments = len(tf.nest.flatten(arguments))
    state, *rest = tf.nest.pack_sequence_as(arguments, graph.inputs[:num_arguments])
    # Of the state, and of what exchanges before this one left in the round.
    states = [*enumerate(state.aggregations)]
    states += [*enumerate(rest[0].aggregations)] if rest else []
    return [
        secret
        for k, aggregation_state in states
        for secret in round_.exchanges[k].aggregation.secrets(aggregation_state)
    ]


def _require_made_of_none(
    message: Any, graph: tf.Graph, secrets: Sequence[tf.Tensor], exchange: str
) -> None:
    of_inputs = [any(tensor is secret for secret in secrets) for tensor in graph.inputs]
    outputs = [t for t in tf.nest.flatten(message) if isinstance(t, tf.Tensor)]
    if any(_followed(graph, of_inputs, outputs)):
        raise UserError(
            f"exchange {exchange!r}: what clients are sent is made of a secret of the server, such "
            "as the key of its noise"
        )


def _followed(
    graph: tf.Graph, of_inputs: Sequence[bool], outputs: Sequence[tf.Tensor]
) -> list[bool]:
    """Returns which outputs of a graph are made of the inputs that are marked."""
    marked = {id(t) for t, is_marked in zip(graph.inputs, of_inputs) if is_marked}
    # Operations of a graph of a function are in the order in which they were made.
    for op in graph.get_operations():
        of_op = [id(tensor) in marked for tensor in op.inputs]
        if any(of_op) and not _is_draw(op):
            results = _results(op, of_op)
            marked.update(id(t) for t, is_marked in zip(op.outputs, results) if is_marked)
    return [id(tensor) in marked for tensor in outputs]


def _is_draw(op: tf.Operation) -> bool:
    if op.type in _CALLS:
        return _DRAWING.fullmatch(op.get_attr("f").name) is not None
    return op.type in _DRAWS


def _results(op: tf.Operation, of_inputs: list[bool]) -> list[bool]:
    if op.type in _CALLS:
        return _called(op, "f", of_inputs)
    if op.type in _BRANCHES and not of_inputs[0]:
        branches = [_called(op, name, of_inputs[1:]) for name in ("then_branch", "else_branch")]
        return [any(of_branches) for of_branches in zip(*branches)]
    if op.type in _LOOPS:
        return _looped(op, of_inputs)
    return [True] * len(op.outputs)


def _looped(op: tf.Operation, of_inputs: list[bool]) -> list[bool]:
    marks = of_inputs
    while True:
        if any(_called(op, "cond", marks)):
            return [True] * len(marks)
        after = [a or b for a, b in zip(marks, _called(op, "body", marks))]
        if after == marks:
            return marks
        marks = after


def _called(op: tf.Operation, attribute: str, of_inputs: list[bool]) -> list[bool]:
    name = op.get_attr(attribute).name
    function = op.graph._get_function(name)
    graph = function.graph
    return _followed(graph, of_inputs, graph.outputs)
