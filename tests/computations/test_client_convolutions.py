"""Convolutions of vectorised clients equal single clients' convolutions and gradients.

TensorFlow lacks gradients of dilated convolutions on CPUs. The reference therefore inserts zeros
into the kernel and uses TensorFlow's plain convolution.
"""

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.computations.clients import vectorised_clients
from tff_agnostic.runtimes.client_work import _op_types

_CLIENTS, _IMAGES = 3, 4

# Image (height, width, channels), kernel (height, width), outputs, strides, dilations.
_CASES = [
    ((9, 10, 3), (3, 2), 5, (2, 3), (1, 1)),
    ((9, 10, 2), (3, 2), 4, (1, 1), (2, 3)),
    # A kernel of one pixel with strides, and a kernel as large as the image.
    ((7, 6, 2), (1, 1), 3, (3, 4), (1, 1)),
    ((4, 5, 2), (4, 5), 3, (1, 1), (1, 1)),
]


def _with_gradients(convolve, images, kernel):
    with tf.GradientTape() as tape:
        tape.watch([images, kernel])
        output = convolve(images, kernel)
        loss = tf.reduce_sum(tf.sin(output))
    return (output, *tape.gradient(loss, [images, kernel]))


def _with_spread_kernel(strides, dilations, padding):
    def convolve(images, kernel):
        for axis, dilation in enumerate(dilations):
            size = kernel.shape[axis]
            place = tf.one_hot(tf.range(size) * dilation, (size - 1) * dilation + 1)
            kernel = tf.tensordot(place, kernel, [[0], [axis]])
            kernel = tf.transpose(kernel, [1, 0, 2, 3]) if axis == 1 else kernel
        return tf.nn.conv2d(images, kernel, strides, padding)

    return convolve


def _vectorised(convolve, image_shape, kernel_shape):
    return tf.function(
        lambda images, kernels: vectorised_clients(
            lambda *args: _with_gradients(convolve, *args), images, kernels
        ),
        input_signature=[
            tf.TensorSpec([None, None, *image_shape]),
            tf.TensorSpec([None, *kernel_shape]),
        ],
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("image", "kernel", "outputs", "strides", "dilations"), _CASES)
def test_vectorised_convolutions_match_single_clients(
    image, kernel, outputs, strides, dilations, padding
):
    rng = np.random.default_rng(7)
    kernel_shape = [*kernel, image[2], outputs]
    images = tf.constant(rng.normal(size=[_CLIENTS, _IMAGES, *image]), tf.float32)
    kernels = tf.constant(rng.normal(size=[_CLIENTS, *kernel_shape]), tf.float32)

    many = _vectorised(
        lambda x, k: tf.nn.conv2d(x, k, strides, padding, dilations=dilations), image, kernel_shape
    )
    actual = many(images, kernels)

    reference = _with_spread_kernel(strides, dilations, padding)
    for k in range(_CLIENTS):
        expected = _with_gradients(reference, images[k], kernels[k])
        for many_values, values in zip(actual, expected):
            scale = np.abs(values).max()
            np.testing.assert_allclose(many_values[k] / scale, values / scale, atol=2e-6)
    assert not {op for op in _op_types(many.get_concrete_function()) if "Conv" in op}


def test_shared_kernel_uses_tensorflows_convolution():
    kernel = tf.constant(np.random.default_rng(1).normal(size=[3, 3, 2, 4]), tf.float32)
    images = tf.constant(np.random.default_rng(2).normal(size=[3, 2, 6, 6, 2]), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None, None, 6, 6, 2])])
    def many(images):
        return vectorised_clients(lambda x: tf.nn.conv2d(x, kernel, 1, "SAME"), images)

    expected = [tf.nn.conv2d(client, kernel, 1, "SAME") for client in images]
    np.testing.assert_allclose(many(images), expected, atol=1e-5)
    assert "Conv2D" in _op_types(many.get_concrete_function())


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "sums"), [([5, 6, 4], 3), ([5, 0, 4], 3), ([4], 1)])
def test_bias_gradients_are_summed_by_axis(shape, sums):
    """A sum per axis lets each GPU thread sum one row of pixels, instead of all images' pixels."""
    gradients = np.random.default_rng(3).normal(size=[_CLIENTS, _IMAGES, *shape])

    @tf.function(input_signature=[tf.TensorSpec([None, None, *shape])])
    def many(gradients):
        return vectorised_clients(lambda one: tf.raw_ops.BiasAddGrad(out_backprop=one), gradients)

    axes = tuple(range(1, gradients.ndim - 1))
    np.testing.assert_allclose(many(gradients), gradients.sum(axis=axes), rtol=1e-5, atol=1e-5)
    operations = many.get_concrete_function().graph.get_operations()
    assert [operation.type for operation in operations].count("Sum") == sums
