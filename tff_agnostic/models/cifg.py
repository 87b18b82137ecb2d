"""A CIFG layer: an LSTM with coupled input and forget gates, and a projection of its state."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.models.keras_platform import PlainForm, with_weights
from tff_agnostic.models.lstm import (
    RecurrentLayer,
    State,
    delayed,
    input_gradients,
    input_product,
    mask_series,
    positive,
    product_over_steps,
    scan,
    scan_back,
    steps_to_unroll,
    time_major,
    to_series,
    to_tensor,
    zero_state,
)


@tf.autograph.experimental.do_not_convert
def cifg(
    x: tf.Tensor,
    mask: Optional[tf.Tensor],
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    projection: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Returns the outputs of a CIFG (Greff et al. 2017) with a projection (Sak et al. 2014).

    The gates are forget f, candidate g and output o, with u columns each; the input gate is 1 - f.
    The initial state is zero.

        z_t = x_t W + r_{t-1} U + b,  f, o = sigmoid(z_t),  g = tanh(z_t)
        c_t = f c_{t-1} + (1 - f) g,  h_t = o tanh(c_t),  r_t = h_t P

    Args:
        x: Inputs, float [B, T, in].
        mask: Mask, bool [B, T]; None for all True. Where it is False, r and c do not change.
        kernel: Kernel W, [in, 3u].
        recurrent_kernel: Recurrent kernel U, [r, 3u].
        bias: Bias b, [3u].
        projection: Projection P, [u, r], or None: then r_t = h_t.

    Returns:
        r_1 to r_T, [B, T, r]. They are differentiable with respect to x and the weights, to any
        order.
    """
    steps = steps_to_unroll(x)
    steps_mask = mask_series(mask, steps)

    @tf.custom_gradient
    def outputs(
        x: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor, *rest: Any
    ) -> tuple[tf.Tensor, Callable]:
        (projection,) = rest or (None,)
        x = time_major(x)
        zeros = (zero_state(x, recurrent_kernel.shape[0]), zero_state(x, bias.shape[0] // 3))
        (r, c), (h, *gates) = scan(
            partial(_step, recurrent_kernel, projection),
            zeros,
            to_series(input_product(x, kernel, bias), steps),
            steps_mask,
            num_saved=5,
        )
        r_all = to_tensor(r)

        def gradients(dr: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Transpose once for all steps: a product with a transposed operand takes twice as long.
            recurrent_transposed = tf.transpose(recurrent_kernel)
            projection_transposed = None if projection is None else tf.transpose(projection)
            dr_steps, dz_steps = scan_back(
                partial(_step_back, recurrent_transposed, projection_transposed),
                zeros,
                to_series(time_major(dr), steps),
                steps_mask,
                (delayed(c, zeros[1]), *gates),
                num_outputs=2,
            )
            dz = to_tensor(dz_steps)
            dx, d_kernel, d_bias = input_gradients(x, kernel, dz)
            # The first step adds nothing to the gradient of U, as its r_{t-1} is zero.
            weights = [d_kernel, product_over_steps(r_all[:-1], dz[1:]), d_bias]
            if projection is not None:
                weights.append(product_over_steps(to_tensor(h), to_tensor(dr_steps)))
            return dx, *weights

        return time_major(r_all), gradients

    weights = [kernel, recurrent_kernel, bias, *([] if projection is None else [projection])]
    return outputs(x, *weights)


def _step(
    recurrent_kernel: tf.Tensor,
    projection: Optional[tf.Tensor],
    state: State,
    projected: tf.Tensor,
) -> tuple[State, State]:
    r, c = state
    z_f, z_g, z_o = tf.split(projected + tf.matmul(r, recurrent_kernel), 3, axis=-1)
    f, g, o = tf.sigmoid(z_f), tf.tanh(z_g), tf.sigmoid(z_o)
    c = f * c + (1 - f) * g
    tanh_c = tf.tanh(c)
    h = o * tanh_c
    r = h if projection is None else tf.matmul(h, projection)
    return (r, c), (h, f, g, o, tanh_c)


def _step_back(
    recurrent_transposed: tf.Tensor,
    projection_transposed: Optional[tf.Tensor],
    state: State,
    c_before: tf.Tensor,
    f: tf.Tensor,
    g: tf.Tensor,
    o: tf.Tensor,
    tanh_c: tf.Tensor,
) -> tuple[State, State]:
    dr, dc = state
    dh = dr if projection_transposed is None else tf.matmul(dr, projection_transposed)
    dc = dc + dh * o * (1 - tanh_c * tanh_c)
    dz = tf.concat(
        [
            dc * (c_before - g) * f * (1 - f),
            dc * (1 - f) * (1 - g * g),
            dh * tanh_c * o * (1 - o),
        ],
        axis=-1,
    )
    return (tf.matmul(dz, recurrent_transposed), dc * f), (dr, dz)


def as_lstm(
    kernel: np.ndarray,
    recurrent_kernel: np.ndarray,
    bias: np.ndarray,
    projection: Optional[np.ndarray] = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the weights of an LSTM that has the same h_t as a CIFG.

    Because 1 - sigmoid(z) = sigmoid(-z), the weights of the LSTM's input gate are the negated
    weights of the forget gate. Because r_{t-1} U = h_{t-1} (P U), the LSTM's recurrent kernel is P
    U.

    Args:
        kernel: Kernel W, [in, 3u]; gates f, g, o.
        recurrent_kernel: Recurrent kernel U, [r, 3u].
        bias: Bias b, [3u].
        projection: Projection P, [u, r], or None.

    Returns:
        Kernel [in, 4u], recurrent kernel [u, 4u] and bias [4u]; gates i, f, g, o.
    """
    units = bias.shape[0] // 3
    if projection is not None:
        # Compute P U in float64, so that each entry is rounded once.
        product = projection.astype(np.float64) @ recurrent_kernel.astype(np.float64)
        recurrent_kernel = product.astype(recurrent_kernel.dtype)

    def with_input_gate(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([-weights[..., :units], weights], axis=-1)

    return with_input_gate(kernel), with_input_gate(recurrent_kernel), with_input_gate(bias)


@tf.keras.utils.register_keras_serializable(package="tff_agnostic")
class CIFG(RecurrentLayer):
    """An LSTM layer whose input gate is 1 - f, so that it has 3/4 of an LSTM's gate weights.

    Weights: `kernel` [in, 3u], `recurrent_kernel` [r, 3u], `bias` [3u], and `projection_kernel` [u,
    r] if `projection_units` = r is given; otherwise r = u. Outputs have r features. For other
    arguments, shapes and masks see `RecurrentLayer`.
    """

    num_gates = 3
    forget_gate = 0

    def __init__(
        self,
        units: int,
        *,
        projection_units: Optional[int] = None,
        projection_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(units, **kwargs)
        if projection_units is not None:
            positive("projection_units", projection_units)
        self.projection_units = projection_units
        self.projection_initializer = tf.keras.initializers.get(projection_initializer)

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        self.add_gate_weights(input_shape[-1], self.projection_units or self.units)
        if self.projection_units is not None:
            self.projection_kernel = self.add_weight(
                name="projection_kernel",
                shape=[self.units, self.projection_units],
                initializer=self.projection_initializer,
            )
        super().build(input_shape)

    def run(self, x: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
        """Returns the outputs r_1 to r_T."""
        weights = [self.kernel, self.recurrent_kernel, self.bias]
        if self.projection_units is not None:
            weights.append(self.projection_kernel)
        return cifg(x, mask, *(tf.cast(w, x.dtype) for w in weights))

    def plain_form(self) -> PlainForm:
        """Returns Keras' LSTM with the same h_t (see `as_lstm`), and a dense layer as projection.

        The LSTM's recurrent kernel is larger, [u, 4u] instead of [r, 3u], because it includes the
        projection.
        """
        gates = (self.kernel.numpy(), self.recurrent_kernel.numpy(), self.bias.numpy())
        projection = None if self.projection_units is None else self.projection_kernel.numpy()
        states = self.keras_lstm(*as_lstm(*gates, projection))
        if projection is None:
            return states
        project = tf.keras.layers.Dense(
            self.projection_units,
            use_bias=False,
            name=f"{self.name}_projection",
            dtype=self.dtype_policy,
        )
        project = with_weights(project, self.units, projection)
        return lambda inputs, **kwargs: project(states(inputs, **kwargs))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "projection_units": self.projection_units,
            "projection_initializer": tf.keras.initializers.serialize(self.projection_initializer),
        }
