"""Refuses graphs that are small files and large in memory, or that never end by themselves."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from plan_runner.errors import PlanError

# Of all constants of a graph, unpacked: what is larger belongs into a checkpoint.
_MOST_BYTES = 1 << 30


def check_bounds(graph: tf.compat.v1.GraphDef, where: str) -> None:
    """Checks the constants of a graph, and that none of its functions calls itself.

    Raises:
        PlanError: If the constants are larger than 1 GiB, or a function leads back to itself.
    """
    total = 0
    for place, node in _nodes(graph):
        for tensor in _tensors(node):
            total += tensor_bytes(tensor)
            if total > _MOST_BYTES:
                raise PlanError(
                    f"{where}: {place}{node.name}: expected constants of at most 1 GiB in a graph, "
                    "found more"
                )
    called = {
        function.signature.name: _called(function.node_def) for function in graph.library.function
    }
    circle = _circle(called)
    if circle:
        raise PlanError(f"{where}: function {circle}: expected one that ends, it calls itself")


def check_tensor(tensor: Any, where: str) -> None:
    """Checks the size of one TensorProto.

    Raises:
        PlanError: If its value is larger than 1 GiB.
    """
    if tensor_bytes(tensor) > _MOST_BYTES:
        raise PlanError(f"{where}: expected a constant of at most 1 GiB, found a larger one")


def tensor_bytes(tensor: Any) -> int:
    """Returns the size of a TensorProto's value, however few bytes say what it is."""
    sizes = [max(0, dimension.size) for dimension in tensor.tensor_shape.dim]
    try:
        width = tf.as_dtype(tensor.dtype).size or 1
    except TypeError:
        # Whoever makes the value says that there is no such type.
        width = 1
    return math.prod(sizes) * width


def _nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    for node in graph.node:
        yield "", node
    for function in graph.library.function:
        for node in function.node_def:
            yield f"function {function.signature.name}: ", node


def _tensors(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        if value.HasField("tensor"):
            yield value.tensor
        yield from value.list.tensor


def _called(nodes: Iterable[Any]) -> set[str]:
    """Returns the names of the functions that nodes call, or of ops, which are none."""
    names = {node.op for node in nodes}
    for node in nodes:
        for value in node.attr.values():
            names.update(function.name for function in [value.func, *value.list.func])
    return names


def _circle(called: Mapping[str, set[str]]) -> str:
    """Returns a function that leads back to itself, or "" if there is none."""
    done: set[str] = set()
    for start in called:
        # Without recursion: a chain of functions may be longer than Python's stack.
        path: list[tuple[str, Iterator[str]]] = [("", iter([start]))]
        open_names: set[str] = set()
        while path:
            for name in path[-1][1]:
                if name in open_names:
                    return name
                if name in called and name not in done:
                    open_names.add(name)
                    path.append((name, iter(sorted(called[name]))))
                    break
            else:
                left, _ = path.pop()
                open_names.discard(left)
                done.add(left)
    return ""
