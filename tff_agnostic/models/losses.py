"""Cross-entropy in fewer passes over the scores than TensorFlow's own operation takes.

That one prepares the gradient even where there is none to take, as in the domain pass, and computes
each exponential twice: with 10,000 classes, which exceed a processor's caches, most of a language
model's time beside its matrix products.
"""

import dataclasses
from typing import Any, Callable, Optional

import tensorflow as tf

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
        # Some have it as an attribute, and some in what they pass on.
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
