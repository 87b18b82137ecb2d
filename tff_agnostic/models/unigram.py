"""A distribution over outcomes, such as words, without any input: a unigram model.

An example is an outcome, and is its own label: what is predicted of it is how probable it was.
Hamer, Mohri, Suresh 2020, section 2: density estimation is classification without inputs.
"""

import functools

import numpy as np
import tensorflow as tf

from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.metrics import Metric

# Of an outcome's -log h, in nats; see `text_metrics`.
_MAX_CROSS_ENTROPY = 20.0


@functools.cache
def unigram_model(num_outcomes: int) -> Model:
    """Returns the model: x and y int32 [n], both the outcome; the loss is -log h(x), in nats.

    Its weights are scores, one for each outcome, of which h is the softmax; they start at 0. Equal
    arguments give the same object, so that what a runtime traced in one trial serves the next.

    Args:
        num_outcomes: How many outcomes there are.
    """
    spec = tf.TensorSpec([None], tf.int32)
    return Model(
        initial_weights=ModelWeights([np.zeros([num_outcomes], np.float32)], []),
        example_spec={"x": spec, "y": spec},
        predict=_predict,
        loss=unigram_loss,
        metrics=(
            Metric(
                "perplexity",
                _cross_entropy,
                max_numerator=_MAX_CROSS_ENTROPY,
                upper=_MAX_CROSS_ENTROPY,
                higher_is_better=False,
                transform=tf.exp,
                num_bins=1001,
                shown_as="factor",
            ),
        ),
    )


def unigram_loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Returns -log h(x), float32 [n], of predictions whose first column is log h(x)."""
    del labels
    return -predictions[:, 0]


def _predict(weights: ModelWeights, x: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
    del training, seed
    return tf.gather(tf.nn.log_softmax(weights.trainable[0]), x)[:, tf.newaxis]


def _cross_entropy(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    losses = unigram_loss(labels, predictions)
    return losses, tf.ones(tf.shape(losses))
