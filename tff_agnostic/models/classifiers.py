"""EMNIST CNN, EMNIST linear model, and logistic regression."""

from __future__ import annotations

import functools
from typing import Callable

from tff_agnostic.base.later import tf
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.metrics import accuracy, sparse_cross_entropy
from tff_agnostic.models.model import Model


def emnist_cnn(num_classes: int = 62, seed: int = 0) -> Model:
    """Returns a CNN for images of 28 x 28: x float32 [n, 28, 28, 1], y int32 [n].

    Two convolutions, max-pooling, a hidden layer, and dropout (Reddi et al. 2021); 1,206,590
    parameters with 62 classes. Predictions are scores, float32 [n, num_classes]; the loss is
    cross-entropy. Models that only differ in their seeds are equal, and traced once.

    Args:
        num_classes: Number of classes: 62 for digits and letters, 10 for digits.
        seed: Seed of the initial weights.
    """
    model = _emnist_cnn(num_classes, tf.keras.mixed_precision.global_policy().name)
    return with_seed(model, functools.partial(_build, num_classes), seed)


@functools.lru_cache(maxsize=8)
def _emnist_cnn(num_classes: int, policy: str) -> Model:
    del policy  # Keras' dtype policy is part of the cache key.
    return image_model(functools.partial(_build, num_classes))


def image_model(build: Callable[[], tf.keras.Model]) -> Model:
    """Returns a classifier of EMNIST images: a Keras model with cross-entropy loss.

    Args:
        build: Returns the Keras model for images [28, 28, 1].
    """
    return model_from_keras(
        build,
        loss=sparse_cross_entropy,
        example_spec={
            "x": tf.TensorSpec([None, 28, 28, 1], tf.float32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        metrics=[accuracy()],
    )


def _build(num_classes: int) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input([28, 28, 1]),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPool2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(num_classes),
        ]
    )


def emnist_linear(num_classes: int = 62) -> Model:
    """Returns multinomial logistic regression: x float32 [n, 28, 28, 1], y int32 [n].

    Predictions are scores, float32 [n, num_classes]; the loss is cross-entropy. Weights start at
    zero.

    Args:
        num_classes: Number of classes: 62 for digits and letters, 10 for digits.
    """
    return _emnist_linear(num_classes, tf.keras.mixed_precision.global_policy().name)


@functools.lru_cache(maxsize=8)
def _emnist_linear(num_classes: int, policy: str) -> Model:
    del policy  # Keras' dtype policy is part of the cache key.
    return image_model(functools.partial(_build_linear, num_classes))


def _build_linear(num_classes: int) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input([28, 28, 1]),
            layers.Flatten(),
            layers.Dense(num_classes, kernel_initializer="zeros"),
        ]
    )


def logistic_regression(num_features: int, num_classes: int, ridge: float = 0.0) -> Model:
    """Returns softmax regression: x float32 [n, features], y int32 [n], cross-entropy loss.

    Weights start at zero; the objective is convex. Calls with equal arguments return the same
    object, so that runtimes trace it once for all trials.

    Args:
        num_features: Number of entries of x.
        num_classes: Number of classes.
        ridge: Penalty factor: ridge / 2 ||w||^2, including biases, is added to every example's
            loss.
    """
    return _logistic_regression(
        num_features, num_classes, ridge, tf.keras.mixed_precision.global_policy().name
    )


@functools.cache
def _logistic_regression(num_features: int, num_classes: int, ridge: float, policy: str) -> Model:
    del policy  # Keras' dtype policy is part of the cache key.

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
