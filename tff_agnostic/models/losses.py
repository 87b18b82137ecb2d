"""Cross-entropy in fewer passes over the scores than TensorFlow's own operation takes.

That one prepares the gradient even where there is none to take, as in the domain pass, and computes
each exponential twice: with 10,000 classes, which exceed a processor's caches, most of a language
model's time beside its matrix products.
"""

from typing import Callable

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


def _minus_at(rows: tf.Tensor, labels: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Subtracts values [n] from rows [n, classes] in the column of each row's label."""
    num_classes = rows.shape[-1]
    if num_classes is not None and num_classes < _MANY_CLASSES:
        # Unlike scattering, this has a vectorised form.
        return rows - tf.one_hot(labels, num_classes, dtype=rows.dtype) * values[:, tf.newaxis]
    positions = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), labels], axis=1)
    return tf.tensor_scatter_nd_sub(rows, positions, values)
