"""Refuses graphs that could do more than compute: reach files, processes or other hosts."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.graphs import ops
from plan_runner.graphs.bounds import check_bounds
from plan_runner.graphs.messages import tensor_name

_NEVER_CONSTANT = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)


@dataclasses.dataclass(frozen=True)
class Permissions:
    """What a graph may do besides computing.

    Attributes:
        reads: Names of the tensors that hold the paths of files it may read.
        writes: The same of files it may write.
        fed: Names of the other tensors whose values a run replaces: constants of the plan, sums,
            the token of examples.
        examples: Whether it asks for a client's examples, by one ExternalDataset.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    examples: bool = False

    @classmethod
    def of_client(cls, phase: plan_pb2.ClientPhase) -> "Permissions":
        """Returns what the graphs of a client may do, TensorFlow's and TFLite's."""
        spec, router = phase.tensorflow_spec, phase.federated_compute
        written = router.output_filepath_tensor_name
        return cls(
            reads=frozenset([tensor_name(router.input_filepath_tensor_name)]),
            writes=frozenset([tensor_name(written)] if written else []),
            fed=frozenset(
                map(tensor_name, [spec.dataset_token_tensor_name, *spec.constant_inputs])
            ),
            examples=True,
        )


def check_graph(graph: tf.compat.v1.GraphDef, permissions: Permissions, where: str) -> None:
    """Checks the operations of a graph and of the functions in it.

    Raises:
        PlanError: If there is one that TensorFlow does not know, or that is not allowed, or the
            graph is out of bounds; see `bounds`.
    """
    check_bounds(graph, where)
    functions = {function.signature.name for function in graph.library.function}
    for name in sorted(functions):
        if op_def_registry.get(name) is not None:
            raise PlanError(f"{where}: function {name}: expected a name of its own, it is an op's")
    nodes = {node.name: node for node in graph.node}
    if len(nodes) != len(graph.node):
        raise PlanError(f"{where}: expected nodes of different names, found one twice")
    external = [node for node in graph.node if node.op == ops.EXTERNAL_DATASET]
    if len(external) != int(permissions.examples):
        raise PlanError(
            f"{where}: expected {int(permissions.examples)} ExternalDataset, found {len(external)}"
        )
    _check_fed(nodes, permissions, where)
    for node in graph.node:
        if node.op in ops.READS_FILE:
            _check_path(node, permissions.reads, where)
        elif node.op in ops.WRITES_FILE:
            _check_path(node, permissions.writes, where)
        elif node.op != ops.EXTERNAL_DATASET:
            _check_node(node, functions, where)
    for function in graph.library.function:
        place = f"{where}: function {function.signature.name}"
        for node in function.node_def:
            _check_node(node, functions, place)
    for gradient in graph.library.gradient:
        _check_functions([gradient.gradient_func], functions, f"{where}: gradients")


def _check_fed(nodes: Mapping[str, Any], permissions: Permissions, where: str) -> None:
    """Checks that what is fed are placeholders, and that each path is fed as a path only.

    A value that is fed takes the place of whatever computes the tensor, a path as well.
    """
    paths = permissions.reads | permissions.writes
    for name in sorted(paths | permissions.fed):
        # By this very name: TensorFlow takes "x:00" for "x:0", and one of both would win.
        node, _, output = name.rpartition(":")
        # One that the graph has not cannot be fed, which its session finds.
        if node in nodes and (output != "0" or nodes[node].op not in ops.PLACEHOLDERS):
            raise PlanError(f"{where}: expected a placeholder for {name!r}, which is fed")
        if name in paths and name in permissions.fed:
            raise PlanError(
                f"{where}: expected a path for {name!r} only, another value is fed, too"
            )


def _check_path(node: Any, allowed: frozenset[str], where: str) -> None:
    """Checks that a file operation's path is a fed one, with nothing in between.

    `_check_fed` has found a placeholder behind each of the names that are allowed.
    """
    path = next((name for name in node.input if not name.startswith("^")), "")
    if tensor_name(path) not in allowed:
        raise PlanError(
            f"{where}: {node.name}: {node.op} is refused: its path is not one that the plan names"
        )


def _check_node(node: Any, functions: Iterable[str], where: str) -> None:
    place = f"{where}: {node.name}"
    # Whatever the operation's definition says of them: no attribute names other functions.
    for value in node.attr.values():
        called = [value.func, *value.list.func]
        _check_functions([function.name for function in called], functions, place)
    if node.op in functions:
        return
    definition = op_def_registry.get(node.op)
    if definition is None:
        raise PlanError(f"{place}: {node.op} is refused: this TensorFlow does not know it")
    problem = next(_problems(node, definition), None)
    if problem:
        raise PlanError(f"{place}: {node.op} is refused: {problem}")


def _problems(node: Any, definition: Any) -> Iterator[str]:
    if node.op.startswith("_"):
        yield "it is internal to TensorFlow"
    if definition.is_stateful and not ops.is_stateful_allowed(node.op):
        yield "it reaches outside the graph, or is not known not to"
    if node.op not in ops.STRING_INPUTS and not ops.is_stateful_allowed(node.op):
        for argument in definition.input_arg:
            if argument.type == types_pb2.DT_STRING:
                yield f"its input {argument.name} may name a file"
    for attribute in definition.attr:
        if attribute.type not in ("string", "list(string)"):
            continue
        if attribute.name in ops.STRING_VALUES:
            found = node.attr[attribute.name].s if attribute.name in node.attr else b""
            if found not in ops.STRING_VALUES[attribute.name]:
                yield f"its attribute {attribute.name} is none of those known"
        elif attribute.name not in ops.STRING_ATTRIBUTES:
            yield f"its attribute {attribute.name} may name a file or code"
    # Such constants are objects that TensorFlow would decode from the graph.
    if node.op == "Const" and _dtype(node) in _NEVER_CONSTANT:
        yield "it is no constant of numbers or strings"


def _dtype(node: Any) -> int:
    # Asking a map of messages for what it lacks would add it.
    return int(node.attr["dtype"].type) if "dtype" in node.attr else types_pb2.DT_INVALID


def _check_functions(found: Iterable[str], functions: Iterable[str], where: str) -> None:
    for name in found:
        # Some operations have branches that may be absent.
        if name and name not in functions:
            raise PlanError(f"{where}: expected a function of the graph's own, found {name!r}")
