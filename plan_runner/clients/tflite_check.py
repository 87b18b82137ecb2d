"""Refuses TFLite graphs that could do more than compute, as `graphs.check` does TensorFlow's."""

import struct
from collections.abc import Iterator
from typing import Any

from flatbuffers import flexbuffers
from google.protobuf import message
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.lite.python import schema_py_generated as schema

from plan_runner.errors import PlanError
from plan_runner.graphs.check import Permissions, check_graph

_FLEX = "Flex"
# What a damaged file makes its readers raise.
_DAMAGE = (
    AttributeError,
    IndexError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
    message.DecodeError,
    struct.error,
)


def check_tflite(content: bytes, permissions: Permissions, where: str) -> None:
    """Checks the operations of a flatbuffer.

    TFLite's own compute; of the others each is one of TensorFlow, and has to be one that may be in
    a plan's graph.

    Raises:
        PlanError: If it is damaged, or there is an operation that is not allowed.
    """
    try:
        graph = _as_graph(content, where)
    except _DAMAGE as e:
        if isinstance(e, PlanError):
            raise
        raise PlanError(f"{where}: expected a flatbuffer of TFLite, found a damaged one") from e
    check_graph(graph, permissions, where)


def _as_graph(content: bytes, where: str) -> graph_pb2.GraphDef:
    """Returns TensorFlow's operations of a flatbuffer; a placeholder is what the caller feeds."""
    model = schema.Model.GetRootAs(content, 0)
    graph = graph_pb2.GraphDef()
    main = model.Subgraphs(0)
    names = _fed(model, main, where)
    for name in names.values():
        graph.node.add(name=name.partition(":")[0], op="Placeholder")
    for number in range(model.SubgraphsLength()):
        subgraph = model.Subgraphs(number)
        if number == 0:
            body = graph.node
        else:
            function = graph.library.function.add()
            function.signature.name = subgraph.Name().decode()
            body = function.node_def
        for position, (operator, node) in enumerate(_flex_nodes(model, subgraph, where)):
            del node.input[:]
            if number == 0:
                inputs = [int(operator.Inputs(i)) for i in range(operator.InputsLength())]
                node.input.extend(names.get(index, f"computed_{index}") for index in inputs)
            node.name = f"{node.op}_{number}_{position}"
            body.append(node)
    return graph


def _fed(model: Any, main: Any, where: str) -> dict[int, str]:
    """Returns the names of the tensors that the caller feeds, by their number.

    What they hold is what is fed: an operation that writes into one of them, or a value that the
    file has for it, could be another path than the one that is checked.
    """
    names: dict[int, str] = {}
    for index in (int(main.Inputs(i)) for i in range(main.InputsLength())):
        tensor = main.Tensors(index)
        if index in names:
            raise PlanError(f"{where}: expected every input once, found {names[index]} again")
        names[index] = tensor.Name().decode()
        buffer = model.Buffers(tensor.Buffer())
        # Newer files may keep values behind the flatbuffer.
        elsewhere = [getattr(buffer, part, int)() for part in ("Offset", "Size")]
        if buffer.DataLength() or any(elsewhere) or tensor.IsVariable():
            raise PlanError(f"{where}: {names[index]}: expected an input, found a value for it")
    for position in range(main.OperatorsLength()):
        operator = main.Operators(position)
        written = {int(operator.Outputs(i)) for i in range(operator.OutputsLength())}
        written |= {int(operator.Intermediates(i)) for i in range(operator.IntermediatesLength())}
        for index in sorted(written & set(names)):
            raise PlanError(
                f"{where}: {names[index]}: expected no operation that writes into an input, found "
                "one"
            )
    return names


def _flex_nodes(
    model: Any, subgraph: Any, where: str
) -> Iterator[tuple[Any, node_def_pb2.NodeDef]]:
    for position in range(subgraph.OperatorsLength()):
        operator = subgraph.Operators(position)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) != schema.BuiltinOperator.CUSTOM:
            continue
        name = (code.CustomCode() or b"").decode()
        if not name.startswith(_FLEX):
            raise PlanError(f"{where}: {name} is neither an op of TFLite nor one of TensorFlow")
        # TFLite would take these, and the others are what is checked.
        if any(
            getattr(operator, f"LargeCustomOptions{part}", int)() for part in ("Offset", "Size")
        ):
            raise PlanError(f"{where}: {name}: expected its options in it, found some elsewhere")
        options = flexbuffers.GetRoot(operator.CustomOptionsAsNumpy().tobytes()).AsVector
        node = node_def_pb2.NodeDef.FromString(options[1].AsStringBytes)
        if {options[0].AsString, node.op} != {name[len(_FLEX) :]}:
            raise PlanError(
                f"{where}: expected {name[len(_FLEX) :]} in its options, found {node.op}"
            )
        yield operator, node
