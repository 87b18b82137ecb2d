"""Gradients of convolutions and of maximum pooling in terms of ops that TensorFlow Lite has itself.

Images are [n, height, width, channels]. A window that reaches over the edge (SAME) is cut out of an
image with a margin, so that every window is whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

Gradient = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

_LOWEST = float(np.finfo(np.float32).min)


def convolution_filter_gradient(
    shape: Iterable[int], strides: Sequence[int], padding: bytes
) -> Gradient:
    """Returns what `Conv2DBackpropFilter` computes, a matrix for each place of the filter.

    Args:
        shape: Of the filter: height, width, channels of the images, and of the outputs.
        strides: Of the convolution, for each of the four dimensions.
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
            for _, pixels in _places(images, (height, width), span, stride)
        ]
        return tf.reshape(tf.stack(at_places), [height, width, channels, filters])

    return gradient


def max_pool_gradient(sizes: Sequence[int], strides: Sequence[int], padding: bytes) -> Gradient:
    """Returns what `MaxPoolGrad` computes: of equal maxima in a window the first one counts.

    Args:
        sizes: Of the window, for each of the four dimensions.
        strides: Of the window.
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
        # Of which windows no earlier place was the maximum, and what goes to each pixel.
        is_open, sums = tf.ones_like(maxima), tf.zeros_like(images)
        for place, pixels in _places(images, (height, width), span, stride):
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


def _places(
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
