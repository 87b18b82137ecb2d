"""`Model`: losses, specs and equality."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client
from tests.support.models import linear_model
from tff_agnostic.models import accuracy, logistic_regression
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([0, 0], np.int32)


def test_logistic_regression_starts_with_equal_scores():
    model = logistic_regression(num_features=5, num_classes=4)
    assert model.num_parameters == 5 * 4 + 4
    assert [w.shape for w in model.initial_weights.trainable] == [(5, 4), (4,)]
    client = make_client(np.ones([3, 5]), [0, 0, 0], y=[0, 1, 2])
    losses, scores = model.example_losses(model.initial_weights, client, False, _SEED)
    np.testing.assert_allclose(losses, [np.log(4)] * 3, rtol=1e-6)
    np.testing.assert_array_equal(scores, np.zeros([3, 4]))


def test_each_examples_loss_includes_the_regularizer():
    model = linear_model(regularizer=lambda weights: 10.0 * tf.reduce_sum(weights[0]))
    weights = ModelWeights([np.array([2.0], np.float32)], [])
    losses, predictions = model.example_losses(weights, make_client([1, 3], [0, 0]), False, _SEED)
    np.testing.assert_array_equal(predictions, [2, 6])
    np.testing.assert_array_equal(losses, [22, 26])


def test_ridge_penalizes_all_weights():
    model = logistic_regression(2, 2, ridge=0.5)
    weights = ModelWeights([np.ones([2, 2], np.float32), np.array([1.0, -1.0], np.float32)], [])
    client = make_client([[0.5, 0.5]], [0], y=[0])
    losses, _ = model.example_losses(weights, client, False, _SEED)
    plain, _ = logistic_regression(2, 2).example_losses(weights, client, False, _SEED)
    np.testing.assert_allclose(losses, plain + 0.5 / 2 * 6, rtol=1e-6)


def test_client_data_spec_follows_tff_column_order():
    spec = logistic_regression(5, 4).client_data_spec()
    assert list(spec) == ["x", "y", "domain_id"]
    assert spec["x"] == tf.TensorSpec([None, 5], tf.float32)
    assert spec["y"] == tf.TensorSpec([None], tf.int32)
    assert spec["domain_id"] == tf.TensorSpec([None], tf.int32)


def test_model_equality_ignores_initial_weights():
    model = linear_model(4.0)
    other_start = ModelWeights([np.array([5.0], np.float32)], [])
    other = dataclasses.replace(model, initial_weights=other_start)
    assert model == other
    assert hash(model) == hash(other)
    assert model != linear_model(4.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"initial_weights": ModelWeights([np.zeros([2], np.float32)], [])},
        {"initial_weights": ModelWeights([np.zeros([1], np.float64)], [])},
        {"example_spec": {}},
        {"predict": lambda *_: 0},
        {"loss": lambda *_: 0},
        {"regularizer": lambda _: 0},
        {"constraint": lambda _: []},
        {"metrics": (accuracy(),)},
        {"loss_scale": 2.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_models_with_different_computations_are_unequal(changes):
    model = linear_model()
    assert model != dataclasses.replace(model, **changes)
