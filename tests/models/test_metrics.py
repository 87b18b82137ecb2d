"""Metrics as ratios of sums."""

import numpy as np
import tensorflow as tf

from tff_agnostic.models import Metric, accuracy


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
