"""Small models, and weights for them."""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_agnostic.models.model import Model, ModelWeights


def random_weights(seed: int = 0) -> ModelWeights:
    """Returns random weights of a logistic regression with 4 features and 3 classes."""
    rng = np.random.default_rng(seed)
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in ([4, 3], [3])], [])


def linear_model(initial: float = 4.0, regularizer: Any = None) -> Model:
    """Returns a model with one weight w, where an example's loss is x * w."""
    return Model(
        initial_weights=ModelWeights([np.array([initial], np.float32)], []),
        example_spec={"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([None], tf.int32)},
        predict=lambda weights, x, training, seed: tf.multiply(x, weights.trainable[0]),
        loss=lambda labels, predictions: predictions,
        regularizer=regularizer,
    )


def squared_differences() -> Model:
    """Returns a linear regression with the squared loss and two weights, initially 0."""
    return Model(
        initial_weights=ModelWeights([np.zeros([2], np.float32)], []),
        example_spec={
            "x": tf.TensorSpec([None, 2], tf.float32),
            "y": tf.TensorSpec([None], tf.float32),
        },
        predict=lambda weights, x, training, seed: tf.linalg.matvec(x, weights.trainable[0]),
        loss=lambda labels, predictions: tf.square(labels - predictions),
    )
