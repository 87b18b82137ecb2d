"""Feeds a client's examples to its graph, which reads them with ExternalDataset."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from plan_runner import graph_check, kernel, plan_pb2
from plan_runner.errors import PlanError
from plan_runner.graph_messages import tensor_name
from plan_runner.plan_messages import check_parts, parse

_EXAMPLES = "plan_runner_examples"
# Nothing is left that reads it where a stand-in takes the op's place.
_UNREAD_TOKEN = b"plan_runner"


class ExamplesFeed(abc.ABC):
    """Gives examples to a graph.

    Args:
        token: Name of the tensor that is fed the token of the device's datasets.
    """

    def __init__(self, token: str) -> None:
        self._token = tensor_name(token)

    @abc.abstractmethod
    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Turns a checked graph into one that a session runs; returns its example selector."""

    @abc.abstractmethod
    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the values to feed, by the names of tensors."""


class ThroughToken(ExamplesFeed):
    """Leaves the graph unchanged: the op's kernel takes the examples from the token."""

    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Checks the selector; see `ExamplesFeed`."""
        return _asked_for(graph, where)[1]

    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the token; see `ExamplesFeed`."""
        return {self._token: kernel.token_of(examples)}


class StandIn(ExamplesFeed):
    """Puts a dataset over fed examples in the place of the one node that needs a kernel."""

    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Replaces the node; see `ExamplesFeed`."""
        node, selector = _asked_for(graph, where)
        if any(other.name == _EXAMPLES for other in graph.node):
            raise PlanError(f"{where}: expected no node {_EXAMPLES}, found one")
        placeholder = graph.node.add(name=_EXAMPLES, op="Placeholder")
        placeholder.attr["dtype"].type = tf.string.as_datatype_enum
        placeholder.attr["shape"].shape.CopyFrom(tf.TensorShape([None]).as_proto())
        control = [name for name in node.input if name.startswith("^")]
        name = node.name
        node.Clear()
        node.name, node.op = name, "TensorSliceDataset"
        node.input.extend([_EXAMPLES, *control])
        node.attr["Toutput_types"].list.type.append(tf.string.as_datatype_enum)
        node.attr["output_shapes"].list.shape.append(tf.TensorShape([]).as_proto())
        return selector

    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the examples, and an unused token; see `ExamplesFeed`."""
        return {_EXAMPLES: np.array(list(examples), dtype=object), self._token: _UNREAD_TOKEN}


def examples_feed(token: str) -> ExamplesFeed:
    """Returns the kernel's way where there is one, and the stand-in's otherwise."""
    return StandIn(token) if kernel.kernel_problem() else ThroughToken(token)


def _asked_for(graph: tf.compat.v1.GraphDef, where: str) -> tuple[Any, plan_pb2.ExampleSelector]:
    """Returns the one node of the op, and its selector, which selects an app's examples."""
    nodes = {node.name: node for node in graph.node}
    node = next(node for node in graph.node if node.op == graph_check.EXTERNAL_DATASET)
    inputs = [name for name in node.input if not name.startswith("^")]
    if len(inputs) != 2:
        raise PlanError(f"{where}: {node.name}: expected a token and a selector, found {inputs}")
    return node, _selector(
        nodes, inputs[1], f"{where}: the selector of {graph_check.EXTERNAL_DATASET}"
    )


def _selector(nodes: Any, name: str, where: str) -> plan_pb2.ExampleSelector:
    node = nodes.get(tensor_name(name).rpartition(":")[0])
    if node is None or node.op != "Const" or not node.attr["value"].tensor.string_val:
        raise PlanError(f"{where}: expected a constant string, found {name!r}")
    content = node.attr["value"].tensor.string_val[0]
    selector = parse(plan_pb2.ExampleSelector, content, where)
    check_parts(selector, where, ("collection_uri",))
    if not selector.collection_uri.startswith("app:/"):
        raise PlanError(f"{where}: expected app:/..., found {selector.collection_uri!r}")
    return selector
