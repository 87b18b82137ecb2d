"""Graphs whose bytes depend only on the computation, and their checkpoints.

TensorFlow and Keras give functions, layers and nodes numbers that depend on the process. This
module renames nodes by op and position, and functions by order of their first use.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import tensorflow_writes
from tff_agnostic.base.later import tf, tff
from tff_agnostic.computations.round import tensor_specs
from tff_agnostic.computations.tff_process import type_from_spec

# Prefixes of the names in checkpoints, as in the platform's tools.
SERVER = "server"
CLIENT = "client"
UPDATE = "update"
INTERMEDIATE_UPDATE = "intermediate_update"
AGGREGATED_UPDATE = "aggregated_update"
INTERMEDIATE_STATE = "intermediate_state"
METRICS = "metrics"
# Characters that TensorFlow rejects in the name of a node.
_NOT_IN_NODES = re.compile(r"[^A-Za-z0-9_.\\/>-]")
# Attributes with names of other nodes, or with numbers that depend on the process.
_NOTES = ("_class", "_gradient_op_type")


def file_path(name: str) -> tf.Tensor:
    """Returns a placeholder for the path of a file, a string scalar."""
    return tf.compat.v1.placeholder(tf.string, shape=(), name=name)


def restore(path: tf.Tensor, specs: Sequence[tf.TensorSpec], name: str) -> list[tf.Tensor]:
    """Returns tensors of a checkpoint, with the names, dtypes and shapes of `specs`."""
    if not specs:
        return []
    restored = tf.raw_ops.RestoreV2(
        prefix=path,
        tensor_names=[spec.name for spec in specs],
        shape_and_slices=[""] * len(specs),
        dtypes=[spec.dtype for spec in specs],
        name=name,
    )
    # Set the shapes, which the graph needs, by `reshape`, as TFLite has no op for `ensure_shape`.
    return [tf.reshape(tensor, spec.shape) for tensor, spec in zip(restored, specs)]


def save(
    path: tf.Tensor, specs: Sequence[tf.TensorSpec], tensors: Sequence[tf.Tensor], name: str
) -> tf.Operation:
    """Returns the op that writes tensors to a checkpoint in the table format of TensorFlow 1."""
    return tf.raw_ops.SaveSlices(
        filename=path,
        tensor_names=[spec.name for spec in specs],
        shapes_and_slices=[""] * len(specs),
        data=list(tensors),
        name=name,
    )


def finished(graph: tf.Graph, needed: Iterable[str]) -> tf.compat.v1.GraphDef:
    """Returns the part of a graph that some nodes need, with names independent of the process.

    Args:
        needed: Names of the nodes to run, fetch or feed.
    """
    return with_renamed_functions(_pruned(graph.as_graph_def(), needed), "function")


def _pruned(graph_def: tf.compat.v1.GraphDef, needed: Iterable[str]) -> tf.compat.v1.GraphDef:
    by_name = {node.name: node for node in graph_def.node}
    reached: set[str] = set()
    waiting = list(needed)
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name not in reached:
            reached.add(name)
            waiting.extend(by_name[name].input)
    pruned = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    pruned.node.extend(node for node in graph_def.node if node.name in reached)
    return pruned


def serialized_spec(spec: tf.TensorSpec) -> bytes:
    """Returns a serialised TensorSpecProto."""
    return bytes(spec.experimental_as_proto().SerializeToString(deterministic=True))


def node_spec(tensor: tf.Tensor) -> bytes:
    """Returns the serialised TensorSpecProto of a graph's tensor."""
    return serialized_spec(tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name))


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One tensor of a structure.

    Attributes:
        path: Field names and positions from the root of the structure to the tensor, separated by
            "/".
    """

    path: str
    dtype: tf.DType
    shape: tf.TensorShape

    def named(self, prefix: str) -> tf.TensorSpec:
        """Returns the spec of the tensor under its name in a checkpoint."""
        name = f"{prefix}/{node_name(self.path)}" if self.path else prefix
        return tf.TensorSpec(self.shape, self.dtype, name)


def leaves(structure: tff.Type) -> tuple[Leaf, ...]:
    """Returns the tensors of an unplaced type, in TFF's order."""
    result = tuple(_leaves(structure, ()))
    paths: dict[str, str] = {}
    for leaf in result:
        other = paths.setdefault(node_name(leaf.path), leaf.path)
        if other != leaf.path:
            raise UserError(
                "export: expected names that differ after _ replaces spaces and similar, found "
                f"{other!r} and {leaf.path!r}"
            )
    return result


def node_name(path: str) -> str:
    """Converts a path to a valid name of a node, with _ instead of other characters."""
    return _NOT_IN_NODES.sub("_", path)


def named(structure: Iterable[Leaf], prefix: str) -> list[tf.TensorSpec]:
    """Returns the specs of tensors under their names in a checkpoint."""
    return [leaf.named(prefix) for leaf in structure]


def leaf_names(state: Any) -> list[str]:
    """Returns the names of a state's tensors in a checkpoint, in the order of `tf.nest.flatten`."""
    names = [leaf.name for leaf in named(leaves(type_from_spec(tensor_specs(state))), SERVER)]
    # TFF's order differs from TensorFlow's if the state contains mappings.
    numbered = tf.nest.pack_sequence_as(state, list(range(len(names))))
    order = tff.structure.flatten(tff.structure.from_container(numbered, recursive=True))
    name_by_number = dict(zip(order, names))
    return [name_by_number[number] for number in range(len(names))]


def only_element(structure: tff.Type) -> tff.Type:
    """Returns a structure's only element; a structure with several elements is unchanged."""
    elements = [element for _, element in tff.structure.iter_elements(structure)]
    return elements[0] if len(elements) == 1 else structure


def side_channel_names(intrinsic_uri: str, structure: Sequence[Leaf]) -> list[str]:
    """Returns the names of securely summed tensors in the graphs, without the output index."""
    prefix = f"sidechannel_secagg_{intrinsic_uri}_{UPDATE}"
    return [spec.name for spec in named(structure, prefix)]


def _leaves(structure: tff.Type, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(structure, tff.StructType):
        for index, (name, element) in enumerate(tff.structure.iter_elements(structure)):
            yield from _leaves(element, (*path, name or str(index)))
    elif isinstance(structure, tff.TensorType):
        yield Leaf("/".join(path), tf.as_dtype(structure.dtype), tf.TensorShape(structure.shape))
    else:
        raise TypeError(f"expected a structure of tensors, found {structure} at {'/'.join(path)}")


def with_renamed_nodes(
    graph_def: tf.compat.v1.GraphDef,
) -> tuple[tf.compat.v1.GraphDef, dict[str, str]]:
    """Returns a copy with node names that depend only on the graph, and a map to these names."""
    new_names = _numbered(graph_def.node)
    renamed = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        copy = renamed.node.add()
        copy.CopyFrom(node)
        _rename_node(copy, new_names)
    return renamed, new_names


def with_renamed_functions(graph_def: tf.compat.v1.GraphDef, prefix: str) -> tf.compat.v1.GraphDef:
    """Returns a copy in which names of functions, and names in them, depend only on the graph.

    Also removes unused functions, and attributes that depend on the process.

    Args:
        prefix: Prefix of the functions' names.
    """
    by_name = {function.signature.name: function for function in graph_def.library.function}
    new_names: dict[str, str] = {}

    def visit(nodes: Any) -> None:
        for name in _called(nodes, by_name):
            if name not in new_names:
                new_names[name] = f"{prefix}_{len(new_names)}"
                visit(by_name[name].node_def)

    visit(graph_def.node)
    renamed = tf.compat.v1.GraphDef(versions=graph_def.versions, node=graph_def.node)
    for old, new in new_names.items():
        function = renamed.library.function.add()
        function.CopyFrom(by_name[old])
        function.signature.name = new
        _rename_inside(function)
    for node in [*renamed.node, *(n for f in renamed.library.function for n in f.node_def)]:
        _rename_calls(node, new_names)
        node.ClearField("experimental_debug_info")
        for note in _NOTES:
            node.attr.pop(note, None)
    return renamed


def _numbered(nodes: Any) -> dict[str, str]:
    return {node.name: f"{node.op}_{index}" for index, node in enumerate(nodes)}


def _rename_node(node: Any, new_names: Mapping[str, str]) -> None:
    """Renames a node and its inputs, of the forms NAME, ^NAME, NAME:0 and NAME:output:0."""
    node.name = new_names[node.name]
    node.input[:] = [_renamed(name, new_names) for name in node.input]


def _renamed(reference: str, new_names: Mapping[str, str]) -> str:
    control = "^" if reference.startswith("^") else ""
    name, colon, output = reference[len(control) :].partition(":")
    return f"{control}{new_names[name]}{colon}{output}"


def _rename_inside(function: Any) -> None:
    signature = function.signature
    arguments = {arg.name: f"arg_{i}" for i, arg in enumerate(signature.input_arg)}
    results = {arg.name: f"result_{i}" for i, arg in enumerate(signature.output_arg)}
    controls = {name: f"control_{i}" for i, name in enumerate(signature.control_output)}
    new_names = {**_numbered(function.node_def), **arguments}
    for arg in signature.input_arg:
        arg.name = arguments[arg.name]
    for arg in signature.output_arg:
        arg.name = results[arg.name]
    signature.control_output[:] = [controls[name] for name in signature.control_output]
    for node in function.node_def:
        _rename_node(node, new_names)
    _rename_map(function.ret, results, lambda reference: _renamed(reference, new_names))
    _rename_map(function.control_ret, controls, lambda name: new_names[name])
    for attributes in function.arg_attr.values():
        # Drop the user's name for the argument, which TensorFlow records.
        attributes.attr.pop("_user_specified_name", None)


def _rename_map(entries: Any, new_keys: Mapping[str, str], renamed: Any) -> None:
    before = dict(entries)
    entries.clear()
    for key, value in before.items():
        entries[new_keys[key]] = renamed(value)


def _called(nodes: Any, by_name: Mapping[str, Any]) -> Iterator[str]:
    for node in nodes:
        if node.op in by_name:
            yield node.op
        for key in sorted(node.attr):
            value = node.attr[key]
            for function in [value.func, *value.list.func]:
                if function.name in by_name:
                    yield function.name


def _rename_calls(node: Any, new_names: Mapping[str, str]) -> None:
    node.op = new_names.get(node.op, node.op)
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            value.func.name = new_names.get(value.func.name, value.func.name)
        elif kind == "list":
            for function in value.list.func:
                function.name = new_names.get(function.name, function.name)


def named_values(value: Any, structure: Sequence[Leaf], prefix: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a TFF value, keyed by their names in checkpoints."""
    flat = tff.structure.flatten(tff.structure.from_container(value, recursive=True))
    return {
        spec.name: np.asarray(array, spec.dtype.as_numpy_dtype)
        for spec, array in zip(named(structure, prefix), flat)
    }


def write_checkpoint(path: Path, values: dict[str, np.ndarray]) -> None:
    """Writes a checkpoint; raises an OSError if it cannot."""
    with tensorflow_writes():
        tf.raw_ops.SaveSlices(
            filename=str(path),
            tensor_names=list(values),
            shapes_and_slices=[""] * len(values),
            data=list(values.values()),
        )


def checkpoint_bytes(specs: Sequence[tf.TensorSpec]) -> int:
    """Returns the size in bytes of a checkpoint with these tensors, filled with zeros."""
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype.as_numpy_dtype) for spec in specs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        write_checkpoint(path, zeros)
        return path.stat().st_size
