"""Metrics as ratios of sums."""

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.models import Metric, accuracy
from tff_agnostic.models.metrics import (
    binary_accuracy,
    mean_absolute_error,
    root_mean_squared_error,
    text_metrics,
)
from tff_agnostic.text_ids import TokenIds


def test_accuracy_counts_the_examples_whose_largest_score_is_the_label():
    scores = tf.constant([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    numerator, denominator = accuracy().per_example(tf.constant([1, 1, 1]), scores)
    np.testing.assert_array_equal(numerator, [1, 0, 1])
    np.testing.assert_array_equal(denominator, [1, 1, 1])


def test_accuracy_takes_labels_of_any_integer_type():
    scores = tf.constant([[0.1, 0.9]])
    for dtype in (tf.int32, tf.int64):
        numerator, _ = accuracy().per_example(tf.constant([1], dtype), scores)
        np.testing.assert_array_equal(numerator, [1])


def test_accuracy_says_which_direction_is_good():
    assert accuracy().higher_is_better
    assert accuracy().upper == 1.0


def test_a_metric_has_the_ratio_as_its_value_or_a_function_of_it():
    assert float(accuracy().value(0.25)) == 0.25
    root = Metric("root", accuracy().per_example, transform=tf.sqrt)
    np.testing.assert_allclose(root.value(np.array([0.25, 1.0, np.nan])), [0.5, 1.0, np.nan])


_IDS = TokenIds(2)
_EXTREMES = np.float32([-3.4e38, -1e-38, 0.0, 1e-45, 3.4e38])
# (metric, labels [n, ...], shape of one example's predictions)
_ANY_PREDICTIONS = [
    (accuracy(), np.arange(60) % 3, [3]),
    (binary_accuracy(from_logits=True), np.arange(60) % 2, [1]),
    (binary_accuracy(from_logits=False), np.arange(60) % 2, []),
    (mean_absolute_error(1e-3), np.linspace(-1, 1, 60, dtype=np.float32), []),
    (root_mean_squared_error(1e3), np.linspace(-1, 1, 60, dtype=np.float32), [1]),
    *(
        (metric, np.arange(60 * 4).reshape(60, 4) % _IDS.num_ids, [4, _IDS.num_ids])
        for metric in text_metrics(_IDS, 4)
    ),
]


@pytest.mark.parametrize(
    ("metric", "labels", "shape"), _ANY_PREDICTIONS, ids=lambda value: getattr(value, "name", "")
)
def test_sums_of_extreme_predictions_are_within_bounds_or_leave_the_client_out(
    metric, labels, shape
):
    """What is infinite is left out with its client; NaN could be, too, but would hide a mistake."""
    predictions = np.random.default_rng(0).choice(_EXTREMES, size=[60, *shape])
    sums = metric.per_example(tf.constant(labels), tf.constant(predictions))
    numerator, denominator = (value.numpy() for value in sums)
    assert not np.any(np.isnan(numerator))
    assert np.all(numerator >= 0)
    assert np.all(denominator >= 0)
    assert np.all(denominator <= metric.max_denominator)
    if metric.shown_as == "share":
        assert np.all(numerator <= denominator)
