"""What is known of a graph's tensors before it runs: constants, and fixed shapes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

# Of the inputs of a node, the values of those that are known.
Known = Sequence[Optional[np.ndarray]]

# Ops whose last inputs are those of the functions that they call.
_CALLS = ("Case", "If", "PartitionedCall", "While")
_KINDS_OF_CALLS = ("", "Stateful", "Stateless")


class KnownValues:
    """What is known of the inputs of the nodes of a graph and of its functions.

    A function's arguments have the shapes that its callers have in common; of a function that
    datasets call, none is known.
    """

    def __init__(self, graph_def: GraphDef) -> None:
        functions = {function.signature.name: function for function in graph_def.library.function}
        shapes: dict[str, list[tf.TensorShape]] = {}
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
            self._bodies = {"": graph}
            waiting = [graph]
            while waiting:
                for called, arguments in _calls(waiting.pop(), functions):
                    before = shapes.get(called)
                    shapes[called] = _in_common(before, arguments)
                    if before is None or _differ(before, shapes[called]):
                        body = function_def_to_graph(functions[called], None, shapes[called])
                        self._bodies[called] = body
                        waiting.append(body)

    @property
    def functions(self) -> Collection[str]:
        """Names of the functions that something calls, and "", the graph itself."""
        return self._bodies.keys()

    def inputs_of(self, function: str, node: str) -> Known:
        """Returns what is known of a node's inputs; `function` is "" for the graph itself."""
        operation = self._bodies[function].get_operation_by_name(node)
        return [_value(tensor) for tensor in operation.inputs]


def _calls(
    graph: tf.Graph, functions: Mapping[str, Any]
) -> Iterator[tuple[str, list[tf.TensorShape]]]:
    """Yields the functions that a graph's ops call, and the shapes of their arguments."""
    for op in graph.get_operations():
        for attribute in op.node_def.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name in functions:
                    number = len(functions[called.name].signature.input_arg)
                    yield called.name, _argument_shapes(op, number)


def _argument_shapes(op: tf.Operation, number: int) -> list[tf.TensorShape]:
    if op.type not in [kind + call for kind in _KINDS_OF_CALLS for call in _CALLS]:
        return [tf.TensorShape(None)] * number
    shapes = [tensor.shape for tensor in op.inputs[len(op.inputs) - number :]]
    if op.type.endswith("While"):
        # A variable of a loop may change its shape.
        return _in_common(shapes, [tensor.shape for tensor in op.outputs])
    return shapes


def _in_common(
    known: Optional[Sequence[tf.TensorShape]], shapes: Sequence[tf.TensorShape]
) -> list[tf.TensorShape]:
    if known is None:
        return list(shapes)
    return [a.most_specific_compatible_shape(b) for a, b in zip(known, shapes)]


def _differ(one: Sequence[tf.TensorShape], other: Sequence[tf.TensorShape]) -> bool:
    return [str(shape) for shape in one] != [str(shape) for shape in other]


def _value(tensor: tf.Tensor) -> Optional[np.ndarray]:
    if tensor.op.type == "ShapeN":
        shape = tensor.op.inputs[tensor.value_index].shape
        is_known = shape.is_fully_defined()
        return np.array(shape.as_list(), tensor.dtype.as_numpy_dtype) if is_known else None
    value = tf.get_static_value(tensor)
    return None if value is None else np.asarray(value)
