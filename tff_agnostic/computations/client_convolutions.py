"""Convolutions of many clients, each with its own kernel, as one batched matrix product.

After the first local step, every client has different weights. TensorFlow's vectoriser (`pfor`)
then runs the convolutions of one client after another, or as a grouped convolution whose sums are
not reproducible. Here, the patches under the kernel become rows of a matrix (im2col), so that the
convolutions of all clients, and both of their gradients, are batched matrix products. Gradients of
biases are summed axis by axis. In shapes, G is the number of clients; each has B images of H x W
pixels and C channels, and a kernel of p x q with O output channels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from tff_agnostic.base.later import tf

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution of images in the layout [H, W, C], without its kernel.

    Attributes:
        strides: Pixels between two positions of the kernel, down and to the right.
        dilations: Pixels between two neighbouring entries of the kernel.
        before: Zeros above and to the left of an image, in rows and columns.
        after: Zeros below and to the right of an image, in rows and columns.
    """

    strides: Pair
    dilations: Pair
    before: Pair
    after: Pair

    def convolve(self, images: tf.Tensor, kernels: tf.Tensor) -> tf.Tensor:
        """Returns the convolution of each client's images with its kernel, [G, B, H', W', O].

        Args:
            images: [G, B, H, W, C].
            kernels: [G, p, q, C, O].
        """
        p, q, channels, outputs = kernels.shape[1:]
        patches = self._patches(images, (p, q))
        matrices = tf.reshape(kernels, [-1, p * q * channels, outputs])
        # The product has the shape [G, B H' W', O], with a row for each patch.
        product = tf.matmul(_rows(patches, images), matrices)
        clients, batch = tf.unstack(tf.shape(images)[:2])
        return tf.reshape(product, [clients, batch, *patches.shape[1:3], outputs])

    def kernel_gradient(
        self, images: tf.Tensor, output_gradient: tf.Tensor, kernel_size: Pair
    ) -> tf.Tensor:
        """Returns the gradient with respect to each client's kernel, [G, p, q, C, O].

        Args:
            images: [G, B, H, W, C].
            output_gradient: Gradient with respect to the output, [G, B, H', W', O].
            kernel_size: Kernel size, (p, q).
        """
        patches = self._patches(images, kernel_size)
        outputs = output_gradient.shape[-1]
        rows = tf.reshape(output_gradient, [tf.shape(images)[0], -1, outputs])  # [G, B H' W', O]
        product = tf.matmul(_rows(patches, images), rows, transpose_a=True)
        return tf.reshape(product, [-1, *kernel_size, images.shape[-1], outputs])

    def image_gradient(
        self, output_gradient: tf.Tensor, kernels: tf.Tensor, image_size: Pair
    ) -> tf.Tensor:
        """Returns the gradient with respect to the images, [G, B, H, W, C].

        To compute it, zeros are put between the pixels of the output gradient, according to the
        `strides`, and the result is convolved with the kernel, rotated by 180 degrees.

        Args:
            output_gradient: Gradient with respect to the output, [G, B, H', W', O].
            kernels: [G, p, q, C, O].
            image_size: Image size, (H, W).
        """
        spread = _with_zeros_between(output_gradient, self.strides)
        reach = [(p - 1) * d for p, d in zip(kernels.shape[1:3], self.dilations)]
        before = [r - b for r, b in zip(reach, self.before)]
        after = [
            size + r - spread_size - b
            for size, r, spread_size, b in zip(image_size, reach, spread.shape[2:4], before)
        ]
        turned = tf.transpose(tf.reverse(kernels, [1, 2]), [0, 1, 2, 4, 3])
        transposed = Convolution(
            (1, 1), self.dilations, (before[0], before[1]), (after[0], after[1])
        )
        return transposed.convolve(spread, turned)

    def _patches(self, images: tf.Tensor, kernel_size: Pair) -> tf.Tensor:
        """Returns the pixels under each position of the kernel, [G B, H', W', p q C]."""
        flat = tf.reshape(images, [-1, *images.shape[2:]])
        zeros = [[0, 0], *([b, a] for b, a in zip(self.before, self.after)), [0, 0]]
        return tf.image.extract_patches(
            tf.pad(flat, zeros) if any(map(any, zeros)) else flat,
            sizes=[1, *kernel_size, 1],
            strides=[1, *self.strides, 1],
            rates=[1, *self.dilations, 1],
            padding="VALID",
        )


def convolution(
    strides: Pair, dilations: Pair, padding: str, image_size: Pair, kernel_size: Pair
) -> Convolution:
    """Returns the convolution with TensorFlow's padding, "SAME" or "VALID"."""
    if padding == "VALID":
        return Convolution(strides, dilations, (0, 0), (0, 0))
    # The output size is the image size over the stride, rounded up. If the number of padding zeros
    # is odd, the extra zero is added at the end.
    zeros = [
        max((-(-size // s) - 1) * s + (p - 1) * d + 1 - size, 0)
        for size, s, d, p in zip(image_size, strides, dilations, kernel_size)
    ]
    before = (zeros[0] // 2, zeros[1] // 2)
    return Convolution(strides, dilations, before, (zeros[0] - before[0], zeros[1] - before[1]))


def bias_gradient(output_gradient: tf.Tensor) -> tf.Tensor:
    """Returns the gradient with respect to each client's bias, [G, O].

    TensorFlow's GPU kernel uses one thread per channel here. A single sum over pixels and images
    took 26 of a round's 100 milliseconds (50 clients, a CNN, an H200). Sums over one axis at a time
    use more threads, and the round takes 80 milliseconds.

    Args:
        output_gradient: Gradient with respect to the output, [G, B, H', W', O].
    """
    while output_gradient.shape.rank > 2:
        output_gradient = tf.reduce_sum(output_gradient, axis=-2)
    return output_gradient


def converter(vectoriser: Any, name: str) -> Callable[[Any], Any]:
    """Returns a `pfor` converter that runs a convolution, or a gradient of it, for all clients.

    The converter leaves two kinds of convolutions to TensorFlow: those whose kernel is the same for
    all clients, which TensorFlow converts well, and those that are not supported here (other
    layouts, explicit padding, or images of unknown size).

    Args:
        vectoriser: TensorFlow's module `pfor`.
        name: Type of the operation, one of `CONVERTED`.
    """
    convert, by_tensorflow = CONVERTED[name], vectoriser._pfor_converter_registry[name]

    def converted(operands: Any) -> Any:
        output = convert(_Operands(operands))
        return by_tensorflow(operands) if output is None else vectoriser.wrap(output, True)

    return converted


@dataclasses.dataclass(frozen=True)
class _Operands:
    """Operands of an operation; operands that differ between clients have an axis of clients."""

    pfor_input: Any

    def is_stacked(self, i: int) -> bool:
        return bool(self.pfor_input.inputs[i].is_stacked)

    def with_clients(self, i: int) -> tf.Tensor:
        """Returns operand `i` with an axis of clients; a shared operand is repeated."""
        self.pfor_input.stack_inputs(stack_indices=[i])
        return self.pfor_input.stacked_input(i)

    def shape(self, i: int) -> tf.TensorShape:
        """Returns the shape of operand `i` for one client."""
        return self.pfor_input.op.inputs[i].shape

    @property
    def output_shape(self) -> tf.TensorShape:
        """Shape of the output for one client."""
        return self.pfor_input.op.outputs[0].shape

    @property
    def has_channels_last(self) -> bool:
        return bool(self.pfor_input.get_attr("data_format") == b"NHWC")

    def convolution(self, images: tf.TensorShape, kernel: tf.TensorShape) -> Optional[Convolution]:
        """Returns the convolution; None if attributes or shapes are not supported."""
        attribute = self.pfor_input.get_attr
        padding = attribute("padding").decode()
        if not self.has_channels_last or padding not in ("SAME", "VALID"):
            return None
        if not (images[1:].is_fully_defined() and kernel.is_fully_defined()):
            return None
        if images[3] != kernel[2]:
            return None
        strides, dilations = (tuple(attribute(name)[1:3]) for name in ("strides", "dilations"))
        return convolution(strides, dilations, padding, images[1:3], kernel[:2])


def _convert_output(operands: _Operands) -> Optional[tf.Tensor]:
    convolution = operands.convolution(operands.shape(0), operands.shape(1))
    if convolution is None or not operands.is_stacked(1):
        return None
    return convolution.convolve(operands.with_clients(0), operands.with_clients(1))


def _convert_kernel_gradient(operands: _Operands) -> Optional[tf.Tensor]:
    kernel = operands.output_shape
    convolution = operands.convolution(operands.shape(0), kernel)
    if convolution is None:
        return None
    return convolution.kernel_gradient(
        operands.with_clients(0), operands.with_clients(2), kernel[:2]
    )


def _convert_image_gradient(operands: _Operands) -> Optional[tf.Tensor]:
    images = operands.output_shape
    convolution = operands.convolution(images, operands.shape(1))
    if convolution is None or not operands.is_stacked(1):
        return None
    return convolution.image_gradient(
        operands.with_clients(2), operands.with_clients(1), images[1:3]
    )


def _convert_bias_gradient(operands: _Operands) -> Optional[tf.Tensor]:
    # For other layers, TensorFlow's bias gradient is fast, as it sums few terms.
    if not operands.has_channels_last or operands.shape(0).rank != 4:
        return None
    return bias_gradient(operands.with_clients(0))


CONVERTED: dict[str, Callable[[_Operands], Optional[tf.Tensor]]] = {
    "Conv2D": _convert_output,
    "Conv2DBackpropFilter": _convert_kernel_gradient,
    "Conv2DBackpropInput": _convert_image_gradient,
    "BiasAddGrad": _convert_bias_gradient,
}


def _rows(patches: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Returns the patches [G B, H', W', p q C] as rows per client, [G, B H' W', p q C]."""
    return tf.reshape(patches, [tf.shape(images)[0], -1, patches.shape[-1]])


def _with_zeros_between(images: tf.Tensor, strides: Pair) -> tf.Tensor:
    """Returns images with `stride - 1` zeros between pixels, [G, B, (H - 1) s + 1, ..., C]."""
    for axis, stride in zip((2, 3), strides):
        if stride == 1:
            continue
        shape = tf.unstack(tf.shape(images))
        size = images.shape[axis]
        zeros = [[0, 0]] * 6
        zeros[axis + 1] = [0, stride - 1]
        spread = tf.pad(tf.expand_dims(images, axis + 1), zeros)
        spread = tf.reshape(spread, [*shape[:axis], size * stride, *shape[axis + 1 :]])
        kept = (size - 1) * stride + 1
        static = images.shape.as_list()
        static[axis] = kept
        images = tf.ensure_shape(
            spread[:, :, :kept] if axis == 2 else spread[:, :, :, :kept], static
        )
    return images
