"""The convolutional network for EMNIST of Reddi et al. 2021."""

import functools
from typing import Callable

import tensorflow as tf

from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.losses import sparse_cross_entropy
from tff_agnostic.models.metrics import accuracy


def emnist_cnn(num_classes: int = 62, seed: int = 0) -> Model:
    """Returns a CNN for images of 28 x 28: x float32 [n, 28, 28, 1], y int32 [n].

    Two convolutions, max-pooling, a hidden layer, and dropout (Reddi et al. 2021);
    1,206,590 parameters with 62 classes. Predictions are scores, float32 [n, num_classes]; the loss
    is cross-entropy. Models that differ in their seeds only are equal: runtimes trace one of them.

    Args:
        num_classes: 62 for digits and letters, 10 for digits.
        seed: Seeds the initial weights.
    """
    model = _emnist_cnn(num_classes, tf.keras.mixed_precision.global_policy().name)
    return with_seed(model, functools.partial(_build, num_classes), seed)


@functools.lru_cache(maxsize=8)
def _emnist_cnn(num_classes: int, policy: str) -> Model:
    del policy  # Keras' own, part of the key.
    return image_model(functools.partial(_build, num_classes))


def image_model(build: Callable[[], tf.keras.Model]) -> Model:
    """Returns a classifier of EMNIST's images: cross-entropy of a Keras model's scores.

    Args:
        build: Returns the Keras model, of images [28, 28, 1].
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
