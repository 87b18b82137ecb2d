"""Keras layers on word vectors, for next-word models and text classifiers.

Importing this module loads Keras.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.models.keras_platform import PlainForm, with_weights


class DenseOverSteps(tf.keras.layers.Dense):
    """Dense layer that reshapes [n, T, in] to [n T, in], so that TensorFlow fuses the bias."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the outputs, [n, T, units]."""
        rows = super().call(tf.reshape(inputs, [-1, inputs.shape[-1]]))
        return tf.reshape(rows, [-1, inputs.shape[1], self.units])

    def plain_form(self) -> PlainForm:
        """Returns Keras' dense layer with the same weights."""
        layer = tf.keras.layers.Dense(self.units, name=self.name, dtype=self.dtype_policy)
        return with_weights(layer, int(self.kernel.shape[0]), self.kernel, self.bias)


class TiedEmbedding(tf.keras.layers.Embedding):
    """Word vectors that are also the output weights: they map a state to a score for each word."""

    def build(self, input_shape: Any) -> None:
        """Creates the word vectors, and a bias for each word."""
        super().build(input_shape)
        self.bias = self.add_weight(name="bias", shape=[self.input_dim], initializer="zeros")

    def call(self, inputs: tf.Tensor, as_scores: bool = False) -> tf.Tensor:
        """Maps ids [n, T] to vectors [n, T, size]; or states [n, T, size] to scores [n, T, ids]."""
        if not as_scores:
            return super().call(inputs)
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        scores = tf.nn.bias_add(tf.matmul(rows, self.embeddings, transpose_b=True), self.bias)
        return tf.reshape(scores, [-1, inputs.shape[1], self.input_dim])

    def compute_output_spec(self, inputs: Any, as_scores: bool = False) -> Any:
        """Returns shape and dtype of `call`'s outputs; Keras 3 requires this method."""
        size = self.input_dim if as_scores else self.output_dim
        return tf.keras.KerasTensor([*inputs.shape[:2], size], dtype=self.compute_dtype)

    def plain_form(self) -> PlainForm:
        """Returns Keras' embedding and a dense layer with copied weights; Keras cannot tie them."""
        embedding = tf.keras.layers.Embedding(
            self.input_dim, self.output_dim, name=self.name, dtype=self.dtype_policy
        )
        embedding = with_weights(embedding, 1, self.embeddings)
        scores = tf.keras.layers.Dense(
            self.input_dim, name=f"{self.name}_scores", dtype=self.dtype_policy
        )
        transposed = tf.transpose(self.embeddings)
        scores = with_weights(scores, self.output_dim, transposed, self.bias)
        return lambda inputs, as_scores=False: (scores if as_scores else embedding)(inputs)


class WordMean(tf.keras.layers.Layer):
    """Layer that averages word vectors over unmasked steps: [n, T, size] to [n, size]."""

    def call(self, inputs: tf.Tensor, mask: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Returns the means; zeros if all steps are masked."""
        weights = tf.cast(tf.ones_like(inputs[:, :, 0]) if mask is None else mask, inputs.dtype)
        total = tf.reduce_sum(inputs * weights[:, :, tf.newaxis], axis=1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1, keepdims=True))

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """Returns None, as a mean has no steps; without this method Keras 3 warns."""

    def plain_form(self) -> PlainForm:
        """Returns Keras' attention with zero queries, so that all words have the same weight.

        The result is the attention output at the first step. If that step is padding, the text has
        no words, and attention with a masked query is 0; average pooling would divide 0 by 0.
        """

        def form(inputs: tf.Tensor) -> tf.Tensor:
            make = functools.partial(_keras_layer, self)
            queries = make("ReLU", "queries", max_value=0.0)(inputs)
            means = make("Attention", "means")([queries, inputs])
            first = make("Cropping1D", "first", cropping=(0, inputs.shape[1] - 1))(means)
            return make("Reshape", target_shape=[inputs.shape[-1]])(first)

        return form


def _keras_layer(
    original: tf.keras.layers.Layer, kind: str, part: str = "", **arguments: Any
) -> tf.keras.layers.Layer:
    name = f"{original.name}_{part}" if part else original.name
    dtype = original.dtype_policy
    return getattr(tf.keras.layers, kind)(name=name, dtype=dtype, **arguments)


# Keep the class names that saved configurations contain.
DenseOverSteps.__name__ = "_DenseOverSteps"
TiedEmbedding.__name__ = "_TiedEmbedding"
WordMean.__name__ = "_MeanOfWords"
