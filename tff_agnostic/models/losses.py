"""Losses: cross-entropy in fewer passes over the scores, and the loss of a sentence.

TensorFlow's own cross-entropy prepares the gradient even where none is taken, as in the domain
pass, and computes each exponential twice. With 10,000 classes, which exceed a processor's caches,
that is most of a language model's time next to its matrix products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, ClassVar, Optional

from tff_agnostic.later import tf

# From here on, a pass over all scores for the gradient of one class in each row costs too much.
_MANY_CLASSES = 1000


def sparse_cross_entropy(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each example, in the dtype of `scores`, [n].

    Args:
        labels: int [n], in [0, classes).
        scores: Logits, float [n, classes].
    """

    @tf.custom_gradient
    def cross_entropy(scores: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        softmax = tf.nn.softmax(scores)
        # The largest probability is never too small for its logarithm, as the label's may be.
        log_total = tf.reduce_max(scores, axis=-1) - tf.math.log(tf.reduce_max(softmax, axis=-1))
        of_label = tf.gather(scores, labels, axis=-1, batch_dims=1)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _minus_at(softmax * upstream[:, tf.newaxis], labels, upstream)

        return log_total - of_label, gradient

    return cross_entropy(scores)


@dataclasses.dataclass(frozen=True)
class OfColumns:
    """A loss of labels [n] and one output each, by a loss of Keras' of columns [n, 1].

    Attributes:
        loss: Keras' loss.
    """

    loss: tf.keras.losses.Loss

    def __call__(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example."""
        return self.loss(labels[:, tf.newaxis], tf.reshape(predictions, [-1, 1]))


def takes_scores(loss: Any) -> Optional[bool]:
    """Returns whether a loss is a cross-entropy of scores, or of probabilities.

    Args:
        loss: A loss function, or a loss of Keras'.

    Returns:
        True of scores, of which a softmax, or the sigmoid of a single one, makes probabilities;
        False of probabilities; None of any loss that does not say.
    """
    if isinstance(loss, OfColumns):
        return takes_scores(loss.loss)
    if loss is sparse_cross_entropy:
        return True
    if isinstance(loss, tf.keras.losses.Loss):
        # Some losses have it as an attribute, others in their function's arguments.
        found = loss.get_config().get("from_logits")
    else:
        found = getattr(loss, "from_logits", None)
    return found if isinstance(found, bool) else None


def _minus_at(rows: tf.Tensor, labels: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Subtracts values [n] from rows [n, classes] in the column of each row's label."""
    num_classes = rows.shape[-1]
    if num_classes is not None and num_classes < _MANY_CLASSES:
        # Unlike scattering, this has a vectorised form.
        return rows - tf.one_hot(labels, num_classes, dtype=rows.dtype) * values[:, tf.newaxis]
    positions = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), labels], axis=1)
    return tf.tensor_scatter_nd_sub(rows, positions, values)


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

    # In the words of Keras' cross-entropies.
    from_logits: ClassVar[bool] = True

    expected_length: Optional[float] = None

    def __call__(self, labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each sentence."""
        total = tf.reduce_sum(word_cross_entropies(labels, scores), axis=1)
        if self.expected_length is not None:
            return total / self.expected_length
        return tf.math.divide_no_nan(total, tf.reduce_sum(is_word(labels), axis=1))
