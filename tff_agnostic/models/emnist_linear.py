"""Logistic regression on the pixels of EMNIST's images, as in Laguel et al. 2021."""

import functools

import tensorflow as tf

from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.losses import sparse_cross_entropy
from tff_agnostic.models.metrics import accuracy


def emnist_linear(num_classes: int = 62) -> Model:
    """Returns multinomial logistic regression: x float32 [n, 28, 28, 1], y int32 [n].

    Predictions are scores, float32 [n, num_classes]; the loss is cross-entropy. It starts at zero.

    Args:
        num_classes: 62 for digits and letters, 10 for digits.
    """
    return _emnist_linear(num_classes, tf.keras.mixed_precision.global_policy().name)


@functools.lru_cache(maxsize=8)
def _emnist_linear(num_classes: int, policy: str) -> Model:
    del policy  # Keras' own, part of the key.
    return model_from_keras(
        functools.partial(_build, num_classes),
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
            layers.Flatten(),
            layers.Dense(num_classes, kernel_initializer="zeros"),
        ]
    )
