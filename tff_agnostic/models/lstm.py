"""Core of recurrent layers, and an LSTM layer with a faster backward pass than Keras'.

The LSTM has the weights and outputs of Keras' own LSTM. Plain backpropagation computes a weight
gradient, as large as the recurrent kernel, at every time step, and adds them up. Here the backward
scan only collects the gate gradients, and a single product over all steps gives each weight's
gradient. The functions for scans and products also serve `cifg`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional, Union

from tff_agnostic.base.later import tf
from tff_agnostic.models.keras_platform import PlainForm, with_weights

# Maximum number of steps to unroll. Longer sequences use a loop, because their unrolled graph
# would be too large.
MAX_UNROLLED_STEPS = 64

# A series: values at all time steps, as a list of T tensors if steps are unrolled, else as
# a tensor [T, ...].
Series = Union[Sequence["tf.Tensor"], "tf.Tensor"]

State = tuple["tf.Tensor", ...]

# A step maps (state, values at one time step) to (new state, outputs). In the forward scan the new
# state is the state after the step, in the backward scan the gradient of the state before it.
Step = Callable[..., tuple[State, State]]


def steps_to_unroll(x: tf.Tensor) -> Optional[int]:
    """Returns the number of time steps of inputs [B, T, in]; None if steps run in a loop."""
    length = x.shape[1]
    return None if length is None or length > MAX_UNROLLED_STEPS else length


def to_series(values: tf.Tensor, steps: Optional[int]) -> Series:
    """Converts [T, ...] to a series: a list if `steps` is given, otherwise the tensor itself."""
    return values if steps is None else tf.unstack(values, num=steps)


def to_tensor(series: Series) -> tf.Tensor:
    """Returns the values of all steps as one tensor [T, ...]."""
    return tf.stack(series) if isinstance(series, list) else series


def delayed(series: Series, first: tf.Tensor) -> Series:
    """Shifts a series by one step: `first`, then all values of `series` except the last."""
    if isinstance(series, list):
        return [first, *series[:-1]]
    return tf.concat([first[tf.newaxis], series[:-1]], axis=0)


def scan(
    step: Step, initial: State, inputs: Series, mask: Optional[Series], num_saved: int
) -> tuple[list[Series], list[Series]]:
    """Runs a state forward through the time steps.

    Args:
        step: Maps (state, input) to (next state, tensors to save).
        initial: The state before the first step, tensors [B, ...] of one dtype.
        mask: Mask of each step, bool [B, 1], or None. Where it is False the state does not change.

    Returns:
        Two lists of series: the state's components after each step, and the saved tensors.
    """

    def masked_step(state: State, mask: Optional[tf.Tensor], value: tf.Tensor) -> tuple:
        after, saved = step(state, value)
        if mask is not None:
            after = tuple(tf.where(mask, new, old) for new, old in zip(after, state))
        return after, (*after, *saved)

    series = _walk(masked_step, initial, (mask, inputs), len(initial) + num_saved)
    return series[: len(initial)], series[len(initial) :]


def scan_back(
    step: Step,
    initial: State,
    d_outputs: Series,
    mask: Optional[Series],
    saved: Sequence[Series],
    num_outputs: int,
) -> list[Series]:
    """Runs the gradient of a state backward through the time steps.

    Args:
        step: Maps (gradient with respect to the state after the step, *saved) to (gradient with
            respect to the state before the step, outputs). Zero gradients must give zero outputs.
        initial: The gradient with respect to the last state.
        d_outputs: The gradient with respect to each step's output, which is the first component of
            its state.
        mask: As in `scan`.

    Returns:
        A series for each output of the step, in forward time order.
    """

    def masked_step(
        state: State, mask: Optional[tf.Tensor], d_output: tf.Tensor, *saved: tf.Tensor
    ) -> tuple:
        state = (state[0] + d_output, *state[1:])
        if mask is None:
            return step(state, *saved)
        carried = [tf.where(mask, tf.zeros_like(part), part) for part in state]
        taken = tuple(tf.where(mask, part, tf.zeros_like(part)) for part in state)
        before, outputs = step(taken, *saved)
        return tuple(map(tf.add, before, carried)), outputs

    return _walk(masked_step, initial, (mask, d_outputs, *saved), num_outputs, reverse=True)


def _walk(
    step: Step,
    state: State,
    series: Sequence[Optional[Series]],
    num_outputs: int,
    reverse: bool = False,
) -> list[Series]:
    """Applies a step at each time; returns its outputs as series. `series[-1]` must not be None."""

    def at(t: Any) -> list[Optional[tf.Tensor]]:
        return [None if values is None else values[t] for values in series]

    if isinstance(series[-1], list):
        times = range(len(series[-1]))
        outputs = []
        for t in reversed(times) if reverse else times:
            state, output = step(state, *at(t))
            outputs.append(output)
        if reverse:
            outputs.reverse()
        return [list(output) for output in zip(*outputs)]

    length = tf.shape(series[-1])[0]

    def body(count: tf.Tensor, state: State, arrays: list) -> tuple:
        t = length - 1 - count if reverse else count
        state, output = step(state, *at(t))
        return count + 1, state, [array.write(t, value) for array, value in zip(arrays, output)]

    arrays = [tf.TensorArray(state[0].dtype, size=length) for _ in range(num_outputs)]
    _, _, arrays = tf.while_loop(
        lambda count, *_: count < length, body, (tf.constant(0), state, arrays)
    )
    return [array.stack() for array in arrays]


def time_major(x: tf.Tensor) -> tf.Tensor:
    """Swaps the first two of three axes: [B, T, n] to [T, B, n] and back."""
    return tf.transpose(x, [1, 0, 2])


def flat(x: tf.Tensor) -> tf.Tensor:
    """Reshapes [T, B, n] to [T * B, n]."""
    return tf.reshape(x, [-1, x.shape[-1]])


def product_over_steps(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns the outer products of a [T, B, m] and b [T, B, n], summed over T and B, [m, n]."""
    return tf.matmul(flat(a), flat(b), transpose_a=True)


def input_product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x @ kernel + bias for all steps, [T, B, n], in one product."""
    # Append the bias to the kernel, which saves a pass over the result and one over its gradient.
    kernel_and_bias = tf.concat([kernel, bias[tf.newaxis]], axis=0)
    projected = tf.matmul(_with_ones(flat(x)), kernel_and_bias)
    shape = tf.shape(x)
    return tf.reshape(projected, [shape[0], shape[1], kernel.shape[1]])


def input_gradients(
    x: tf.Tensor, kernel: tf.Tensor, dz: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns `input_product`'s gradients for dz [T, B, n]: of x [B, T, in], kernel and bias."""
    dx = tf.reshape(tf.matmul(flat(dz), kernel, transpose_b=True), tf.shape(x))
    d_kernel_and_bias = tf.matmul(_with_ones(flat(x)), flat(dz), transpose_a=True)
    return time_major(dx), d_kernel_and_bias[:-1], d_kernel_and_bias[-1]


def _with_ones(x: tf.Tensor) -> tf.Tensor:
    return tf.concat([x, tf.ones([tf.shape(x)[0], 1], x.dtype)], axis=1)


def zero_state(x: tf.Tensor, size: int) -> tf.Tensor:
    """Returns zeros [B, size] for inputs x [T, B, in]."""
    return tf.zeros([tf.shape(x)[1], size], x.dtype)


def mask_series(mask: Optional[tf.Tensor], steps: Optional[int]) -> Optional[Series]:
    """Converts a mask [B, T] to a series of bool [B, 1]."""
    if mask is None:
        return None
    return to_series(time_major(tf.cast(mask, tf.bool)[:, :, tf.newaxis]), steps)


class RecurrentLayer(tf.keras.layers.Layer):
    """Base class of recurrent layers: arguments, gate weights, masks and serialisation.

    Inputs are float [B, T, in]; outputs are [B, T, out], or [B, out] without `return_sequences`. As
    in Keras' layers, a masked step (False in the mask, bool [B, T]) keeps the state and repeats the
    previous output, which is zeros at the start. With `return_sequences` the mask is passed on.

    A subclass defines `num_gates` and the position of the forget gate, creates its weights in
    `build`, and computes the outputs of all steps in `run`.
    """

    num_gates: int
    forget_gate: int

    def __init__(
        self,
        units: int,
        *,
        return_sequences: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = positive("units", units)
        self.return_sequences = return_sequences
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = tf.keras.initializers.get(recurrent_initializer)
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.unit_forget_bias = unit_forget_bias
        self.supports_masking = True
        self.input_spec = tf.keras.layers.InputSpec(ndim=3)

    def run(self, x: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
        """Returns the outputs of all steps, [B, T, out]."""
        raise NotImplementedError

    def call(self, inputs: tf.Tensor, mask: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Returns the outputs of all steps, or of the last step."""
        outputs = self.run(inputs, mask)
        return outputs if self.return_sequences else outputs[:, -1]

    def compute_mask(
        self, inputs: tf.Tensor, mask: Optional[tf.Tensor] = None
    ) -> Optional[tf.Tensor]:
        """Returns the inputs' mask with `return_sequences`; None otherwise."""
        del inputs
        return mask if self.return_sequences else None

    def add_gate_weights(self, input_size: Optional[int], state_size: int) -> None:
        """Creates `kernel`, `recurrent_kernel` and `bias`, in this order.

        Args:
            input_size: Size of the inputs' last axis.
            state_size: Size of the previous output that the gates use.

        Raises:
            ValueError: If `input_size` is None.
        """
        if input_size is None:
            raise ValueError(f"layer {self.name!r}: the last axis of its inputs has no known size")
        size = self.num_gates * self.units
        self.kernel = self.add_weight(
            name="kernel", shape=[input_size, size], initializer=self.kernel_initializer
        )
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel",
            shape=[state_size, size],
            initializer=self.recurrent_initializer,
        )
        self.bias = self.add_weight(name="bias", shape=[size], initializer=self._initial_bias)

    def keras_lstm(self, kernel: Any, recurrent_kernel: Any, bias: Any) -> tf.keras.layers.Layer:
        """Returns Keras' own LSTM with this layer's name and units.

        Args:
            kernel: Kernel [in, 4u]; gates i, f, g, o.
            recurrent_kernel: Recurrent kernel [u, 4u].
            bias: Bias [4u].
        """
        layer = tf.keras.layers.LSTM(
            self.units,
            return_sequences=self.return_sequences,
            name=self.name,
            dtype=self.dtype_policy,
        )
        return with_weights(layer, int(kernel.shape[0]), kernel, recurrent_kernel, bias)

    def _initial_bias(self, shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
        if not self.unit_forget_bias:
            return self.bias_initializer(shape, dtype=dtype)
        before = self.forget_gate * self.units
        after = shape[0] - before - self.units
        parts = [
            self.bias_initializer([before], dtype=dtype),
            tf.ones([self.units], dtype),
            self.bias_initializer([after], dtype=dtype),
        ]
        return tf.concat(parts, axis=0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        serialize = tf.keras.initializers.serialize
        return {
            **super().get_config(),
            "units": self.units,
            "return_sequences": self.return_sequences,
            "kernel_initializer": serialize(self.kernel_initializer),
            "recurrent_initializer": serialize(self.recurrent_initializer),
            "bias_initializer": serialize(self.bias_initializer),
            "unit_forget_bias": self.unit_forget_bias,
        }


def positive(name: str, value: Any) -> int:
    """Returns `value` if it is a positive integer.

    Raises:
        ValueError: If `value` is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a positive whole number, found {value!r}")
    return value


# Without this decorator, Keras would convert the function by AutoGraph, which takes 40%
# of a model's time.
@tf.autograph.experimental.do_not_convert
def lstm(
    x: tf.Tensor,
    mask: Optional[tf.Tensor],
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
) -> tf.Tensor:
    """Returns the states of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates).

    The gates are in Keras' order: input i, forget f, candidate g and output o, with u columns each.
    The initial state is zero.

        z_t = x_t W + h_{t-1} U + b,  i, f, o = sigmoid(z_t),  g = tanh(z_t)
        c_t = f c_{t-1} + i g,  h_t = o tanh(c_t)

    Args:
        x: Inputs, float [B, T, in].
        mask: Mask, bool [B, T]; None for all True. Where it is False, h and c do not change.
        kernel: Kernel W, [in, 4u].
        recurrent_kernel: Recurrent kernel U, [u, 4u].
        bias: Bias b, [4u].

    Returns:
        h_1 to h_T, [B, T, u]. They are differentiable with respect to x and the weights, to any
        order.
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
            # The first step adds nothing to the gradient of U, as its h_{t-1} is zero.
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
    # Compute dz U^T as (U dz^T)^T, to transpose small tensors instead of the large kernel.
    dh = tf.transpose(tf.matmul(recurrent_kernel, dz, transpose_b=True))
    return (dh, dc * f), (dz,)


@tf.keras.utils.register_keras_serializable(package="tff_agnostic")
class LSTM(RecurrentLayer):
    """`tf.keras.layers.LSTM` with one weight-gradient product per batch.

    Weights are interchangeable with Keras': `kernel` [in, 4u], `recurrent_kernel` [u, 4u] and
    `bias` [4u]. For arguments, shapes and masks see `RecurrentLayer`; activations are fixed, and
    the layer has no dropout and no state that persists between calls.
    """

    num_gates = 4
    forget_gate = 1

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        self.add_gate_weights(input_shape[-1], self.units)
        super().build(input_shape)

    def run(self, x: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
        """Returns the states h_1 to h_T."""
        weights = (self.kernel, self.recurrent_kernel, self.bias)
        return lstm(x, mask, *(tf.cast(w, x.dtype) for w in weights))

    def plain_form(self) -> PlainForm:
        """Returns Keras' LSTM with the same weights."""
        return self.keras_lstm(self.kernel, self.recurrent_kernel, self.bias)
