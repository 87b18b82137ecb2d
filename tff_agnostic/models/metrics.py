"""Metrics as ratios of sums: exact under any batching, and ready for secure sums."""

import dataclasses
from typing import Callable, Optional

import tensorflow as tf

# (labels, predictions) -> (numerator [n], denominator [n]), both float32.
PerExampleFn = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric whose value is sum(numerator) / sum(denominator) over any set of examples.

    Attributes:
        name: Column and JSON name.
        per_example: Maps labels and predictions of n examples to two float32 vectors [n].
        max_numerator: Largest numerator of one example; the bound of its secure sum.
        max_denominator: Largest denominator of one example; the bound of its secure sum.
        upper: Largest value of the ratio, or None if there is none; it sets the grid on which the
            distribution over clients is measured.
        higher_is_better: Which direction is good, for "worst domain" and for tables.
    """

    name: str
    per_example: PerExampleFn
    max_numerator: float = 1.0
    max_denominator: float = 1.0
    upper: Optional[float] = 1.0
    higher_is_better: bool = True


def _correct_class(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    predicted = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
    correct = tf.cast(tf.equal(predicted, labels), tf.float32)
    # Not ones_like, which has no vectorised form.
    return correct, tf.ones(tf.shape(correct))


def accuracy() -> Metric:
    """Share of examples whose largest score is the label's: labels int [n], scores [n, classes]."""
    return Metric("accuracy", _correct_class)
