"""The client's graph for TensorFlow Lite, and its ops that devices lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from plan_runner import plan_pb2
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf

_FLEX = "Flex"
# TensorFlow's ops in On-Device Personalization's build of TensorFlow Lite, next to TFLite's own:
# privacysandbox/odp-federatedcompute, python/taskbuilder/support_ops.csv at commit 015930f.
ODP_FLEX_OPS = frozenset(
    (
        "AnonymousIteratorV3",
        "AsString",
        "BatchDatasetV2",
        "BroadcastGradientArgs",
        "ConcatOffset",
        "ExternalDataset",
        "IteratorGetNextAsOptional",
        "L2Loss",
        "MakeIterator",
        "MapDataset",
        "OptionalGetValue",
        "OptionalHasValue",
        "ParseExampleV2",
        "ReduceDataset",
        "Relu6",
        "ReluGrad",
        "RestoreV2",
        "SaveSlices",
        "ShapeN",
        "Split",
        "StridedSliceGrad",
        "StringToHashBucketFast",
        "TakeDataset",
        "_TensorToHashBucketFast",
    )
)
_DROPOUT = "random numbers of a layer, as of dropout: a model without such layers has none"
_GRADIENT = "the gradient of a layer that has none in TensorFlow Lite"
_FLOAT64 = "--profile=secure quantises in float64, for which TensorFlow Lite has no ops"
_CLIPPED = "--privacy clips in float64, for which TensorFlow Lite has no ops"
_UNKNOWN = "the model or the algorithm needs it"
# Ops of quantisation for secure sums; TFLite has these itself, but for smaller numbers only.
_OF_FLOAT64 = frozenset(
    ("Abs", "DivNoNan", "Floor", "Max", "Maximum", "Minimum", "Mul", "RealDiv", "Relu", "Round")
)
# Further ops of clipping.
_OF_CLIPPING = _OF_FLOAT64 | {
    *("AddN", "AddV2", "Greater", "Less", "SelectV2", "Sqrt", "Square", "Sum")
}
# Reasons, by the beginning of an op's name.
_REASONS = {
    "Stateless": _DROPOUT,
    "Conv": _GRADIENT,
    "DepthwiseConv": _GRADIENT,
    "MaxPoolGrad": _GRADIENT,
    "AvgPoolGrad": _GRADIENT,
}


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


def convert_client_graph(
    graph_def: tf.compat.v1.GraphDef, phase: plan_pb2.ClientPhase
) -> TfLiteGraph:
    """Converts a client's graph; inputs, outputs and target ops keep their names.

    All that TFLite has not itself is a Flex op, the platform's own op too: its client brings a
    kernel for TensorFlow, and resolves no custom op of TFLite.

    Raises:
        ValueError: If ops are left that are neither TFLite's nor TensorFlow's.
    """
    # These modules load TensorFlow.
    from tff_agnostic.deployment.lowering import lowered
    from tff_agnostic.models.tflite_files import (
        compacted,
        custom_op_names,
        in_fixed_order,
        oldest_runtime,
    )

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
    from tensorflow.core.protobuf.struct_pb2 import TensorSpecProto

    return [TensorSpecProto.FromString(spec).name for spec in specs]


def beyond_odp(
    flex_ops: Iterable[str], is_secure: bool, is_private: bool = False
) -> dict[str, str]:
    """Returns the ops that On-Device Personalization's devices lack, and why each is there.

    Args:
        flex_ops: TensorFlow's ops of a graph for devices.
        is_secure: Whether values are quantised for secure sums.
        is_private: Whether values are clipped to a norm.
    """
    of_sums = dict.fromkeys(_OF_CLIPPING, _CLIPPED) if is_private else {}
    of_sums.update(dict.fromkeys(_OF_FLOAT64, _FLOAT64) if is_secure else {})
    beyond = sorted(set(flex_ops) - ODP_FLEX_OPS)
    return {op: of_sums.get(op) or _reason_of_layer(op) for op in beyond}


def check_within_odp(beyond: Mapping[str, str]) -> None:
    """Checks that On-Device Personalization's devices have all ops."""
    if beyond:
        op, reason = next(iter(beyond.items()))
        raise UserError(
            "--require_odp_ops: expected no op that On-Device Personalization's devices lack, "
            f"found {len(beyond)}: {', '.join(beyond)} ({op}: {reason})"
        )


def _reason_of_layer(op: str) -> str:
    return next((reason for start, reason in _REASONS.items() if op.startswith(start)), _UNKNOWN)
