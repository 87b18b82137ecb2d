"""Static checks of compiled rounds: sums are secure, and broadcasts contain no secret.

The checks verify an aggregation's guarantees on compiled steps before anything runs. They fail
closed: a guarantee without a check raises an error, as does a failed check. They do not cover what
a sum itself reveals, for example if only one client has examples of a domain.

Noise derives from a secret key. A broadcast may depend on noisy sums, but not on the key itself.
The checks therefore follow the key through the graphs of the server's functions, and of all called
functions, and stop at random draws, whose results are noise.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from tff_agnostic.aggregations.aggregation import Aggregation, SecurityProperty
from tff_agnostic.aggregations.chacha20 import KEYSTREAM
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.computations.clients import Clients, Place, client_arrays
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.computations.round import (
    Round,
    RoundProgress,
    RoundStep,
    tensor_specs,
    traced_specs,
)
from tff_agnostic.computations.tff_process import (
    EvaluationFunctions,
    Process,
    build_measurement,
    build_process,
)

# The intrinsics of this package's secure sums. No other intrinsic is considered secure.
SECURE_SUMS = frozenset({"federated_secure_sum_bitwidth", "federated_secure_modular_sum"})
# Random draws in graphs: types of operations, and names of this package's functions.
_DRAWS = frozenset({"StatelessRandomNormalV2"})
_DRAWING = re.compile(rf"__inference_{KEYSTREAM}_\d+")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BRANCHES = frozenset({"If", "StatelessIf"})
_LOOPS = frozenset({"While", "StatelessWhile"})


@dataclasses.dataclass(frozen=True)
class SecurityReport:
    """The values that clients send to the server in a compiled round, by kind of sum.

    Attributes:
        plain: Types of the values in plain sums, by path; empty for a secure round.
        secure: Types of the values in secure sums, by path.
    """

    plain: tuple[str, ...]
    secure: tuple[str, ...]

    @classmethod
    def combined(cls, reports: Mapping[str, SecurityReport]) -> SecurityReport:
        """Combines the reports of several steps, by name; a single report stays unchanged."""
        if len(reports) == 1:
            return next(iter(reports.values()))

        def named(name: str, values: tuple[str, ...]) -> list[str]:
            return [f"{name}: {value}" for value in values]

        return cls(
            plain=tuple(v for name, r in reports.items() for v in named(name, r.plain)),
            secure=tuple(v for name, r in reports.items() for v in named(name, r.secure)),
        )

    @property
    def is_secure(self) -> bool:
        """Whether only secure sums reach the server."""
        return not self.plain

    def summary(self) -> str:
        """Returns a one-line summary for users."""
        if self.is_secure:
            return f"all {len(self.secure)} values of a client reach the server in secure sums only"
        return f"{len(self.plain)} values of a client reach the server outside secure sums: " + (
            ", ".join(self.plain)
        )


def security_report(computation: tff.Computation) -> SecurityReport:
    """Compiles a round and reports how each value of a client reaches the server.

    The round is compiled to TFF's `MapReduceForm`. In this form a client's work returns four parts:
    one for plain sums, and one for each kind of secure sum. Other communication between clients and
    server cannot be compiled.

    Args:
        computation: (value at the server, client data) -> values at the server, such as a learning
            process's `next` or an evaluation.

    Raises:
        TypeError: If `computation` has another form.
        ValueError: If TFF's compiler cannot reduce its communication to sums.
    """
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        _in_two_results(computation), without_graph_optimization()
    )
    plain, *secure = form.work.type_signature.result
    return SecurityReport(
        plain=tuple(_leaves(plain, "")),
        secure=tuple(leaf for part in secure for leaf in _leaves(part, "")),
    )


def require_only_secure_sums(computation: tff.Computation) -> SecurityReport:
    """Returns a computation's report; raises a `UserError` unless it sends only secure sums."""
    report = security_report(computation)
    if not report.is_secure:
        names = _names_in_plain_aggregations(computation)
        where = f"; in the source: {', '.join(names)}" if names else ""
        raise UserError(f"secure aggregation is required, but {report.summary()}{where}")
    return report


def require_no_plain_sums(computation: tff.Computation) -> None:
    """Raises a `UserError` if a plain aggregation occurs in the source of a computation.

    This searches the source, as TFF's forms do not support computations of several steps.
    """
    names: list[str] = []

    def visit(block: Any) -> tuple[Any, bool]:
        if _is_plain_aggregation(block):
            names.append(block.uri)
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    if names:
        raise UserError(
            f"secure aggregation is required, but the round has {', '.join(sorted(set(names)))}"
        )


def _names_in_plain_aggregations(computation: tff.Computation) -> list[str]:
    # If a sum has a single value, the value has no name in the compiled form. The source still has
    # the name if it selects the value from a client's result, as in
    # `tff.federated_sum(result["loss"])`.
    names: list[str] = []

    def visit(block: Any) -> tuple[Any, bool]:
        if isinstance(block, tff.framework.Call) and _is_plain_aggregation(block.function):
            names.extend(_selected_name(block.argument))
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    return names


def _is_plain_aggregation(block: Any) -> bool:
    # Accept only an intrinsic itself, as the function of a call may also be a reference.
    return (
        isinstance(block, tff.framework.Intrinsic)
        and block.uri not in SECURE_SUMS
        and isinstance(block.type_signature, tff.FunctionType)
        and _is_placed(block.type_signature.parameter, tff.CLIENTS)
        and _is_placed(block.type_signature.result, tff.SERVER)
    )


def _is_placed(value_type: tff.Type, placement: Any) -> bool:
    # Some intrinsics take several arguments, such as a weighted mean, or
    # an aggregation by functions.
    if isinstance(value_type, tff.StructType):
        elements = tff.structure.iter_elements(value_type)
        return any(_is_placed(element, placement) for _, element in elements)
    return isinstance(value_type, tff.FederatedType) and value_type.placement is placement


def _selected_name(block: Any) -> Iterator[str]:
    # TFF implements the selection of a field from a federated structure as a map.
    if not isinstance(block, tff.framework.Call) or not isinstance(
        block.argument, tff.framework.Struct
    ):
        return
    mapped = block.argument[0]
    if isinstance(mapped, tff.framework.Lambda) and isinstance(
        mapped.result, tff.framework.Selection
    ):
        selection = mapped.result
        elements = tff.structure.to_elements(selection.source.type_signature)
        name = selection.name or elements[selection.index][0]
        if name is not None:
            yield name


def _in_two_results(computation: tff.Computation) -> tff.Computation:
    # The compiled form requires computations that return an updated state and an output.
    result = computation.type_signature.result
    server_type, client_type = computation.type_signature.parameter
    has_several = isinstance(result, tff.StructType)
    if has_several and server_type.is_assignable_from(result[0]):
        return computation

    @tff.federated_computation(server_type, client_type)
    def with_state(server_value: Any, client_data: Any) -> Any:
        output = computation(server_value, client_data)
        # A step with a TFF aggregator has two results: the sum, and the aggregator's next state.
        return server_value, tff.federated_zip(output) if has_several else output

    return with_state


def _leaves(value_type: tff.Type, path: str) -> Iterator[str]:
    if isinstance(value_type, tff.StructType):
        for index, (name, element) in enumerate(tff.structure.iter_elements(value_type)):
            # Omit indices of the unnamed tuples in which the compiler wraps each part.
            step = name or (str(index) if len(value_type) > 1 else "")
            yield from _leaves(element, f"{path}.{step}".strip(".") if step else path)
    else:
        yield f"{path} ({value_type})" if path else str(value_type)


def require_secrets_stay(round_: Round) -> None:
    """Checks, without TFF, that no broadcast of a round depends on a secret."""
    state_spec = tensor_specs(_traced(round_.initialize).structured_outputs)
    function: Callable[..., Any] = round_.start
    arguments: tuple[Any, ...] = (state_spec,)
    progress: Any = RoundProgress()
    client_state: Any = ()
    for k, step in enumerate(round_.steps):
        traced = _traced(function, *arguments)
        result = traced.structured_outputs
        message, progress = (result, progress) if k == 0 else result
        secrets = _secrets(traced.graph, round_, arguments)
        _require_independence(message, traced.graph, secrets, step.step.name)
        if k < len(round_.steps) - 1:
            message_spec = tensor_specs(message)
            result_specs = _client_result_specs(
                step, message_spec, round_.client_data_spec, client_state
            )
            if step.step.keeps_client_state:
                client_state = result_specs.state
            # A sum has the shapes of one client's output.
            function = round_.next_step
            arguments = (state_spec, tensor_specs(progress), result_specs.output)


def _client_result_specs(
    step: RoundStep, message_spec: Any, examples_spec: Any, client_state_spec: Any
) -> Any:
    """Returns the specs of a client's output and state, a `ClientResult`."""
    number = tf.TensorSpec([], tf.int32)
    place = Place(number, number) if step.aggregation.numbers_clients else ()

    def work(message: Any, examples: Any, state: Any, place: Any) -> Any:
        return step.client_work(message, Clients.from_arrays(client_arrays(examples, state, place)))

    return traced_specs(work, message_spec, dict(examples_spec), client_state_spec, place)


def require_measurement_secrets_stay(step: RoundStep, measured_spec: Any) -> None:
    """Checks the broadcast of an evaluation; see `require_secrets_stay`.

    Args:
        step: The evaluation.
        measured_spec: Spec of the measured values.
    """
    state_spec = tensor_specs(tf.nest.map_structure(tf.convert_to_tensor, step.initialize()))

    def message(state: Any, measured: Any) -> Any:
        return step.message(state, measured, tf.zeros([2], tf.int32))

    traced = _traced(message, state_spec, measured_spec)
    num_state = len(tf.nest.flatten(state_spec))
    state = tf.nest.pack_sequence_as(state_spec, traced.graph.inputs[:num_state])
    secrets = step.aggregation.secrets(state)
    _require_independence(traced.structured_outputs, traced.graph, secrets, step.step.name)


def _traced(function: Callable[..., Any], *arguments: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def _secrets(graph: tf.Graph, round_: Round, arguments: tuple[Any, ...]) -> list[tf.Tensor]:
    num_arguments = len(tf.nest.flatten(arguments))
    state, *rest = tf.nest.pack_sequence_as(arguments, graph.inputs[:num_arguments])
    # Secrets are in aggregation states from before the round, and in those after its earlier steps.
    states = [*enumerate(state.aggregations)]
    states += [*enumerate(rest[0].aggregations)] if rest else []
    return [
        secret
        for k, aggregation_state in states
        for secret in round_.steps[k].aggregation.secrets(aggregation_state)
    ]


def _require_independence(
    message: Any, graph: tf.Graph, secrets: Sequence[tf.Tensor], step: str
) -> None:
    is_secret = [any(tensor is secret for secret in secrets) for tensor in graph.inputs]
    outputs = [t for t in tf.nest.flatten(message) if isinstance(t, tf.Tensor)]
    if any(_followed(graph, is_secret, outputs)):
        raise UserError(
            f"step {step!r}: the broadcast depends on a secret of the server, such as the key of "
            "its noise"
        )


def _followed(
    graph: tf.Graph, is_marked: Sequence[bool], outputs: Sequence[tf.Tensor]
) -> list[bool]:
    """Returns whether each output of a graph depends on a marked input."""
    marked = {id(t) for t, mark in zip(graph.inputs, is_marked) if mark}
    # A function graph lists operations in the order of their creation, so inputs come first.
    for op in graph.get_operations():
        marked_inputs = [id(tensor) in marked for tensor in op.inputs]
        if any(marked_inputs) and not _is_draw(op):
            results = _results(op, marked_inputs)
            marked.update(id(t) for t, mark in zip(op.outputs, results) if mark)
    return [id(tensor) in marked for tensor in outputs]


def _is_draw(op: tf.Operation) -> bool:
    if op.type in _CALLS:
        return _DRAWING.fullmatch(op.get_attr("f").name) is not None
    return op.type in _DRAWS


def _results(op: tf.Operation, is_marked: list[bool]) -> list[bool]:
    if op.type in _CALLS:
        return _called(op, "f", is_marked)
    if op.type in _BRANCHES and not is_marked[0]:
        branches = [_called(op, name, is_marked[1:]) for name in ("then_branch", "else_branch")]
        return [any(results) for results in zip(*branches)]
    if op.type in _LOOPS:
        return _looped(op, is_marked)
    return [True] * len(op.outputs)


def _looped(op: tf.Operation, is_marked: list[bool]) -> list[bool]:
    marks = is_marked
    while True:
        if any(_called(op, "cond", marks)):
            return [True] * len(marks)
        after = [a or b for a, b in zip(marks, _called(op, "body", marks))]
        if after == marks:
            return marks
        marks = after


def _called(op: tf.Operation, attribute: str, is_marked: list[bool]) -> list[bool]:
    name = op.get_attr(attribute).name
    function = op.graph._get_function(name)
    graph = function.graph
    return _followed(graph, is_marked, graph.outputs)


# The check of each property on a compiled step; raises a `UserError` for a violation.
CHECKS: Mapping[SecurityProperty, Callable[[tff.Computation], SecurityReport]] = {
    SecurityProperty.SECURE_SUMS: require_only_secure_sums,
}
# The checks of properties that concern a round's functions.
ROUND_CHECKS: Mapping[SecurityProperty, Callable[[Round], None]] = {
    SecurityProperty.SECRET_NOISE: require_secrets_stay,
}


def check_rounds(algorithm: Algorithm, aggregation: Aggregation) -> Optional[SecurityReport]:
    """Checks the guarantees of rounds; compiles them for TFF only if a guarantee requires it.

    See `check_process`.
    """
    if aggregation.guarantees - ROUND_CHECKS.keys():
        return check_process(aggregation, build_process(algorithm, aggregation))
    _check_round(aggregation, Round(algorithm, aggregation))
    return None


def _check_round(aggregation: Aggregation, round_: Round) -> None:
    for guarantee in aggregation.guarantees & ROUND_CHECKS.keys():
        ROUND_CHECKS[guarantee](round_)


def check_process(aggregation: Aggregation, process: Process) -> Optional[SecurityReport]:
    """Checks the guarantees of an algorithm's rounds in TFF; see `check_guarantees`.

    A round with one step is compiled completely. TFF's form does not support several steps, so each
    step is compiled separately, and the round's source is searched for other communication.
    """
    _check_round(aggregation, process.round_)
    if aggregation.guarantees <= ROUND_CHECKS.keys():
        return None
    next_ = process.learning_process.next
    if len(process.steps) == 1:
        return check_guarantees(aggregation, dict.fromkeys(process.steps, next_))
    report = check_guarantees(aggregation, process.steps)
    if SecurityProperty.SECURE_SUMS in aggregation.guarantees:
        require_no_plain_sums(next_)
    return report


def check_measurement(aggregation: Aggregation, measurement: Measurement) -> None:
    """Checks the guarantees of an evaluation; see `check_guarantees`."""
    if SecurityProperty.SECRET_NOISE in aggregation.guarantees:
        step = EvaluationFunctions(measurement, aggregation).step
        require_measurement_secrets_stay(step, measurement.measured_spec)
    if aggregation.guarantees - ROUND_CHECKS.keys():
        computation = build_measurement(measurement, aggregation)
        check_guarantees(aggregation, {measurement.step.name: computation})


def check_guarantees(
    aggregation: Aggregation, steps: Mapping[str, tff.Computation]
) -> Optional[SecurityReport]:
    """Checks every step against all guarantees of an aggregation.

    Args:
        aggregation: The aggregation that declares the guarantees.
        steps: Computations (value at the server, client data) -> value at the server, by name;
            together they contain all communication.

    Returns:
        Report of the values that reach the server; None without guarantees.
    """
    reports = {}
    step_guarantees = aggregation.guarantees - ROUND_CHECKS.keys()
    for guarantee in sorted(step_guarantees, key=lambda g: g.value):
        check = CHECKS.get(guarantee)
        if check is None:
            raise UserError(
                f"aggregation {aggregation.name} declares {guarantee.value!r}, but no check of it "
                "is registered: refusing to run"
            )
        for name, computation in steps.items():
            try:
                reports[name] = check(computation)
            except UserError as e:
                raise UserError(f"step {name!r}: {e}") from e
    return SecurityReport.combined(reports) if reports else None


def without_graph_optimization() -> tf.compat.v1.ConfigProto:
    """Returns a configuration that keeps TFF from optimising a form's graphs.

    Optimisation takes seconds for large models, and each process that runs the graph repeats it.
    TFLite's converter also rejects the lowered conditionals of optimised graphs.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config
