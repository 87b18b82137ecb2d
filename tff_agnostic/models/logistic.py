"""Multinomial logistic regression."""

import functools

import tensorflow as tf

from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.losses import sparse_cross_entropy
from tff_agnostic.models.metrics import accuracy


def logistic_regression(num_features: int, num_classes: int, ridge: float = 0.0) -> Model:
    """Returns softmax regression: x float32 [n, features], y int32 [n], cross-entropy loss.

    Weights start at zero; the objective is convex. Equal arguments give the same object, so that
    what a runtime traced in one trial serves the next.

    Args:
        num_features: Entries of x.
        num_classes: Classes, each with a score of its own.
        ridge: Half of it times the squared norm of all weights, those of the bias among them, is
            part of every example's loss.
    """
    return _logistic_regression(
        num_features, num_classes, ridge, tf.keras.mixed_precision.global_policy().name
    )


@functools.cache
def _logistic_regression(num_features: int, num_classes: int, ridge: float, policy: str) -> Model:
    del policy  # Keras' own, part of the key.

    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([num_features])
        penalty = tf.keras.regularizers.L2(ridge / 2) if ridge else None
        scores = tf.keras.layers.Dense(
            num_classes,
            kernel_initializer="zeros",
            kernel_regularizer=penalty,
            bias_regularizer=penalty,
        )(inputs)
        return tf.keras.Model(inputs, scores)

    return model_from_keras(
        build,
        loss=sparse_cross_entropy,
        example_spec={
            "x": tf.TensorSpec([None, num_features], tf.float32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        metrics=[accuracy()],
    )
