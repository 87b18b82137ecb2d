"""Metrics of models with one output: errors of real numbers, and accuracy of two classes.

Labels are [n]; predictions float [n], or [n, 1].
"""

import math
from typing import Callable

import tensorflow as tf

from tff_agnostic.models.metrics import Metric


def mean_absolute_error(label_range: float) -> Metric:
    """Returns the mean of |prediction - label|, in the labels' unit.

    Args:
        label_range: Largest label less the smallest, above 0. Clients sum errors divided by it, and
            secure sums bound those by 1: a client whose mean error is larger than the range of all
            labels counts less there.
    """
    return _error("mean_absolute_error", tf.abs, lambda ratio: ratio, label_range)


def root_mean_squared_error(label_range: float) -> Metric:
    """Returns the root of the mean of (prediction - label)^2, in the labels' unit.

    What is summed, and of what means over clients are taken, are squares.

    Args:
        label_range: As in `mean_absolute_error`.
    """
    return _error("root_mean_squared_error", tf.square, tf.sqrt, label_range)


def binary_accuracy(from_logits: bool) -> Metric:
    """Returns the share of examples on whose side of the threshold the prediction is.

    Labels are 0 and 1. A prediction above the threshold is class 1.

    Args:
        from_logits: Whether predictions are logits, whose threshold is 0, or probabilities, whose
            threshold is 1/2.
    """
    threshold = 0.0 if from_logits else 0.5

    def per_example(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_one = _column(predictions) > threshold
        correct = tf.cast(tf.equal(is_one, tf.equal(labels, 1)), tf.float32)
        return correct, tf.ones(tf.shape(correct))

    return Metric("accuracy", per_example, shown_as="share")


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
        # No largest ratio: a model may be wrong by any number of ranges.
        upper=None,
        higher_is_better=False,
        transform=lambda ratio: root(ratio) * label_range,
    )


def _column(predictions: tf.Tensor) -> tf.Tensor:
    return tf.reshape(predictions, [-1])
