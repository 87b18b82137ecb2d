"""Logistic regression on the pixels of EMNIST's images, as in Laguel et al. 2021."""

import functools

import tensorflow as tf

from tff_agnostic.models.emnist_cnn import image_model
from tff_agnostic.models.functional import Model


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
    return image_model(functools.partial(_build, num_classes))


def _build(num_classes: int) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input([28, 28, 1]),
            layers.Flatten(),
            layers.Dense(num_classes, kernel_initializer="zeros"),
        ]
    )
