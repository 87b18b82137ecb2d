"""Replaces ops that TensorFlow Lite or devices lack by TFLite's own ops.

The replaced ops are bitwise ops on int64, gradients of convolutions and of maximum pooling on
images [n, height, width, channels], and others. The replacements compute the same integers, and the
same floats up to rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.later import tf

# Ops whose last inputs are arguments of the functions that they call.
_CALLS = ("Case", "If", "PartitionedCall", "While")
_CALL_KINDS = ("", "Stateful", "Stateless")
_BITS = 64
_HALF = 32
_LOWEST_INT64 = -(2**63)
_LARGEST = 2**63 - 1
# Value of each bit of an int64; the last bit is the sign.
_POWERS = [2**k for k in range(_BITS - 1)] + [_LOWEST_INT64]
_LOWEST = float(np.finfo(np.float32).min)
_PREFIX = "lowered"

# Values of a node's inputs by position; None if unknown.
KnownInputs = Sequence[Optional[np.ndarray]]


class KnownValues:
    """Inputs with known values, for each node in a graph and in its functions.

    A function's argument has a known shape if all callers agree on it, and no dataset calls the
    function.
    """

    def __init__(self, graph_def: tf.compat.v1.GraphDef) -> None:
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

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
        """Names of the called functions, and "" for the graph itself."""
        return self._bodies.keys()

    def known_inputs(self, function: str, node: str) -> KnownInputs:
        """Returns a node's inputs with known values; `function` is "" for the graph itself."""
        operation = self._bodies[function].get_operation_by_name(node)
        return [_value(tensor) for tensor in operation.inputs]


def _calls(
    graph: tf.Graph, functions: Mapping[str, Any]
) -> Iterator[tuple[str, list[tf.TensorShape]]]:
    """Yields (name, shapes of the arguments) of each function call in a graph."""
    for op in graph.get_operations():
        for attribute in op.node_def.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name in functions:
                    number = len(functions[called.name].signature.input_arg)
                    yield called.name, _argument_shapes(op, number)


def _argument_shapes(op: tf.Operation, number: int) -> list[tf.TensorShape]:
    if op.type not in [kind + call for kind in _CALL_KINDS for call in _CALLS]:
        return [tf.TensorShape(None)] * number
    shapes = [tensor.shape for tensor in op.inputs[len(op.inputs) - number :]]
    if op.type.endswith("While"):
        # Variables of a loop may change their shapes.
        return _in_common(shapes, [tensor.shape for tensor in op.outputs])
    return shapes


def _in_common(
    inputs: Optional[Sequence[tf.TensorShape]], shapes: Sequence[tf.TensorShape]
) -> list[tf.TensorShape]:
    if inputs is None:
        return list(shapes)
    return [a.most_specific_compatible_shape(b) for a, b in zip(inputs, shapes)]


def _differ(one: Sequence[tf.TensorShape], other: Sequence[tf.TensorShape]) -> bool:
    return [str(shape) for shape in one] != [str(shape) for shape in other]


def _value(tensor: tf.Tensor) -> Optional[np.ndarray]:
    if tensor.op.type == "ShapeN":
        shape = tensor.op.inputs[tensor.value_index].shape
        is_known = shape.is_fully_defined()
        return np.array(shape.as_list(), tensor.dtype.as_numpy_dtype) if is_known else None
    value = tf.get_static_value(tensor)
    return None if value is None else np.asarray(value)


BinaryOp = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def lower_xor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the bitwise exclusive or, computed on 32-bit halves."""
    halves = tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int32), tf.bitcast(y, tf.int32))
    return tf.bitcast(halves, tf.int64)


def lower_or(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the bitwise or."""
    return _from_bits(tf.logical_or(_to_bits(x), _to_bits(y)))


def and_with(mask: Optional[np.ndarray]) -> BinaryOp:
    """Returns the function for a bitwise and; it has fewer ops for a known mask of low bits."""
    constant = _scalar(mask)
    if constant == _LARGEST:
        return lambda x, y: _without_sign(x)
    if constant is not None and constant > 0 and constant & (constant + 1) == 0:
        return lambda x, y: tf.math.floormod(x, tf.constant(constant + 1, tf.int64))
    return lambda x, y: _from_bits(tf.logical_and(_to_bits(x), _to_bits(y)))


def right_shift_by(amount: Optional[np.ndarray]) -> BinaryOp:
    """Returns the function for an arithmetic right shift; it has fewer ops for a known amount."""
    constant = _scalar(amount)
    if constant is None or not 0 < constant < _BITS:
        return _bits_shift
    return lambda x, y: _halves_shift(x, constant)


def _halves_shift(x: tf.Tensor, amount: int) -> tf.Tensor:
    halves = tf.bitcast(x, tf.int32)
    low, high = halves[..., 0], halves[..., 1]
    if amount > _HALF:
        high = tf.bitwise.right_shift(high, amount - _HALF)
    if amount >= _HALF:
        return tf.cast(high, tf.int64)
    # Shift the low half as an unsigned number, so that zeros are shifted in, not its highest bit.
    shifted = tf.bitcast(tf.bitwise.right_shift(tf.bitcast(low, tf.uint32), amount), tf.int32)
    return tf.cast(high, tf.int64) * 2 ** (_HALF - amount) + tf.cast(shifted, tf.int64)


def _bits_shift(x: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    taken = tf.minimum(tf.range(_BITS) + tf.cast(amount, tf.int32), _BITS - 1)
    return _from_bits(tf.gather(_to_bits(x), taken, axis=-1))


def _without_sign(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x < 0, x - _LOWEST_INT64, x)


def _to_bits(x: tf.Tensor) -> tf.Tensor:
    """Returns the bits of numbers [...], bool [..., 64]."""
    x = tf.expand_dims(x, -1)
    # The moduli of the two highest bits, 2^63 and 2^64, exceed int64.
    low = tf.math.floormod(x, tf.constant(_POWERS[1:-1], tf.int64)) >= _POWERS[:-2]
    return tf.concat([low, _without_sign(x) >= _POWERS[-2], x < 0], axis=-1)


def _from_bits(bits: tf.Tensor) -> tf.Tensor:
    zero = tf.constant(0, tf.int64)
    return tf.reduce_sum(tf.where(bits, tf.constant(_POWERS, tf.int64), zero), axis=-1)


def _scalar(value: Optional[np.ndarray]) -> Optional[int]:
    return None if value is None or value.size != 1 else int(value.item())


Gradient = Callable[["tf.Tensor", "tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def convolution_filter_gradient(
    shape: Iterable[int], strides: Sequence[int], padding: bytes
) -> Gradient:
    """Returns the function of `Conv2DBackpropFilter`: a matrix product per position of the filter.

    Args:
        shape: Shape of the filter: height, width, input channels, output channels.
        strides: Strides of the convolution in the four dimensions.
        padding: Padding of the convolution, VALID or SAME.
    """
    height, width, channels, filters = map(int, shape)
    stride = list(strides[1:3])

    def gradient(images: tf.Tensor, filter_shape: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        del filter_shape
        span = _span(outputs, stride)
        before, after = _margins(images, span, (height, width), padding)
        images = _with_margins(images, before, after, 0.0)
        outputs = tf.reshape(outputs, [-1, filters])
        at_places = [
            tf.matmul(tf.reshape(pixels, [-1, channels]), outputs, transpose_a=True)
            for _, pixels in _window_offsets(images, (height, width), span, stride)
        ]
        return tf.reshape(tf.stack(at_places), [height, width, channels, filters])

    return gradient


def max_pool_gradient(sizes: Sequence[int], strides: Sequence[int], padding: bytes) -> Gradient:
    """Returns the function of `MaxPoolGrad`; the first of equal maxima gets the gradient."""
    height, width = sizes[1:3]
    stride = list(strides[1:3])

    def gradient(images: tf.Tensor, maxima: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        size, span = tf.shape(images)[1:3], _span(maxima, stride)
        before, after = _margins(images, span, (height, width), padding)
        images = _with_margins(images, before, after, _LOWEST)
        # `is_open` is 1 for a window whose maximum is still to be found, otherwise 0. `sums` is the
        # gradient of each pixel.
        is_open, sums = tf.ones_like(maxima), tf.zeros_like(images)
        for place, pixels in _window_offsets(images, (height, width), span, stride):
            is_first = tf.where(tf.equal(pixels, maxima), is_open, tf.zeros_like(is_open))
            is_open -= is_first
            spread = _spread(is_first * outputs, stride)[:, : span[0], : span[1]]
            rest = tf.shape(images)[1:3] - span - place
            sums += _with_margins(spread, tf.constant(place, tf.int32), rest, 0.0)
        end = before + size
        return sums[:, before[0] : end[0], before[1] : end[1]]

    return gradient


def _span(outputs: tf.Tensor, stride: Sequence[int]) -> tf.Tensor:
    """Returns the number of pixels from the start of the first window to the start of the last."""
    return (tf.shape(outputs)[1:3] - 1) * stride + 1


def _window_offsets(
    images: tf.Tensor, size: Sequence[int], span: tf.Tensor, stride: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tf.Tensor]]:
    """Yields each offset within a window, row by row, with its pixels in all windows."""
    for row, column in np.ndindex(*size):
        rows = slice(row, row + span[0], stride[0])
        columns = slice(column, column + span[1], stride[1])
        yield (row, column), images[:, rows, columns]


def _margins(
    images: tf.Tensor, span: tf.Tensor, size: Sequence[int], padding: bytes
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the padding, (height, width), before images and after images."""
    if padding == b"VALID":
        none = tf.zeros([2], tf.int32)
        return none, none
    missing = tf.maximum(span + size - 1 - tf.shape(images)[1:3], 0)
    before = missing // 2
    return before, missing - before


def _with_margins(
    images: tf.Tensor, before: tf.Tensor, after: tf.Tensor, value: float
) -> tf.Tensor:
    none = tf.zeros([1, 2], tf.int32)
    margins = tf.concat([none, tf.stack([before, after], axis=1), none], axis=0)
    return tf.pad(images, margins, constant_values=value)


def _spread(images: tf.Tensor, stride: Sequence[int]) -> tf.Tensor:
    """Inserts `stride - 1` zeros after each row and each column."""
    shape = tf.shape(images)
    n, height, width, channels = (shape[axis] for axis in range(4))
    # Pad one dimension at a time: TFLite pads four dimensions at most.
    columns = tf.reshape(images, [n * height, width, 1, channels])
    columns = tf.pad(columns, [[0, 0], [0, 0], [0, stride[1] - 1], [0, 0]])
    rows = tf.reshape(columns, [n, height, 1, width * stride[1] * channels])
    rows = tf.pad(rows, [[0, 0], [0, 0], [0, stride[0] - 1], [0, 0]])
    return tf.reshape(rows, [n, height * stride[0], width * stride[1], channels])


# Called with a node's attributes and known inputs; returns the replacement, a function of the
# inputs. None keeps the op.
Lowering = Callable[[Any, KnownInputs], Optional[Callable[..., Any]]]


def tensor_scatter_sub(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Returns a tensor minus the summed `updates` at `indices`."""
    return tensor - tf.scatter_nd(indices, updates, tf.shape(tensor, indices.dtype))


def sparse_softmax_cross_entropy(
    features: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss [n] of scores [n, classes], and its gradient; fails for invalid labels."""
    num_classes = tf.shape(features)[1]
    # `gather` fails for invalid labels, as the original op does.
    classes = tf.gather(tf.range(num_classes), labels)
    is_label = tf.one_hot(classes, num_classes, dtype=features.dtype)
    loss = -tf.reduce_sum(is_label * tf.nn.log_softmax(features), axis=1)
    return loss, tf.nn.softmax(features) - is_label


def _filter_gradient(attr: Any, inputs: KnownInputs) -> Optional[Callable[..., Any]]:
    shape = inputs[1]
    if shape is None or not _has_images(attr) or set(attr["dilations"].list.i) != {1}:
        return None
    return convolution_filter_gradient(shape, attr["strides"].list.i, attr["padding"].s)


def _pool_gradient(attr: Any, inputs: KnownInputs) -> Optional[Callable[..., Any]]:
    if not _has_images(attr):
        return None
    return max_pool_gradient(attr["ksize"].list.i, attr["strides"].list.i, attr["padding"].s)


def _has_images(attr: Any) -> bool:
    windows = [attr[name].list.i for name in ("strides", "ksize") if name in attr]
    return (
        attr["data_format"].s == b"NHWC"
        and attr["padding"].s in (b"SAME", b"VALID")
        and all(window[0] == window[3] == 1 for window in windows)
    )


# Replacements by op and dtype.
LOWERINGS: Mapping[tuple[str, str], Lowering] = {
    ("BitwiseXor", "int64"): lambda attr, inputs: lower_xor,
    ("BitwiseAnd", "int64"): lambda attr, inputs: and_with(inputs[1]),
    ("BitwiseOr", "int64"): lambda attr, inputs: lower_or,
    ("RightShift", "int64"): lambda attr, inputs: right_shift_by(inputs[1]),
    ("TensorScatterSub", "float32"): lambda attr, inputs: tensor_scatter_sub,
    ("SparseSoftmaxCrossEntropyWithLogits", "float32"): (
        lambda attr, inputs: sparse_softmax_cross_entropy
    ),
    ("Conv2DBackpropFilter", "float32"): _filter_gradient,
    ("MaxPoolGrad", "float32"): _pool_gradient,
}


def lowered(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Replaces the ops of `LOWERINGS` in a copy of a graph and of its functions."""
    result = tf.compat.v1.GraphDef()
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
            inputs = values.known_inputs(where, node.name)
            compute = lowering(node.attr, inputs)
            if compute is None:
                continue
            function = _function(node, compute, inputs)
            made[function.signature.name] = function
            # An op with the name of a function calls the function.
            node.op = function.signature.name
            node.attr.clear()
    result.library.function.extend(made[name] for name in sorted(made))
    return result


def _function(node: Any, compute: Callable[..., Any], inputs: KnownInputs) -> Any:
    """Returns a function that replaces a node, with the same inputs and outputs."""
    from tensorflow.python.framework import op_def_registry

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
    # Name the function by a digest, which does not depend on the process.
    attributes = [(name, str(node.attr[name])) for name in sorted(node.attr)]
    digest = hashlib.sha256(repr([dtypes, attributes, inputs]).encode()).hexdigest()[:8]
    function.signature.name = f"{_PREFIX}_{node.op}_{digest}"
    return function


def _dtype(node: Any) -> Any:
    # For some ops the attribute T is a list.
    number = node.attr["T"].type if "T" in node.attr else 0
    return tf.as_dtype(number).name if number else None
