"""The client's graph for TensorFlow Lite, which the platform's client runs by default."""

import dataclasses
from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

from plan_runner import plan_pb2
from tff_agnostic.deployment.device.flatbuffer import (
    compacted,
    custom_op_names,
    in_fixed_order,
    oldest_runtime,
)
from tff_agnostic.deployment.device.lowering import lowered

_FLEX = "Flex"


@dataclasses.dataclass(frozen=True)
class TfLiteGraph:
    """A converted graph.

    Attributes:
        content: The flatbuffer.
        flex_ops: TensorFlow's ops in it, for which the client needs the Flex delegate.
        oldest_runtime: Version of the first TFLite that has all the others.
    """

    content: bytes
    flex_ops: tuple[str, ...]
    oldest_runtime: str


def convert_client_graph(graph_def: GraphDef, phase: plan_pb2.ClientPhase) -> TfLiteGraph:
    """Converts a client's graph; inputs, outputs and target ops keep their names.

    All that TFLite has not itself is a Flex op, the platform's own op too: its client brings a
    kernel for TensorFlow, and resolves no custom op of TFLite.

    Raises:
        ValueError: If ops are left that are neither TFLite's nor TensorFlow's.
    """
    spec = phase.tensorflow_spec
    # The platform's client looks inputs up by these names, and takes outputs in this order.
    inputs = [spec.dataset_token_tensor_name, *_names(spec.input_tensor_specs)]
    converter = tf.compat.v1.lite.TFLiteConverter(
        lowered(graph_def),
        None,
        None,
        input_arrays_with_shape=[(name, []) for name in inputs],
        output_arrays=_names(spec.output_tensor_specs),
    )
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    # Otherwise only the ops that TensorFlow's own builds for devices have become Flex ops.
    converter._experimental_allow_all_select_tf_ops = True
    # There is no public way to keep an op without output: one that saves.
    converter._control_output_arrays = list(spec.target_node_names) or None
    outputs = _names(spec.output_tensor_specs)
    content = in_fixed_order(compacted(converter.convert(), outputs))
    custom = custom_op_names(content)
    others = [name for name in custom if not name.startswith(_FLEX)]
    if others:
        raise ValueError(f"TFLite: expected builtin and Flex ops, found {', '.join(others)}")
    flex_ops = tuple(name[len(_FLEX) :] for name in custom)
    return TfLiteGraph(content, flex_ops, oldest_runtime(content))


def _names(specs: Iterable[bytes]) -> list[str]:
    return [TensorSpecProto.FromString(spec).name for spec in specs]
