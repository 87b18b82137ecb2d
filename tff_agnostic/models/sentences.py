"""What next-word models have in common: sentences as ids, and the loss of a sentence."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Optional

import tensorflow as tf

from tff_agnostic.models.losses import sparse_cross_entropy


def sentence_spec(sequence_length: int) -> Mapping[str, tf.TensorSpec]:
    """Specs of "x" and "y" of T ids each, int32 [n, T]."""
    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return {"x": spec, "y": spec}


def is_word(labels: tf.Tensor) -> tf.Tensor:
    """1 where there is something to predict, 0 where there is padding: float32 [n, T]."""
    return tf.cast(tf.not_equal(labels, 0), tf.float32)


def word_cross_entropies(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of every word, 0 at padding, float [n, T].

    Args:
        labels: Ids, int [n, T].
        scores: float [n, T, ids].
    """
    rows = tf.reshape(scores, [-1, scores.shape[-1]])
    per_word = sparse_cross_entropy(tf.reshape(labels, [-1]), rows)
    per_word = tf.reshape(per_word, tf.shape(labels))
    # Not a product: scores at padding mean nothing, and 0 times an infinite one would be NaN.
    return tf.where(is_word(labels) > 0, per_word, tf.zeros_like(per_word))


@dataclasses.dataclass(frozen=True)
class SentenceLoss:
    """The loss of a sentence, (labels int [n, T], scores [n, T, ids]) -> [n].

    One example is a sentence: alpha, beta and the domains' counts count sentences, and a sentence
    has one loss. By default it is the mean of the cross-entropy over the sentence's words. The loss
    of a domain is then one of predicting a word, whatever the length of the domain's sentences: a
    sum would hand the weight lambda to the domain with the longer ones. With `expected_length` it
    is the sum over the sentence divided by that constant, as in FedJAX: every word has the same
    weight, as it has in perplexity. A sentence without words has the loss 0.

    Attributes:
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
    """

    # As cross-entropies of Keras' say it.
    from_logits: ClassVar[bool] = True

    expected_length: Optional[float] = None

    def __call__(self, labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each sentence."""
        total = tf.reduce_sum(word_cross_entropies(labels, scores), axis=1)
        if self.expected_length is not None:
            return total / self.expected_length
        return tf.math.divide_no_nan(total, tf.reduce_sum(is_word(labels), axis=1))
