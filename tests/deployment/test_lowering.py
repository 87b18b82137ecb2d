"""Replacements of ops that devices lack compute equal numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.deployment.kinds import KINDS
from tests.support.marks import usually
from tff_agnostic.base.files import read_json
from tff_agnostic.deployment.lowering import (
    LOWERINGS,
    and_with,
    convolution_filter_gradient,
    lower_or,
    lower_xor,
    lowered,
    max_pool_gradient,
    right_shift_by,
    sparse_softmax_cross_entropy,
    tensor_scatter_sub,
)

_EDGES = [0, 1, -1, 2**31, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]
_RANDOM = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, size=100, dtype=np.int64)
_X = np.concatenate([np.array(_EDGES, np.int64), _RANDOM])
_Y = np.roll(_X, 7)


def test_lowered_bitwise_or_op_equals_numpy():
    np.testing.assert_array_equal(lower_xor(_X, _Y), _X ^ _Y)
    np.testing.assert_array_equal(lower_or(_X, _Y), _X | _Y)


@pytest.mark.parametrize("mask", [0, 1, 2**34 - 1, 2**63 - 1, -1, 12345])
def test_lowered_bitwise_and_op_equals_numpy(mask):
    mask = np.array(mask, np.int64)
    np.testing.assert_array_equal(and_with(mask)(_X, mask), _X & mask)
    np.testing.assert_array_equal(and_with(None)(_X, mask), _X & mask)


@pytest.mark.parametrize("amount", [0, 1, 31, 32, 33, 63])
def test_lowered_shift_op_equals_numpy(amount):
    amount = np.array(amount, np.int64)
    np.testing.assert_array_equal(right_shift_by(amount)(_X, amount), _X >> amount)
    np.testing.assert_array_equal(right_shift_by(None)(_X, amount), _X >> amount)


def test_lowered_scatter_op_equals_tensorflow():
    tensor = tf.constant(np.arange(12.0, dtype=np.float32).reshape(4, 3))
    indices, updates = tf.constant([[2], [0], [2]]), tf.ones([3, 3])
    expected = tf.tensor_scatter_nd_sub(tensor, indices, updates)
    np.testing.assert_array_equal(tensor_scatter_sub(tensor, indices, updates), expected)


def test_lowered_cross_entropy_equals_tensorflow():
    rng = np.random.default_rng(0)
    scores = tf.constant(rng.normal(scale=20, size=[50, 7]).astype(np.float32))
    labels = tf.constant(rng.integers(7, size=50))
    expected = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=scores, labels=labels)
    for actual, expected_part in zip(sparse_softmax_cross_entropy(scores, labels), expected):
        np.testing.assert_allclose(actual, expected_part, rtol=1e-6, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 7\)"):
        sparse_softmax_cross_entropy(scores, tf.fill([50], 7))


@pytest.mark.slow
def test_lowering_functions_does_not_change_results():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.int64, [None], "x")

        @tf.function
        def mixed(values):
            return values ^ (
                tf.bitwise.right_shift(values, tf.constant(30, tf.int64)) & (2**34 - 1)
            )

        outer = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, mixed(v) * 5), [0, x])[1]
        tf.identity(tf.bitwise.bitwise_or(outer, x) ^ mixed(x), "y")
    graph_def = graph.as_graph_def()
    results = []
    for definition in (graph_def, lowered(graph_def)):
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(definition, name="")
            with tf.compat.v1.Session(graph=graph) as session:
                results.append(session.run("y:0", {"x:0": _X}))
    np.testing.assert_array_equal(*results)
    assert lowered(graph_def) == lowered(graph_def)
    graph = lowered(graph_def)
    kept = [f for f in graph.library.function if not f.signature.name.startswith("lowered_")]
    ops = {n.op for body in [graph.node, *(f.node_def for f in kept)] for n in body}
    assert ops.isdisjoint(op for op, _ in LOWERINGS)


_SIZES = [((3, 2), 1), ((3, 3), 2), ((2, 2), 3)]


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("size", "stride"), _SIZES)
def test_filter_gradient_equals_tensorflow(size, stride, padding):
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=[4, 9, 8, 3]).astype(np.float32))
    shape, strides = [*size, 3, 5], [1, stride, stride, 1]
    outputs = tf.nn.conv2d(images, tf.zeros(shape), strides, padding)
    outputs = tf.constant(rng.normal(size=outputs.shape).astype(np.float32))
    expected = tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=shape, out_backprop=outputs, strides=strides, padding=padding
    )
    gradient = convolution_filter_gradient(shape, strides, padding.encode())
    actual = gradient(images, tf.constant(shape), outputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("size", "stride"), _SIZES)
def test_pool_gradient_equals_tensorflow(size, stride, padding):
    """The images contain equal maxima; the first one gets the gradient."""
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(-2, 3, size=[4, 9, 8, 3]).astype(np.float32))
    windows = {"ksize": [1, *size, 1], "strides": [1, stride, stride, 1], "padding": padding}
    maxima = tf.raw_ops.MaxPool(input=images, **windows)
    outputs = tf.constant(rng.integers(1, 100, size=maxima.shape).astype(np.float32))
    expected = tf.raw_ops.MaxPoolGrad(
        orig_input=images, orig_output=maxima, grad=outputs, **windows
    )
    gradient = max_pool_gradient(windows["ksize"], windows["strides"], padding.encode())
    np.testing.assert_array_equal(gradient(images, maxima, outputs), expected)


def test_filter_gradient_is_lowered_for_known_shapes():
    """Shapes are also known through calls and loops; the op stays if its shape is unknown."""

    @tf.function
    def body(number, images, weights):
        shape = tf.raw_ops.ShapeN(input=[images, weights])[1]
        outputs = tf.nn.conv2d(images, weights, 1, "VALID")
        gradient = tf.raw_ops.Conv2DBackpropFilter(
            input=images, filter_sizes=shape, out_backprop=outputs, strides=[1] * 4, padding="VALID"
        )
        return number + 1, images, weights - gradient

    def remaining(shape):
        with tf.Graph().as_default() as graph:
            images = tf.compat.v1.placeholder(tf.float32, [None, 5, 5, 2])
            weights = tf.compat.v1.placeholder(tf.float32, shape)
            tf.while_loop(lambda number, *_: number < 3, body, [0, images, weights])
        functions = lowered(graph.as_graph_def()).library.function
        return [n for f in functions for n in f.node_def if n.op == "Conv2DBackpropFilter"]

    assert remaining([3, 2, 2, 4]) == []
    assert len(remaining([3, None, 2, 4])) == 1


# Dropout needs these ops, which On-Device Personalization's devices lack.
_BEYOND = {
    "convolutional": {
        "StatelessRandomGetKeyCounter",
        "StatelessRandomUniformFullIntV2",
        "StatelessRandomUniformV2",
    }
}


@pytest.mark.nightly_cases("convolutional", "lstm")
@pytest.mark.slow
@pytest.mark.parametrize("kind", usually(["logistic", "convolutional", "lstm"], KINDS))
def test_manifest_lists_ops_missing_on_devices(exported, kind):
    manifest = read_json(exported("daf", kind=kind) / "manifest.json")
    assert set(manifest["tflite"]["beyond_odp"]) == _BEYOND.get(kind, set())
    assert set(manifest["tflite"]["flex_ops"]) >= _BEYOND.get(kind, set())
