"""Losses, and metrics as ratios of sums, for classes, numbers and words.

**Losses** are a cross-entropy that needs fewer passes over the scores, and a loss per sentence.
TensorFlow's own cross-entropy prepares the gradient even if no gradient is taken, and computes each
exponential twice. With 10,000 classes, which exceed a processor's caches, this takes most of a
language model's time outside matrix products.

**Metrics** for classes and numbers take labels [n]. Predictions are scores [n, classes], or float
[n] or [n, 1] for a single output.

Metrics for words take labels int [n, T], with ids of `TokenIds`, and scores float [n, T, ids] as
predictions. An example is a sentence. Its numerator and denominator are sums over its words,
without padding, so that all words have the same weight.

Metrics and the loss may compute the same intermediate value, such as a word's largest score;
TensorFlow merges equal operations of a graph.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, ClassVar, Literal, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.base.text_ids import TokenIds

# Minimum number of classes for which subtracting a one-hot matrix from scores costs too much.
_MANY_CLASSES = 1000
# Maximum cross-entropy of a word, in nats: more than twice the log(10,000) of a uniform guess.
# Larger values fall into the last bin of distributions over clients, and secure sums clip them.
_MAX_CROSS_ENTROPY = 20.0

# Function that maps (labels, predictions) to (numerator [n], denominator [n]), both float32.
PerExampleFn = Callable[["tf.Tensor", "tf.Tensor"], tuple["tf.Tensor", "tf.Tensor"]]


def sparse_cross_entropy(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each example, in the dtype of `scores`, [n].

    Args:
        labels: Labels, int [n], in [0, classes).
        scores: Logits, float [n, classes].
    """

    @tf.custom_gradient
    def cross_entropy(scores: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        softmax = tf.nn.softmax(scores)
        # Compute log(sum(exp(scores))) from the most likely class's probability, as the label's
        # probability may underflow to 0.
        log_total = tf.reduce_max(scores, axis=-1) - tf.math.log(tf.reduce_max(softmax, axis=-1))
        label_scores = tf.gather(scores, labels, axis=-1, batch_dims=1)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _minus_at(softmax * upstream[:, tf.newaxis], labels, upstream)

        return log_total - label_scores, gradient

    return cross_entropy(scores)


@dataclasses.dataclass(frozen=True)
class ColumnLoss:
    """Adapts a loss of columns [n, 1] to labels and outputs of shape [n] or [n, 1].

    Attributes:
        loss: Loss of labels [n, 1] and outputs [n, 1], such as a Keras loss.
    """

    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    def __call__(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example."""
        column = labels[:, tf.newaxis] if len(labels.shape) == 1 else labels
        return self.loss(column, tf.reshape(predictions, [-1, 1]))


def takes_scores(loss: Any) -> Optional[bool]:
    """Returns True if a loss is a cross-entropy of scores, and False if it is one of probabilities.

    Args:
        loss: A loss function, or a Keras loss.

    Returns:
        True for scores (logits); False for probabilities; None if the loss does not specify it.
    """
    if isinstance(loss, ColumnLoss):
        return takes_scores(loss.loss)
    if loss is sparse_cross_entropy:
        return True
    if isinstance(loss, tf.keras.losses.Loss):
        # Some Keras losses store `from_logits` as an attribute, others as an argument of their
        # function; the configuration contains it in either case.
        from_logits = loss.get_config().get("from_logits")
    else:
        from_logits = getattr(loss, "from_logits", None)
    return from_logits if isinstance(from_logits, bool) else None


def _minus_at(rows: tf.Tensor, labels: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Subtracts each of `values` [n] from its row [classes], in the column of the row's label."""
    num_classes = rows.shape[-1]
    if num_classes is not None and num_classes < _MANY_CLASSES:
        # Subtract a product, which TensorFlow can vectorise, unlike a scatter operation.
        return rows - tf.one_hot(labels, num_classes, dtype=rows.dtype) * values[:, tf.newaxis]
    positions = tf.stack([tf.range(tf.size(labels), dtype=labels.dtype), labels], axis=1)
    return tf.tensor_scatter_nd_sub(rows, positions, values)


def sentence_spec(sequence_length: int) -> Mapping[str, tf.TensorSpec]:
    """Returns the specs of "x" and "y" with T ids each, int32 [n, T]."""
    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return {"x": spec, "y": spec}


def is_word(labels: tf.Tensor) -> tf.Tensor:
    """Returns 1 for words to predict, 0 for padding: float32 [n, T]."""
    return tf.cast(tf.not_equal(labels, 0), tf.float32)


def word_cross_entropies(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of every word, float [n, T]; 0 at padding.

    Args:
        labels: Ids, int [n, T].
        scores: Scores, float [n, T, ids].
    """
    rows = tf.reshape(scores, [-1, scores.shape[-1]])
    per_word = sparse_cross_entropy(tf.reshape(labels, [-1]), rows)
    per_word = tf.reshape(per_word, tf.shape(labels))
    # Do not multiply by the mask: losses at padding may be infinite, and 0 * inf is NaN.
    return tf.where(is_word(labels) > 0, per_word, tf.zeros_like(per_word))


@dataclasses.dataclass(frozen=True)
class SentenceLoss:
    """The loss of a sentence, (labels int [n, T], scores [n, T, ids]) -> [n].

    An example is a sentence, so algorithms count and weight sentences. By default a sentence's loss
    is the mean cross-entropy of its words. A domain's loss then does not depend on the length of
    its sentences; with sums, lambda would move to the domain with longer sentences. With
    `expected_length` the loss is the sum over the sentence divided by this constant, as in FedJAX,
    so that every word has the same weight, as in perplexity. The loss of a sentence without words
    is 0.

    Attributes:
        expected_length: Divisor of a sentence's summed loss; None for the mean.
    """

    # The name is that of Keras' cross-entropies, so that `takes_scores` finds the attribute.
    from_logits: ClassVar[bool] = True

    expected_length: Optional[float] = None

    def __call__(self, labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each sentence."""
        total = tf.reduce_sum(word_cross_entropies(labels, scores), axis=1)
        if self.expected_length is not None:
            return total / self.expected_length
        return tf.math.divide_no_nan(total, tf.reduce_sum(is_word(labels), axis=1))


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """How to compute class scores from a model's predictions.

    Attributes:
        from_predictions: Maps predictions to class scores, float [n, classes]. The first class with
            the largest score is the predicted class.
        from_logits: Whether scores are logits (True) or probabilities (False); None to infer it
            from the model's loss.
    """

    from_predictions: Callable[[tf.Tensor], tf.Tensor]
    from_logits: Optional[bool] = None


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric based on the ratio sum(numerator) / sum(denominator) over any set of examples.

    The metric's value is the ratio, or `transform` of the ratio: perplexity, for example, is the
    exponential of a mean cross-entropy. Averages over clients are averages of ratios, and reports
    transform them last. The reported mean perplexity over clients is therefore a geometric mean.

    Attributes:
        name: Name in columns and JSON.
        per_example: Maps labels and predictions of n examples to two float32 vectors [n].
        max_numerator: Maximum numerator of one example, which bounds the numerator's secure sum.
        max_denominator: Maximum denominator of one example, which bounds the denominator's secure
            sum.
        upper: Maximum of the ratio; None if unbounded. Distributions over clients use a grid from 0
            to `upper`: larger ratios fall into its last bin, and secure sums clip them.
        higher_is_better: Whether larger values are better; it determines which domain is the worst.
        transform: An increasing function of the ratio, in TensorFlow, or None.
        num_bins: Number of points of the grid from 0 to `upper`.
        shown_as: "none" for plain numbers; "share" for numbers in [0, 1], displayed in percent;
            "factor" for numbers compared by ratios, on logarithmic axes.
        classes: Class scores, if labels are classes; None to omit counts by class.
    """

    name: str
    per_example: PerExampleFn
    max_numerator: float = 1.0
    max_denominator: float = 1.0
    upper: Optional[float] = 1.0
    higher_is_better: bool = True
    transform: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
    num_bins: int = 201
    shown_as: Literal["none", "share", "factor"] = "none"
    classes: Optional[ClassScores] = None

    def value(self, ratio: tf.Tensor) -> tf.Tensor:
        """Returns the metric's values for ratios of any shape; inf if `transform` overflows."""
        return ratio if self.transform is None else self.transform(ratio)


def _correct_class(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    predicted = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
    correct = tf.cast(tf.equal(predicted, labels), tf.float32)
    # Avoid tf.ones_like, which TensorFlow cannot vectorise.
    return correct, tf.ones(tf.shape(correct))


def _unchanged(predictions: tf.Tensor) -> tf.Tensor:
    return predictions


_SCORES = ClassScores(_unchanged)


def accuracy() -> Metric:
    """Returns the fraction of correct examples: labels int [n], scores [n, classes]."""
    return Metric("accuracy", _correct_class, shown_as="share", classes=_SCORES)


@functools.cache
def mean_absolute_error(label_range: float) -> Metric:
    """Returns the mean of |prediction - label|, in the labels' unit.

    Args:
        label_range: Largest label minus smallest label, above 0. Clients sum errors divided by this
            range. Secure sums bound an example's scaled error by 1, so a client whose mean error
            exceeds the range counts less.
    """
    return _error("mean_absolute_error", tf.abs, lambda ratio: ratio, label_range)


@functools.cache
def root_mean_squared_error(label_range: float) -> Metric:
    """Returns the root of the mean of (prediction - label)^2, in the labels' unit.

    Sums and means over clients are computed from the squared errors.

    Args:
        label_range: As in `mean_absolute_error`.
    """
    return _error("root_mean_squared_error", tf.square, tf.sqrt, label_range)


@functools.cache
def binary_accuracy(from_logits: bool) -> Metric:
    """Returns the fraction of examples whose predicted class, 0 or 1, is the label.

    Predictions above a threshold are class 1.

    Args:
        from_logits: True if predictions are logits, whose threshold is 0; False if they are
            probabilities, whose threshold is 1/2.
    """
    threshold = 0.0 if from_logits else 0.5

    def per_example(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_one = _column(predictions) > threshold
        correct = tf.cast(tf.equal(is_one, tf.equal(labels, 1)), tf.float32)
        return correct, tf.ones(tf.shape(correct))

    def class_scores(predictions: tf.Tensor) -> tf.Tensor:
        positive = _column(predictions)
        negative = tf.zeros_like(positive) if from_logits else 1.0 - positive
        return tf.stack([negative, positive], axis=-1)

    classes = ClassScores(class_scores, from_logits)
    return Metric("accuracy", per_example, shown_as="share", classes=classes)


def _error(
    name: str,
    distance: Callable[[tf.Tensor], tf.Tensor],
    root: Callable[[tf.Tensor], tf.Tensor],
    label_range: float,
) -> Metric:
    if not 0 < label_range < math.inf:
        raise ValueError(f"label_range: expected a positive finite number, found {label_range}")

    def per_example(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        difference = _column(predictions) - tf.cast(labels, predictions.dtype)
        errors = distance(tf.cast(difference, tf.float32) / label_range)
        return errors, tf.ones(tf.shape(errors))

    return Metric(
        name,
        per_example,
        # The ratio has no maximum, as a model may be wrong by any multiple of the range.
        upper=None,
        higher_is_better=False,
        transform=lambda ratio: root(ratio) * label_range,
    )


def _column(predictions: tf.Tensor) -> tf.Tensor:
    return tf.reshape(predictions, [-1])


def text_metrics(ids: TokenIds, sequence_length: int) -> tuple[Metric, ...]:
    """Returns perplexity and both in-vocabulary accuracies.

    Args:
        sequence_length: T, the maximum number of words in a sentence.
    """
    return (
        perplexity(sequence_length),
        in_vocab_accuracy(ids, sequence_length),
        accuracy_without_out_of_vocab_or_end_of_sentence(ids, sequence_length),
    )


def perplexity(sequence_length: int) -> Metric:
    """Returns the exponential of the mean cross-entropy of a word.

    All positions except padding are words, including out-of-vocabulary words and the end of the
    sentence. The ratio is the mean cross-entropy in nats.
    """

    def per_sentence(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total = tf.reduce_sum(word_cross_entropies(labels, scores), axis=1)
        return total, tf.reduce_sum(is_word(labels), axis=1)

    return Metric(
        "perplexity",
        per_sentence,
        max_numerator=_MAX_CROSS_ENTROPY * sequence_length,
        max_denominator=float(sequence_length),
        upper=_MAX_CROSS_ENTROPY,
        higher_is_better=False,
        transform=tf.exp,
        # Bins of 0.02 nats make quantiles of perplexity over clients accurate to 1%.
        num_bins=1001,
        shown_as="factor",
    )


def in_vocab_accuracy(ids: TokenIds, sequence_length: int) -> Metric:
    """Returns the in-vocabulary accuracy of Ro et al. 2021, section 5.1.

    The numerator counts correct predictions, except UNK (out of vocabulary) and the end of a
    sentence. The denominator counts words, except the end of a sentence. An out-of-vocabulary word
    counts in the denominator and is never correct, so that vocabularies of different sizes are
    comparable.
    """
    return _word_accuracy(
        "in_vocab_accuracy", sequence_length, never_right=[ids.oov, ids.eos], excluded=[ids.eos]
    )


def accuracy_without_out_of_vocab_or_end_of_sentence(ids: TokenIds, sequence_length: int) -> Metric:
    """Returns the accuracy on words of the vocabulary, as in TFF's Stack Overflow baseline.

    Out-of-vocabulary words and the end of a sentence count neither in the numerator nor in the
    denominator.
    """
    return _word_accuracy(
        "accuracy_without_out_of_vocab_or_end_of_sentence",
        sequence_length,
        never_right=[ids.oov, ids.eos],
        excluded=[ids.oov, ids.eos],
    )


def _word_accuracy(
    name: str, sequence_length: int, never_right: Sequence[int], excluded: Sequence[int]
) -> Metric:
    def per_sentence(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        predicted = tf.argmax(scores, axis=-1, output_type=labels.dtype)
        correct = tf.cast(tf.equal(predicted, labels), tf.float32)
        words = is_word(labels)
        counted = words * _differs_from(labels, excluded)
        correct *= words * _differs_from(labels, never_right)
        return tf.reduce_sum(correct, axis=1), tf.reduce_sum(counted, axis=1)

    longest = float(sequence_length)
    return Metric(
        name, per_sentence, max_numerator=longest, max_denominator=longest, shown_as="share"
    )


def _differs_from(labels: tf.Tensor, ids: Sequence[int]) -> tf.Tensor:
    is_other = [tf.cast(tf.not_equal(labels, one), tf.float32) for one in ids]
    return tf.reduce_prod(tf.stack(is_other), axis=0)
