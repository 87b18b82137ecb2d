"""Operations that TensorFlow Lite or devices lack, in terms of TFLite's own ops.

Each replacement computes the same numbers, integers to the last bit and floats up to rounding: a
device computes what a simulation does. A `GraphDef` keeps the ops; TFLite's graph gets functions in
their place:

- bitwise ops on int64, which TFLite lacks, as it lacks int32's exclusive or and shift to the right;
- gradients of convolutions and of maximum pooling. Images are [n, height, width, channels]. A
  window that reaches over the edge (SAME) is cut out of an image with a margin, so that every
  window is whole;
- other ops that devices may lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.later import tf

# Ops that pass their last inputs to the functions that they call.
_CALLS = ("Case", "If", "PartitionedCall", "While")
_KINDS_OF_CALLS = ("", "Stateful", "Stateless")
_BITS = 64
_HALF = 32
_LOWEST_INT64 = -(2**63)
_LARGEST = 2**63 - 1
# The value of each bit; the last one is the sign.
_POWERS = [2**k for k in range(_BITS - 1)] + [_LOWEST_INT64]
_LOWEST = float(np.finfo(np.float32).min)
_PREFIX = "lowered"

# Known values of a node's inputs, by position.
Known = Sequence[Optional[np.ndarray]]


class KnownValues:
    """Known inputs of the nodes of a graph and of its functions.

    A function's arguments have the shapes that its callers have in common; of a function that
    datasets call, none is known.
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
        """Names of the functions that something calls, and "", the graph itself."""
        return self._bodies.keys()

    def inputs_of(self, function: str, node: str) -> Known:
        """Returns the known inputs of a node; `function` is "" for the graph itself."""
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


BinaryOp = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def lower_xor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the exclusive or, of halves."""
    halves = tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int32), tf.bitcast(y, tf.int32))
    return tf.bitcast(halves, tf.int64)


def lower_or(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the or, bit by bit."""
    return _from_bits(tf.logical_or(_to_bits(x), _to_bits(y)))


def and_with(mask: Optional[np.ndarray]) -> BinaryOp:
    """Returns the and as an op; of a mask that is known and has its low bits set it is shorter."""
    known = _scalar(mask)
    if known == _LARGEST:
        return lambda x, y: _without_sign(x)
    if known is not None and known > 0 and known & (known + 1) == 0:
        return lambda x, y: tf.math.floormod(x, tf.constant(known + 1, tf.int64))
    return lambda x, y: _from_bits(tf.logical_and(_to_bits(x), _to_bits(y)))


def right_shift_by(amount: Optional[np.ndarray]) -> BinaryOp:
    """Returns the shift to the right, with copies of the sign, as an op of numbers and a scalar.

    If the amount is known it is shorter.
    """
    known = _scalar(amount)
    if known is None or not 0 < known < _BITS:
        return _shift_of_bits
    return lambda x, y: _shift_of_halves(x, known)


def _shift_of_halves(x: tf.Tensor, amount: int) -> tf.Tensor:
    halves = tf.bitcast(x, tf.int32)
    low, high = halves[..., 0], halves[..., 1]
    if amount > _HALF:
        high = tf.bitwise.right_shift(high, amount - _HALF)
    if amount >= _HALF:
        return tf.cast(high, tf.int64)
    # Without a sign: its copies must not get between the halves.
    shifted = tf.bitcast(tf.bitwise.right_shift(tf.bitcast(low, tf.uint32), amount), tf.int32)
    return tf.cast(high, tf.int64) * 2 ** (_HALF - amount) + tf.cast(shifted, tf.int64)


def _shift_of_bits(x: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    taken = tf.minimum(tf.range(_BITS) + tf.cast(amount, tf.int32), _BITS - 1)
    return _from_bits(tf.gather(_to_bits(x), taken, axis=-1))


def _without_sign(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x < 0, x - _LOWEST_INT64, x)


def _to_bits(x: tf.Tensor) -> tf.Tensor:
    """Returns the bits of numbers [...], bool [..., 64]."""
    x = tf.expand_dims(x, -1)
    # An int64 has room for a power of 2 up to the last bit but one; the others go alone.
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
    """Returns what `Conv2DBackpropFilter` computes, a matrix for each place of the filter.

    Args:
        shape: Shape of the filter: height, width, channels of the images, and of the outputs.
        strides: Strides of the convolution in the four dimensions.
        padding: VALID or SAME.

    Returns:
        (images, `shape` again, gradient by the outputs) -> gradient by the filter.
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
    """Returns what `MaxPoolGrad` computes: of equal maxima in a window the first one counts.

    Args:
        sizes: Sizes of the window in the four dimensions.
        padding: VALID or SAME.

    Returns:
        (images, their maxima, gradient by the maxima) -> gradient by the images.
    """
    height, width = sizes[1:3]
    stride = list(strides[1:3])

    def gradient(images: tf.Tensor, maxima: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        size, span = tf.shape(images)[1:3], _span(maxima, stride)
        before, after = _margins(images, span, (height, width), padding)
        images = _with_margins(images, before, after, _LOWEST)
        # Windows without an earlier maximum, and the gradient of each pixel.
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
    """Returns how far the same place of all windows reaches, from the first one to the last."""
    return (tf.shape(outputs)[1:3] - 1) * stride + 1


def _window_offsets(
    images: tf.Tensor, size: Sequence[int], span: tf.Tensor, stride: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tf.Tensor]]:
    """Yields each place of a window, row by row, and the pixels there in all windows."""
    for row, column in np.ndindex(*size):
        rows = slice(row, row + span[0], stride[0])
        columns = slice(column, column + span[1], stride[1])
        yield (row, column), images[:, rows, columns]


def _margins(
    images: tf.Tensor, span: tf.Tensor, size: Sequence[int], padding: bytes
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the height and width that windows need before and after the images."""
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
    """Puts rows and columns of zeros after each row and each column."""
    shape = tf.shape(images)
    n, height, width, channels = (shape[axis] for axis in range(4))
    # One dimension at a time: TFLite pads four of them.
    columns = tf.reshape(images, [n * height, width, 1, channels])
    columns = tf.pad(columns, [[0, 0], [0, 0], [0, stride[1] - 1], [0, 0]])
    rows = tf.reshape(columns, [n, height, 1, width * stride[1] * channels])
    rows = tf.pad(rows, [[0, 0], [0, 0], [0, stride[0] - 1], [0, 0]])
    return tf.reshape(rows, [n, height * stride[0], width * stride[1], channels])


# From a node's attributes and its known inputs to a function of the inputs; None if the op
# has to stay.
Lowering = Callable[[Any, Known], Optional[Callable[..., Any]]]


def tensor_scatter_sub(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Returns a tensor less `updates` at `indices`; updates of one place are summed first."""
    return tensor - tf.scatter_nd(indices, updates, tf.shape(tensor, indices.dtype))


def sparse_softmax_cross_entropy(
    features: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss [n] of scores [n, classes], and its gradient; of other labels it fails."""
    num_classes = tf.shape(features)[1]
    # As the op does; otherwise a label that is no class would have no loss.
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


# Replacements by op and dtype.
LOWERINGS: Mapping[tuple[str, str], Lowering] = {
    ("BitwiseXor", "int64"): lambda attr, known: lower_xor,
    ("BitwiseAnd", "int64"): lambda attr, known: and_with(known[1]),
    ("BitwiseOr", "int64"): lambda attr, known: lower_or,
    ("RightShift", "int64"): lambda attr, known: right_shift_by(known[1]),
    ("TensorScatterSub", "float32"): lambda attr, known: tensor_scatter_sub,
    ("SparseSoftmaxCrossEntropyWithLogits", "float32"): (
        lambda attr, known: sparse_softmax_cross_entropy
    ),
    ("Conv2DBackpropFilter", "float32"): _filter_gradient,
    ("MaxPoolGrad", "float32"): _pool_gradient,
}


def lowered(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a copy without the ops of `LOWERINGS`, functions' bodies included."""
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
    # One for the same attributes and constants, which is the same in every process.
    attributes = [(name, str(node.attr[name])) for name in sorted(node.attr)]
    digest = hashlib.sha256(repr([dtypes, attributes, known]).encode()).hexdigest()[:8]
    function.signature.name = f"{_PREFIX}_{node.op}_{digest}"
    return function


def _dtype(node: Any) -> Any:
    # For some ops the attribute is a list.
    number = node.attr["T"].type if "T" in node.attr else 0
    return tf.as_dtype(number).name if number else None
