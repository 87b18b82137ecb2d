"""TensorFlow's own messages in a plan, and refusals of those too large."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saver_pb2, struct_pb2

from plan_runner.errors import PlanError, reason
from plan_runner.export import TensorType
from plan_runner.plan_messages import parse_foreign

# Bytes of all constants of a graph, unpacked: larger ones belong into a checkpoint.
_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class NamedTensor:
    """A tensor's name and type; the name is that in a graph or in a checkpoint."""

    name: str
    kind: TensorType


def graph_of(packed: any_pb2.Any, where: str) -> tf.compat.v1.GraphDef:
    """Returns the graph in a message that may hold anything."""
    return parse_foreign(tf.compat.v1.GraphDef, unpacked(packed, "GraphDef", where), where)


def unpacked(packed: any_pb2.Any, kind: str, where: str) -> bytes:
    """Returns the bytes in a message that may hold anything but has to hold that of TensorFlow."""
    if packed.type_url.rpartition("/")[2] != f"tensorflow.{kind}":
        raise PlanError(f"{where}: expected tensorflow.{kind}, found {packed.type_url!r}")
    return packed.value


def tensor_spec(content: bytes, where: str) -> NamedTensor:
    """Reads a TensorSpecProto."""
    spec = parse_foreign(struct_pb2.TensorSpecProto, content, where)
    if not spec.name or spec.shape.unknown_rank or not spec.dtype:
        raise PlanError(f"{where}: expected a tensor's name, dtype and shape, found a part of it")
    shape: list[Optional[int]] = [d.size if d.size >= 0 else None for d in spec.shape.dim]
    return NamedTensor(spec.name, TensorType(dtype_name(spec.dtype, where), tuple(shape)))


def tensor_specs(contents: Sequence[bytes], where: str) -> dict[str, NamedTensor]:
    """Reads TensorSpecProtos; returns them by name, in their order."""
    specs: dict[str, NamedTensor] = {}
    for content in contents:
        spec = tensor_spec(content, where)
        if spec.name in specs:
            raise PlanError(f"{where}: expected {spec.name} once, found it again")
        specs[spec.name] = spec
    return specs


def constants(contents: Mapping[str, bytes], where: str) -> dict[str, np.ndarray]:
    """Reads TensorProtos."""
    values = {}
    for name, content in contents.items():
        proto = parse_foreign(tensor_pb2.TensorProto, content, f"{where}: {name}")
        check_tensor(proto, f"{where}: {name}")
        try:
            values[tensor_name(name)] = tf.make_ndarray(proto)
        except (TypeError, ValueError) as e:
            raise PlanError(f"{where}: {name}: expected a tensor, found {reason(e)}") from e
    return values


def saver_def(content: bytes, where: str) -> saver_pb2.SaverDef:
    """Reads the SaverDef of a checkpoint that is one file."""
    saver = parse_foreign(saver_pb2.SaverDef, content, where)
    if saver.version not in (saver_pb2.SaverDef.LEGACY, saver_pb2.SaverDef.V1) or saver.sharded:
        raise PlanError(f"{where}: expected a saver of one file (version 1), found another")
    if not saver.filename_tensor_name:
        raise PlanError(f"{where}: expected the part filename_tensor_name, found none")
    return saver


def dtype_name(number: int, where: str) -> str:
    """Returns TensorFlow's name of a DataType."""
    try:
        return str(tf.as_dtype(number).name)
    except TypeError as e:
        raise PlanError(f"{where}: expected a DataType of TensorFlow, found {number}") from e


def tensor_name(name: str) -> str:
    """Returns the full name of a tensor; that of an operation alone means its first output."""
    return name if not name or ":" in name else f"{name}:0"


def check_bounds(graph: tf.compat.v1.GraphDef, where: str) -> None:
    """Checks the constants of a graph, and that none of its functions calls itself."""
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
    """Checks the size of one TensorProto."""
    if tensor_bytes(tensor) > _MOST_BYTES:
        raise PlanError(f"{where}: expected a constant of at most 1 GiB, found a larger one")


def tensor_bytes(tensor: Any) -> int:
    """Returns the size of a TensorProto's value, however few bytes say what it is."""
    sizes = [max(0, dimension.size) for dimension in tensor.tensor_shape.dim]
    try:
        width = tf.as_dtype(tensor.dtype).size or 1
    except TypeError:
        # The constructor of the value reports an unknown type.
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
