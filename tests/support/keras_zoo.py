"""Keras models of many kinds, with random batches for them."""

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tff_agnostic.models import CIFG, LSTM, Metric, Model, model_from_keras

layers = tf.keras.layers


class Kind(NamedTuple):
    """A Keras model and data for it.

    Attributes:
        build: Returns the built Keras model.
        x: Called with a generator and n; returns n random inputs.
        y: Called with a generator and n; returns n random labels.
        x_spec: Spec of the inputs.
        y_spec: Spec of the labels.
        loss: Called with labels and predictions; returns n losses.
    """

    build: Callable[[], tf.keras.Model]
    x: Callable[[np.random.Generator, int], Any]
    y: Callable[[np.random.Generator, int], np.ndarray]
    x_spec: Any
    y_spec: tf.TensorSpec
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    def model(self, seed: int = 0, loss: Any = None, metrics: Sequence[Metric] = ()) -> Model:
        return model_from_keras(
            self.build,
            loss=loss or self.loss,
            example_spec={"x": self.x_spec, "y": self.y_spec},
            metrics=metrics,
            seed=seed,
        )


def classification(build: Callable[[], tf.keras.Model], features: Any, classes: int = 3) -> Kind:
    """Returns a classifier; its inputs have the shape [n, *features]."""
    shape = list(np.atleast_1d(features))
    return Kind(
        build,
        x=lambda rng, n: rng.normal(size=[n, *shape]).astype(np.float32),
        y=lambda rng, n: rng.integers(classes, size=n).astype(np.int32),
        x_spec=tf.TensorSpec([None, *shape], tf.float32),
        y_spec=tf.TensorSpec([None], tf.int32),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
    )


def _token_loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    mask = tf.cast(labels > 0, tf.float32)
    return tf.reduce_sum(per_token * mask, axis=1)


def language_model(build: Callable[[], tf.keras.Model]) -> Kind:
    """Returns a next-token model for sentences of 1 to 6 tokens, padded with 0."""

    def tokens(rng: np.random.Generator, n: int) -> np.ndarray:
        sentences = rng.integers(1, 11, size=[n, 6])
        lengths = rng.integers(1, 7, size=[n, 1])
        return np.where(np.arange(6) < lengths, sentences, 0).astype(np.int32)

    spec = tf.TensorSpec([None, 6], tf.int32)
    return Kind(build, tokens, tokens, spec, spec, _token_loss)


def dense() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    hidden = layers.Dense(7, activation="tanh", kernel_regularizer="l2")(inputs)
    return tf.keras.Model(inputs, layers.Dense(3, bias_regularizer="l1")(hidden))


def dense_with_dropout() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    hidden = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(inputs))
    hidden = layers.GaussianNoise(0.3)(hidden)
    return tf.keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.2)(hidden)))


def convolutional() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.Input([8, 8, 1]),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPool2D(2),
            layers.Conv2D(6, 2, activation="relu", use_bias=False),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.LayerNormalization(),
            layers.Dense(3),
        ]
    )


def lstm_with_masking() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    embedded = layers.Embedding(11, 4, mask_zero=True)(tokens)
    states = layers.LSTM(5, return_sequences=True)(embedded)
    return tf.keras.Model(tokens, layers.Dense(11)(states))


def lstm_with_dropout() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    embedded = layers.Embedding(11, 4, mask_zero=True)(tokens)
    states = layers.LSTM(5, return_sequences=True, dropout=0.4, recurrent_dropout=0.3)(embedded)
    return tf.keras.Model(tokens, layers.Dense(11)(states))


def own_recurrent_layers() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    embedded = layers.Embedding(11, 4, mask_zero=True)(tokens)
    states = LSTM(5, return_sequences=True)(embedded)
    states = CIFG(4, projection_units=3, return_sequences=True)(states)
    return tf.keras.Model(tokens, layers.Dense(11)(states))


def stacked_cells() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    states = layers.Embedding(11, 4)(tokens)
    states = layers.RNN([layers.LSTMCell(5), layers.GRUCell(4)], return_sequences=True)(states)
    return tf.keras.Model(tokens, layers.Dense(11)(states))


def attention() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    states = layers.Embedding(11, 4)(tokens)
    states = states + layers.MultiHeadAttention(2, 3)(states, states)
    return tf.keras.Model(tokens, layers.Dense(11)(states))


def nested() -> tf.keras.Model:
    inner = tf.keras.Sequential([layers.Dense(6, activation="relu"), layers.Dense(5)])
    inputs = tf.keras.Input([5])
    return tf.keras.Model(inputs, layers.Dense(3)(inner(inner(inputs))))


class _WeightList(tf.keras.layers.Layer):
    """A layer with one list of weights and another list of sub-layers."""

    def build(self, input_shape: Any) -> None:
        size = int(input_shape[-1])
        self.matrices = [self.add_weight(shape=[size, size]) for _ in range(3)]
        self.heads = [layers.Dense(2), layers.Dense(2)]

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        for matrix in self.matrices:
            inputs = tf.tanh(inputs @ matrix)
        return tf.concat([head(inputs) for head in self.heads], axis=-1)


def weights_in_lists() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    return tf.keras.Model(inputs, _WeightList()(inputs))


class _TiedOutput(tf.keras.layers.Layer):
    """A layer that multiplies by the transposed weights of an embedding."""

    def __init__(self, embedding: tf.keras.layers.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, self.embedding.embeddings, transpose_b=True)


def tied_embedding() -> tf.keras.Model:
    tokens = tf.keras.Input([6], dtype=tf.int32)
    embedding = layers.Embedding(11, 4)
    states = layers.LSTM(4, return_sequences=True)(embedding(tokens))
    return tf.keras.Model(tokens, _TiedOutput(embedding)(states))


class _TiedVariable(tf.keras.layers.Layer):
    """A layer that has another layer's weight as an attribute."""

    def __init__(self, shared: tf.Variable) -> None:
        super().__init__()
        self.shared = shared

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, self.shared, transpose_b=True)


def tied_variable() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    dense_layer = layers.Dense(3, use_bias=False)
    hidden = dense_layer(inputs)
    return tf.keras.Model(inputs, _TiedVariable(dense_layer.kernel)(hidden))


def frozen_normalization() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    normalize = layers.BatchNormalization(trainable=False)
    return tf.keras.Model(inputs, layers.Dense(3)(normalize(inputs)))


def two_inputs() -> tf.keras.Model:
    numbers, token = tf.keras.Input([4], name="numbers"), tf.keras.Input([], name="token")
    embedded = layers.Embedding(5, 3)(token)
    joined = layers.Concatenate()([layers.Dense(4)(numbers), embedded])
    return tf.keras.Model({"numbers": numbers, "token": token}, layers.Dense(3)(joined))


_TWO_INPUTS = classification(two_inputs, 4)._replace(
    x=lambda rng, n: {
        "numbers": rng.normal(size=[n, 4]).astype(np.float32),
        "token": rng.integers(5, size=n).astype(np.int32),
    },
    x_spec={
        "numbers": tf.TensorSpec([None, 4], tf.float32),
        "token": tf.TensorSpec([None], tf.int32),
    },
)

KINDS = {
    "dense": classification(dense, 5),
    "dense_with_dropout": classification(dense_with_dropout, 5),
    "convolutional": classification(convolutional, [8, 8, 1]),
    "lstm_with_masking": language_model(lstm_with_masking),
    "lstm_with_dropout": language_model(lstm_with_dropout),
    "own_recurrent_layers": language_model(own_recurrent_layers),
    "stacked_cells": language_model(stacked_cells),
    "attention": language_model(attention),
    "nested": classification(nested, 5),
    "weights_in_lists": classification(weights_in_lists, 5, classes=4),
    "tied_embedding": language_model(tied_embedding),
    "tied_variable": classification(tied_variable, 5, classes=5),
    "frozen_normalization": classification(frozen_normalization, 5),
    "two_inputs": _TWO_INPUTS,
}
