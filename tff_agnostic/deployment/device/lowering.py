"""Ops that devices may lack, in terms of ops that TensorFlow Lite has itself.

Each gives the same numbers, integers to the last bit and floats up to rounding: a device computes
what a simulation does. A `GraphDef` keeps the ops; TFLite's graph gets functions in their place.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Callable, Optional

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.framework import op_def_registry

from tff_agnostic.deployment.device import int64_bits
from tff_agnostic.deployment.device.convolutions import (
    convolution_filter_gradient,
    max_pool_gradient,
)
from tff_agnostic.deployment.device.known_values import Known, KnownValues

# From a node's attributes and what is known of its inputs to a function of these; None if the op
# has to stay.
Lowering = Callable[[Any, Known], Optional[Callable[..., Any]]]

_PREFIX = "lowered"


def tensor_scatter_sub(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Returns a tensor less `updates` at `indices`; updates of one place are summed first."""
    return tensor - tf.scatter_nd(indices, updates, tf.shape(tensor, indices.dtype))


def sparse_softmax_cross_entropy(
    features: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss [n] of scores [n, classes], and its gradient; of other labels it fails."""
    num_classes = tf.shape(features)[1]
    # As the op does; what is not a class would otherwise have no loss.
    classes = tf.gather(tf.range(num_classes), labels)
    is_label = tf.one_hot(classes, num_classes, dtype=features.dtype)
    loss = -tf.reduce_sum(is_label * tf.nn.log_softmax(features), axis=1)
    return loss, tf.nn.softmax(features) - is_label


def _filter_gradient(attr: Any, known: Known) -> Optional[Callable[..., Any]]:
    shape = known[1]
    if shape is None or not _is_of_images(attr) or set(attr["dilations"].list.i) != {1}:
        return None
    return convolution_filter_gradient(shape, attr["strides"].list.i, attr["padding"].s)


def _pool_gradient(attr: Any, known: Known) -> Optional[Callable[..., Any]]:
    if not _is_of_images(attr):
        return None
    return max_pool_gradient(attr["ksize"].list.i, attr["strides"].list.i, attr["padding"].s)


def _is_of_images(attr: Any) -> bool:
    windows = [attr[name].list.i for name in ("strides", "ksize") if name in attr]
    return (
        attr["data_format"].s == b"NHWC"
        and attr["padding"].s in (b"SAME", b"VALID")
        and all(window[0] == window[3] == 1 for window in windows)
    )


# By op and dtype.
LOWERINGS: Mapping[tuple[str, tf.DType], Lowering] = {
    ("BitwiseXor", tf.int64): lambda attr, known: int64_bits.xor,
    ("BitwiseAnd", tf.int64): lambda attr, known: int64_bits.and_with(known[1]),
    ("BitwiseOr", tf.int64): lambda attr, known: int64_bits.or_,
    ("RightShift", tf.int64): lambda attr, known: int64_bits.right_shift_by(known[1]),
    ("TensorScatterSub", tf.float32): lambda attr, known: tensor_scatter_sub,
    ("SparseSoftmaxCrossEntropyWithLogits", tf.float32): (
        lambda attr, known: sparse_softmax_cross_entropy
    ),
    ("Conv2DBackpropFilter", tf.float32): _filter_gradient,
    ("MaxPoolGrad", tf.float32): _pool_gradient,
}


def lowered(graph_def: GraphDef) -> GraphDef:
    """Returns a copy without the ops of `LOWERINGS`, functions' bodies included."""
    result = GraphDef()
    result.CopyFrom(graph_def)
    made: dict[str, Any] = {}
    values = KnownValues(graph_def)
    functions = {function.signature.name: function.node_def for function in result.library.function}
    bodies = {"": result.node, **functions}
    for where in values.functions:
        for node in bodies[where]:
            lowering = LOWERINGS.get((node.op, _dtype(node)))
            if lowering is None:
                continue
            known = values.inputs_of(where, node.name)
            compute = lowering(node.attr, known)
            if compute is None:
                continue
            function = _function(node, compute, known)
            made[function.signature.name] = function
            # An op of a function's name is a call of it.
            node.op = function.signature.name
            node.attr.clear()
    result.library.function.extend(made[name] for name in sorted(made))
    return result


def _function(node: Any, compute: Callable[..., Any], known: Known) -> Any:
    """Returns a function with the inputs and outputs of the node, which computes in its place."""
    definition = op_def_registry.get(node.op)
    dtypes = [
        tf.as_dtype(node.attr[arg.type_attr].type if arg.type_attr else arg.type)
        for arg in definition.input_arg
    ]
    specs = [
        tf.TensorSpec(None, dtype, arg.name) for dtype, arg in zip(dtypes, definition.input_arg)
    ]
    function = tf.function(compute).get_concrete_function(*specs).function_def
    results = [function.ret[output.name] for output in function.signature.output_arg]
    function.ret.clear()
    for output, expected, result in zip(
        function.signature.output_arg, definition.output_arg, results
    ):
        output.name = expected.name
        function.ret[output.name] = result
    # One for the same attributes and constants, which is the same in every process.
    attributes = [(name, str(node.attr[name])) for name in sorted(node.attr)]
    digest = hashlib.sha256(repr([dtypes, attributes, known]).encode()).hexdigest()[:8]
    function.signature.name = f"{_PREFIX}_{node.op}_{digest}"
    return function


def _dtype(node: Any) -> Any:
    # Of some ops it is a list.
    number = node.attr["T"].type if "T" in node.attr else 0
    return tf.as_dtype(number) if number else None
