"""An LSTM layer with the weights and outputs of Keras' own, and a faster backward pass."""

from typing import Any, Callable, Optional

import tensorflow as tf

from tff_agnostic.models.recurrent import (
    RecurrentLayer,
    delayed,
    input_gradients,
    input_product,
    mask_series,
    product_over_steps,
    scan,
    time_major,
    to_series,
    to_tensor,
)


def lstm(
    x: tf.Tensor,
    mask: Optional[tf.Tensor],
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
) -> tf.Tensor:
    """Hidden states of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates) from zeros.

    Gates stand in Keras' order: input i, forget f, candidate g, output o, each of u columns.

        i, f, o = sigmoid(z), g = tanh(z) of z_t = x_t W + h_{t-1} U + b
        c_t = f c_{t-1} + i g,  h_t = o tanh(c_t)

    Args:
        x: Inputs, float [B, T, in].
        mask: bool [B, T], or None for all True. A step that is False carries h and c on.
        kernel: W, [in, 4u].
        recurrent_kernel: U, [u, 4u].
        bias: b, [4u].

    Returns:
        h_1 to h_T, [B, T, u]. Gradients flow to x and the three weights, in first order.
    """
    masks = mask_series(mask)

    @tf.custom_gradient
    def states(
        x: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        x = time_major(x)
        projected = input_product(x, kernel, bias)
        zeros = tf.zeros_like(projected[0][:, : recurrent_kernel.shape[0]])
        h, c, *gates = scan(
            lambda state, values: _forward_step(state, values, recurrent_kernel),
            initial=(zeros, zeros),
            series=(projected, masks),
            num_outputs=7,
        )
        all_h = to_tensor(h)

        def gradients(dh: tf.Tensor) -> tuple[tf.Tensor, ...]:
            recurrent_transposed = tf.transpose(recurrent_kernel)
            (dz,) = scan(
                lambda state, values: _backward_step(state, values, recurrent_transposed),
                initial=(zeros, zeros),
                series=(to_series(time_major(dh)), masks, delayed(c, zeros), *gates),
                num_outputs=1,
                reverse=True,
            )
            dz = to_tensor(dz)
            dx, d_kernel, d_bias = input_gradients(x, kernel, dz)
            # The first step adds nothing: h_0 is zero.
            return dx, d_kernel, product_over_steps(all_h[:-1], dz[1:]), d_bias

        return time_major(all_h), gradients

    return states(x, kernel, recurrent_kernel, bias)


def _forward_step(state: tuple, values: tuple, recurrent_kernel: tf.Tensor) -> tuple[tuple, tuple]:
    """One step: (h, c), and what the way back needs."""
    (h_before, c_before), (projected, mask) = state, values
    z_i, z_f, z_g, z_o = tf.split(projected + tf.matmul(h_before, recurrent_kernel), 4, axis=-1)
    i, f, g, o = tf.sigmoid(z_i), tf.sigmoid(z_f), tf.tanh(z_g), tf.sigmoid(z_o)
    c = f * c_before + i * g
    tanh_c = tf.tanh(c)
    h = o * tanh_c
    if mask is not None:
        h, c = tf.where(mask, h, h_before), tf.where(mask, c, c_before)
    return (h, c), (h, c, i, f, g, o, tanh_c)


def _backward_step(
    state: tuple, values: tuple, recurrent_transposed: tf.Tensor
) -> tuple[tuple, tuple]:
    """One step back: the gradients of (h_{t-1}, c_{t-1}) from those of (h_t, c_t), and dz_t."""
    (dh, dc), (dh_output, mask, c_before, i, f, g, o, tanh_c) = state, values
    dh = dh + dh_output
    if mask is not None:
        zeros = tf.zeros_like(dh)
        dh_carried, dc_carried = tf.where(mask, zeros, dh), tf.where(mask, zeros, dc)
        dh, dc = tf.where(mask, dh, zeros), tf.where(mask, dc, zeros)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    dz = tf.concat(
        [
            dc * g * i * (1 - i),
            dc * c_before * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh_c * o * (1 - o),
        ],
        axis=-1,
    )
    dh, dc = tf.matmul(dz, recurrent_transposed), dc * f
    if mask is not None:
        dh, dc = dh + dh_carried, dc + dc_carried
    return (dh, dc), (dz,)


@tf.keras.utils.register_keras_serializable(package="tff_agnostic")
class LSTM(RecurrentLayer):
    """`tf.keras.layers.LSTM` with one weight-gradient product per batch.

    Weights are interchangeable with Keras': `kernel` [in, 4u], `recurrent_kernel` [u, 4u] and
    `bias` [4u]. Arguments, shapes and masks are those of `RecurrentLayer`; activations are fixed,
    and there is neither dropout nor a state that outlives a call.
    """

    num_gates = 4
    forget_gate = 1

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        self.add_gate_weights(input_shape[-1], self.units)
        super().build(input_shape)

    def run(self, x: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
        """Returns h of all steps."""
        weights = (self.kernel, self.recurrent_kernel, self.bias)
        return lstm(x, mask, *(tf.cast(w, x.dtype) for w in weights))
