"""An LSTM layer with the weights and outputs of Keras' own, and a faster backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

from tff_agnostic.later import tf
from tff_agnostic.models.keras_platform import PlainForm
from tff_agnostic.models.recurrent import (
    RecurrentLayer,
    State,
    delayed,
    input_gradients,
    input_product,
    mask_series,
    product_over_steps,
    scan,
    scan_back,
    steps_to_unroll,
    time_major,
    to_series,
    to_tensor,
    zero_state,
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
        h_1 to h_T, [B, T, u]. Gradients, of any order, flow to x and the weights.
    """
    steps = steps_to_unroll(x)
    steps_mask = mask_series(mask, steps)

    @tf.custom_gradient
    def states(
        x: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        x = time_major(x)
        zeros = zero_state(x, recurrent_kernel.shape[0])
        (h, c), gates = scan(
            partial(_step, recurrent_kernel),
            (zeros, zeros),
            to_series(input_product(x, kernel, bias), steps),
            steps_mask,
            num_saved=5,
        )
        h_all = to_tensor(h)

        def gradients(dh: tf.Tensor) -> tuple[tf.Tensor, ...]:
            (dz,) = scan_back(
                partial(_step_back, recurrent_kernel),
                (zeros, zeros),
                to_series(time_major(dh), steps),
                steps_mask,
                (delayed(c, zeros), *gates),
                num_outputs=1,
            )
            dz = to_tensor(dz)
            dx, d_kernel, d_bias = input_gradients(x, kernel, dz)
            # The first step adds nothing: its h_{t-1} is zero.
            return dx, d_kernel, product_over_steps(h_all[:-1], dz[1:]), d_bias

        return time_major(h_all), gradients

    return states(x, kernel, recurrent_kernel, bias)


def _step(recurrent_kernel: tf.Tensor, state: State, projected: tf.Tensor) -> tuple[State, State]:
    h, c = state
    z = projected + tf.matmul(h, recurrent_kernel)
    z_i, z_f, z_g, z_o = tf.split(z, 4, axis=-1)
    i, f, g, o = tf.sigmoid(z_i), tf.sigmoid(z_f), tf.tanh(z_g), tf.sigmoid(z_o)
    c = f * c + i * g
    tanh_c = tf.tanh(c)
    return (o * tanh_c, c), (i, f, g, o, tanh_c)


def _step_back(
    recurrent_kernel: tf.Tensor,
    state: State,
    c_before: tf.Tensor,
    i: tf.Tensor,
    f: tf.Tensor,
    g: tf.Tensor,
    o: tf.Tensor,
    tanh_c: tf.Tensor,
) -> tuple[State, State]:
    dh, dc = state
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
    # dz U^T as (U dz^T)^T: the small results are transposed, not the large kernel.
    dh = tf.transpose(tf.matmul(recurrent_kernel, dz, transpose_b=True))
    return (dh, dc * f), (dz,)


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

    def plain_form(self) -> PlainForm:
        """Keras' LSTM, with the weights in the same order."""
        return self.keras_lstm(self.kernel, self.recurrent_kernel, self.bias)
