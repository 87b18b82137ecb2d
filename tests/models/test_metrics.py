"""Metrics: ratios of sums over examples."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.base.text_ids import TokenIds
from tff_agnostic.models import Metric, accuracy
from tff_agnostic.models.metrics import (
    accuracy_without_out_of_vocab_or_end_of_sentence,
    binary_accuracy,
    in_vocab_accuracy,
    mean_absolute_error,
    perplexity,
    root_mean_squared_error,
    text_metrics,
)


def test_accuracy_counts_largest_scores():
    scores = tf.constant([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    for dtype in (tf.int32, tf.int64):
        labels = tf.constant([1, 1, 1], dtype)
        numerator, denominator = accuracy().per_example(labels, scores)
        np.testing.assert_array_equal(numerator, [1, 0, 1])
        np.testing.assert_array_equal(denominator, [1, 1, 1])


def test_metric_value_is_ratio_or_its_transform():
    assert float(accuracy().value(0.25)) == 0.25
    root = Metric("root", accuracy().per_example, transform=tf.sqrt)
    np.testing.assert_allclose(root.value(np.array([0.25, 1.0, np.nan])), [0.5, 1.0, np.nan])


_IDS = TokenIds(2)
_EXTREMES = np.float32([-3.4e38, -1e-38, 0.0, 1e-45, 3.4e38])
# (metric, labels [60, ...], shape of one example's predictions)
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
def test_sums_of_extreme_predictions_stay_within_bounds(metric, labels, shape):
    """An infinite numerator would exclude its client; NaN would also hide a mistake."""
    predictions = np.random.default_rng(0).choice(_EXTREMES, size=[60, *shape])
    sums = metric.per_example(tf.constant(labels), tf.constant(predictions))
    numerator, denominator = (value.numpy() for value in sums)
    assert not np.any(np.isnan(numerator))
    assert np.all(numerator >= 0)
    assert np.all(denominator >= 0)
    assert np.all(denominator <= metric.max_denominator)
    if metric.shown_as == "share":
        assert np.all(numerator <= denominator)


# --- Perplexity and the two in-vocabulary accuracies equal values by hand


# Ids: words = 1 to 3, unknown words = 4, begin = 5, end = 6, padding = 0.
_TEXT_IDS = TokenIds(3)
_LABELS = np.array(
    [
        [1, 2, 4, 6, 0],  # two words, an unknown one, the end
        [3, 3, 1, 2, 6],
        [4, 6, 0, 0, 0],  # nothing of the vocabulary
        [0, 0, 0, 0, 0],  # nothing at all
    ],
    np.int32,
)
_PREDICTED = np.array(
    [
        [1, 3, 4, 6, 0],  # right: a word, the unknown one, the end, padding
        [3, 1, 1, 6, 6],
        [4, 1, 0, 0, 0],
        [0, 0, 0, 1, 2],
    ]
)


def _sums(metric: Metric, labels: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    numerator, denominator = metric.per_example(tf.constant(labels), tf.constant(scores))
    assert numerator.dtype == denominator.dtype == tf.float32
    return numerator.numpy(), denominator.numpy()


@pytest.mark.parametrize(
    ("metric", "counted"),
    [
        # Only the first metric counts ends of sentences; neither counts unknown words.
        (in_vocab_accuracy, [3, 4, 1, 0]),
        (accuracy_without_out_of_vocab_or_end_of_sentence, [2, 4, 0, 0]),
    ],
)
def test_word_accuracies_count_known_words(metric, counted):
    scores = np.eye(_TEXT_IDS.num_ids, dtype=np.float32)[_PREDICTED]
    numerator, denominator = _sums(metric(_TEXT_IDS, 5), _LABELS, scores)
    np.testing.assert_array_equal(numerator, [1, 2, 0, 0])
    np.testing.assert_array_equal(denominator, counted)


def test_accuracy_without_end_equals_tffs_metric():
    """TFF's baseline uses this Keras metric and masks these ids."""
    metric = accuracy_without_out_of_vocab_or_end_of_sentence(_TEXT_IDS, 5)
    rng = np.random.default_rng(0)
    labels = rng.integers(_TEXT_IDS.num_ids, size=[40, 5]).astype(np.int32)
    scores = rng.normal(size=[40, 5, _TEXT_IDS.num_ids]).astype(np.float32)
    numerator, denominator = _sums(metric, labels, scores)
    keras = tf.keras.metrics.SparseCategoricalAccuracy()
    weight = ~np.isin(labels, [_TEXT_IDS.pad, _TEXT_IDS.eos, _TEXT_IDS.oov])
    keras.update_state(labels, scores, weight.astype(np.float32))
    assert numerator.sum() / denominator.sum() == pytest.approx(float(keras.result()))


def test_perplexity_equals_hand_computation():
    # The two words have probabilities 1/2 and 1/8: exp((ln 2 + ln 8) / 2) = 4.
    scores = np.full([2, 5, 7], -np.inf, np.float32)
    scores[0, 0, [2, 3]] = 0.0
    scores[0, 1, [6, 4]] = np.log([1, 7])
    scores[0, 2:] = scores[1] = 0.0
    labels = np.array([[2, 6, 0, 0, 0], [0] * 5], np.int32)
    numerator, denominator = _sums(perplexity(5), labels, scores)
    np.testing.assert_array_equal(denominator, [2, 0])
    assert numerator[1] == 0
    assert float(perplexity(5).value(numerator[0] / denominator[0])) == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("metric", text_metrics(_TEXT_IDS, 5), ids=lambda metric: metric.name)
def test_metric_sums_ignore_batching_and_order(metric):
    rng = np.random.default_rng(0)
    labels = rng.integers(_TEXT_IDS.num_ids, size=[12, 5]).astype(np.int32)
    scores = rng.normal(size=[12, 5, _TEXT_IDS.num_ids]).astype(np.float32)
    whole = [part.sum() for part in _sums(metric, labels, scores)]
    for sizes in ([1] * 12, [5, 7], [3, 0, 9]):
        order = rng.permutation(12)
        batches = np.split(order, np.cumsum(sizes)[:-1])
        parts = [_sums(metric, labels[batch], scores[batch]) for batch in batches]
        result = [sum(part[i].sum() for part in parts) for i in range(2)]
        np.testing.assert_allclose(result, whole, rtol=1e-6)
        # Additional padding does not change the sums.
        padded = _sums(
            metric, np.pad(labels, [(0, 0), (0, 3)]), np.pad(scores, [(0, 0), (0, 3), (0, 0)])
        )
        np.testing.assert_allclose([part.sum() for part in padded], whole, rtol=1e-6)


def test_metrics_have_directions_and_bounds():
    assert accuracy().upper == 1.0
    metrics = (accuracy(), *text_metrics(_TEXT_IDS, 20))
    assert {m.name: (m.higher_is_better, m.max_numerator) for m in metrics} == {
        "accuracy": (True, 1.0),
        "perplexity": (False, 400.0),
        "in_vocab_accuracy": (True, 20.0),
        "accuracy_without_out_of_vocab_or_end_of_sentence": (True, 20.0),
    }


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.0, 1.0), (1e4, math.inf), (math.inf, math.inf), (math.nan, math.nan)]
)
def test_perplexity_accepts_infinity_and_nan(ratio, expected):
    np.testing.assert_array_equal(perplexity(5).value(np.float64(ratio)), expected)
