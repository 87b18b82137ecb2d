"""Metrics of models with one output match NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.model_files import FEATURES, INT, REGRESSION, returning
from tff_agnostic.models import (
    Metric,
    ModelData,
    binary_accuracy,
    load_user_model,
    mean_absolute_error,
    root_mean_squared_error,
)


def _value(metric: Metric, labels: Any, predictions: Any) -> float:
    numerator, denominator = metric.per_example(tf.constant(labels), tf.constant(predictions))
    assert numerator.dtype == denominator.dtype == tf.float32
    assert numerator.shape == denominator.shape == [len(labels)]
    return float(metric.value(np.sum(numerator, dtype=np.float64) / np.sum(denominator)))


@pytest.mark.parametrize(("shape", "unit"), [([7], 1.0), ([7, 1], 1e5)])
def test_error_metrics_have_the_labels_unit(shape, unit):
    y, result = np.random.default_rng(0).normal(size=[2, 7]).astype(np.float32) * unit
    errors = (result - y).astype(np.float64)
    label_range = float(y.max() - y.min())
    mae = _value(mean_absolute_error(label_range), y, result.reshape(shape))
    rmse = _value(root_mean_squared_error(label_range), y, result.reshape(shape))
    assert mae == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)


def test_label_range_bounds_error_sums():
    for metric in (mean_absolute_error(8.0), root_mean_squared_error(8.0)):
        numerator, _ = metric.per_example(tf.constant([-4.0, 4.0]), tf.constant([4.0, 4.0]))
        assert numerator.numpy().tolist() == [metric.max_numerator, 0]


def test_rejects_empty_and_infinite_ranges():
    for label_range in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="label_range: expected a positive finite number, f"):
            mean_absolute_error(label_range)


@pytest.mark.parametrize(("shape", "from_logits"), [([4], True), ([4, 1], False)])
def test_binary_accuracy_thresholds_one_output(shape, from_logits):
    predictions = np.array([-3.0, 0.4, 0.6, 2.0], np.float32).reshape(shape)
    right = {True: [0, 1, 1, 1], False: [0, 0, 1, 1]}[from_logits]
    metric = binary_accuracy(from_logits)
    labels = np.array(right, np.int32)
    assert _value(metric, labels, predictions) == 1
    labels[2] = 0
    assert _value(metric, labels, predictions) == 0.75


_TWO_CLASSES = ModelData(FEATURES.x_spec, INT, ("a",), 2)
_RANGED = ModelData(REGRESSION.x_spec, REGRESSION.y_spec, ("a",), label_range=(-1.0, 3.0))


@pytest.mark.parametrize(
    ("data", "loss", "names"),
    [
        (_TWO_CLASSES, "losses.BinaryFocalCrossentropy(", ["accuracy"]),
        # With a hinge loss, an output is neither a logit nor a probability.
        (_TWO_CLASSES, "losses.Hinge(", []),
        (_RANGED, "losses.Huber(", ["mean_absolute_error", "root_mean_squared_error"]),
        (REGRESSION, "losses.Huber(", []),
    ],
)
def test_loss_determines_default_metrics(tmp_path, data, loss, names):
    network = "tf.keras.Sequential([layers.Dense(1)])"
    path = returning(tmp_path, network, f'{loss}reduction="none")')
    assert [metric.name for metric in load_user_model(path, data).metrics] == names
