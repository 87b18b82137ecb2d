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
    names = {}
    for i in range(main.InputsLength()):
        index = int(main.Inputs(i))
        names[index] = main.Tensors(index).Name().decode()
        graph.node.add(name=names[index].partition(":")[0], op="Placeholder")
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
        options = flexbuffers.GetRoot(operator.CustomOptionsAsNumpy().tobytes()).AsVector
        node = node_def_pb2.NodeDef.FromString(options[1].AsStringBytes)
        if {options[0].AsString, node.op} != {name[len(_FLEX) :]}:
            raise PlanError(
                f"{where}: expected {name[len(_FLEX) :]} in its options, found {node.op}"
            )
        yield operator, node
