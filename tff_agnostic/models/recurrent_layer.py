"""The Keras side of a recurrent layer: arguments, weights, masks and serialisation."""

from typing import Any, Optional

import tensorflow as tf

from tff_agnostic.models.plain_keras import with_weights


class RecurrentLayer(tf.keras.layers.Layer):
    """Base of the recurrent layers: arguments, weights of gates, masks and serialisation.

    Inputs are float [B, T, in]; outputs are [B, T, out], or [B, out] without `return_sequences`. A
    step where the mask (bool [B, T]) is False carries the state on, and repeats the output before
    it, zeros at the start, as Keras' layers do. With `return_sequences` the mask is handed on.

    A subclass has `num_gates` and the position of the forget gate among them, creates its weights
    in `build`, and computes the outputs of all steps in `run`.
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
        """The outputs of all steps, [B, T, out]."""
        raise NotImplementedError

    def call(self, inputs: tf.Tensor, mask: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Outputs of all steps, or of the last one."""
        outputs = self.run(inputs, mask)
        return outputs if self.return_sequences else outputs[:, -1]

    def compute_mask(
        self, inputs: tf.Tensor, mask: Optional[tf.Tensor] = None
    ) -> Optional[tf.Tensor]:
        """Outputs of all steps are masked like the inputs, the last one is not."""
        del inputs
        return mask if self.return_sequences else None

    def add_gate_weights(self, input_size: Optional[int], state_size: int) -> None:
        """Creates `kernel`, `recurrent_kernel` and `bias`, in this order.

        Args:
            input_size: Size of the inputs' last axis.
            state_size: Size of the state that the gates see.

        Raises:
            ValueError: If the size of the inputs' last axis is not known.
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
            kernel: [in, 4u]; gates i, f, g, o.
            recurrent_kernel: [u, 4u].
            bias: [4u].
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
        """The arguments of the constructor."""
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
    """Returns an argument of a layer that must be a positive whole number.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a positive whole number, found {value!r}")
    return value
