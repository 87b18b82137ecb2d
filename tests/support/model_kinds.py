"""Small models of every kind, with random clients, for tests of runtimes."""

from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tests.support import keras_zoo
from tests.support.clients import NUM_DOMAINS, random_client
from tff_agnostic.models import Model, accuracy, logistic_regression, next_word_lstm
from tff_agnostic.models.keras import freeze


class ModelKind(NamedTuple):
    """A kind of model.

    Attributes:
        model: Builder of the model.
        client: Called with a generator and a size; returns a random client.
        has_real_inputs: Whether inputs are floats, which can be NaN.
        has_relu: Whether the model has a ReLU, whose kernel may replace NaN by 0. It is then
            undefined whether an evaluation sees a client's NaN.
        tolerance: Maximum difference between runtimes, relative to an array's largest value. TFF's
            worker and Python's TensorFlow are two builds with different convolution kernels.
    """

    model: Callable[[], Model]
    client: Callable[[np.random.Generator, int], dict[str, Any]]
    has_real_inputs: bool = True
    has_relu: bool = False
    tolerance: float = 1e-5


def _from_zoo(kind: keras_zoo.Kind, has_real_inputs: bool = True) -> ModelKind:
    def client(rng: np.random.Generator, size: int) -> dict[str, Any]:
        domain_id = rng.integers(NUM_DOMAINS, size=size).astype(np.int32)
        return {"x": kind.x(rng, size), "y": kind.y(rng, size), "domain_id": domain_id}

    return ModelKind(lambda: kind.model(metrics=[accuracy()]), client, has_real_inputs)


def _frozen(kind: ModelKind, layer: str) -> ModelKind:
    return kind._replace(model=lambda: freeze(kind.model(), [layer]))


def _dropout_between() -> tf.keras.Model:
    inputs = tf.keras.Input([5])
    hidden = tf.keras.layers.Dense(7, activation="tanh", kernel_regularizer="l2")(inputs)
    hidden = tf.keras.layers.Dropout(0.5)(hidden)
    constraint = tf.keras.constraints.MaxNorm(0.3)
    last = tf.keras.layers.Dense(3, bias_regularizer="l1", kernel_constraint=constraint)
    return tf.keras.Model(inputs, last(hidden))


def _word_bag() -> tf.keras.Model:
    tokens = tf.keras.Input([5], dtype=tf.int32)
    mean = tf.reduce_mean(tf.keras.layers.Embedding(11, 4)(tokens), axis=1)
    return tf.keras.Model(tokens, tf.keras.layers.Dense(3)(mean))


_WORD_BAG = keras_zoo.classification(_word_bag, 5)._replace(
    x=lambda rng, n: rng.integers(11, size=[n, 5]).astype(np.int32),
    x_spec=tf.TensorSpec([None, 5], tf.int32),
)


def _sentences(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    # Sentences have one to three words, and then 0 as padding.
    words = rng.integers(1, 9, size=[size, 3])
    x = np.where(np.arange(3) < rng.integers(1, 4, size=[size, 1]), words, 0).astype(np.int32)
    domain_id = rng.integers(NUM_DOMAINS, size=size).astype(np.int32)
    return {"x": x, "y": np.roll(x, -1, axis=1), "domain_id": domain_id}


KINDS = {
    "logistic": ModelKind(
        lambda: logistic_regression(4, 3),
        lambda rng, size: random_client(rng, size, range(NUM_DOMAINS)),
    ),
    "dropout": _from_zoo(keras_zoo.KINDS["dense_with_dropout"])._replace(has_relu=True),
    # The first of two dense layers is frozen.
    "frozen": _frozen(_from_zoo(keras_zoo.classification(_dropout_between, 5)), "dense"),
    "convolutional": _from_zoo(keras_zoo.KINDS["convolutional"])._replace(
        has_relu=True, tolerance=2e-4
    ),
    "dict_of_inputs": _from_zoo(keras_zoo.KINDS["two_inputs"]),
    "embedding": _from_zoo(_WORD_BAG, has_real_inputs=False),
    "next_word": ModelKind(
        lambda: next_word_lstm(5, embedding=3, units=4, sequence_length=3),
        _sentences,
        has_real_inputs=False,
    ),
}
