"""Counts of outputs by class equal NumPy's."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.computations.class_sums import ClassCounting, ClassSums, class_counting
from tff_agnostic.computations.clients import Clients, client_arrays
from tff_agnostic.computations.domain_losses import domain_sums_and_counts
from tff_agnostic.models import Metric, binary_accuracy, logistic_regression
from tff_agnostic.models.metrics import ClassScores
from tff_agnostic.models.model import Model, ModelWeights

_DOMAINS = 2


def _client(rng, labels, num_features):
    x = rng.normal(size=[len(labels), num_features])
    return make_client(x, rng.integers(_DOMAINS, size=len(labels)), labels)


def _counted(model, weights, client):
    counting = class_counting(model, _DOMAINS)
    clients = Clients.from_arrays(client_arrays(client))
    _, counts = domain_sums_and_counts(model, _DOMAINS, weights, clients, counting, batch_size=7)
    return tf.nest.map_structure(np.asarray, counting.sums(counts))


def _scores(client, weights):
    kernel, bias = weights.trainable
    return client["x"] @ kernel + bias


@pytest.mark.parametrize("num_classes", [2, 3, 25])
def test_outputs_are_counted_by_domain_and_class(num_classes):
    rng = np.random.default_rng(num_classes)
    model = logistic_regression(4, num_classes)
    weights = ModelWeights(
        [rng.normal(size=w.shape).astype(np.float32) for w in model.initial_weights.trainable], []
    )
    client = _client(rng, rng.integers(num_classes, size=30), 4)
    actual = _counted(model, weights, client)
    scores = _scores(client, weights)
    answers = scores.argmax(axis=1)
    tables = np.zeros([_DOMAINS, num_classes, num_classes], int)
    np.add.at(tables, (client["domain_id"], client["y"], answers), 1)
    if num_classes == 25:
        assert isinstance(actual.confusion, tuple)
        right = np.diagonal(tables, axis1=1, axis2=2)
        expected = np.stack([tables.sum(axis=2), tables.sum(axis=1), right], axis=1)
        np.testing.assert_array_equal(actual.by_class, expected)
        return
    np.testing.assert_array_equal(actual.confusion, tables)
    assert isinstance(actual.by_class, tuple)
    if num_classes == 3:
        assert isinstance(actual.scores, tuple)
        return
    exp = np.exp(scores)
    bins = np.floor(50 * exp[:, 1] / exp.sum(axis=1)).astype(int)
    expected = np.zeros([_DOMAINS, 2, 50], int)
    np.add.at(expected, (client["domain_id"], client["y"], bins), 1)
    np.testing.assert_array_equal(actual.scores, expected)
    # The threshold 1/2 is an edge between bins, so histogram and confusion matrix agree.
    np.testing.assert_array_equal(actual.scores[..., 25:].sum(axis=2), tables[..., 1])


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_ensemble_scores_equal_mixture_probabilities(loss):
    rng = np.random.default_rng(0)
    member = logistic_regression(4, 2)
    predictors = [
        ModelWeights(
            [rng.normal(size=w.shape).astype(np.float32) for w in member.initial_weights[0]], []
        )
        for _ in range(2)
    ]
    model = ensemble(member, predictors, loss=loss)
    client = _client(rng, rng.integers(2, size=30), 4)
    actual = _counted(model, model.initial_weights, client)
    if loss == "squared":
        assert isinstance(actual.scores, tuple)
        return
    scores = [_scores(client, weights) for weights in predictors]
    first = np.mean([1 / (1 + np.exp(s[:, 0] - s[:, 1])) for s in scores], axis=0)
    expected = np.zeros([_DOMAINS, 2, 50], int)
    np.add.at(expected, (client["domain_id"], client["y"], np.floor(50 * first).astype(int)), 1)
    np.testing.assert_array_equal(actual.scores, expected)


def _with_one_output(from_logits, metrics):
    """Returns a model that outputs its input, as a score or a probability."""
    return Model(
        initial_weights=ModelWeights([], []),
        example_spec={
            "x": tf.TensorSpec([None, 1], tf.float32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        predict=lambda weights, x, training, seed: x,
        loss=lambda labels, outputs: tf.zeros(tf.shape(labels)),
        metrics=metrics,
    )


@pytest.mark.parametrize("from_logits", [True, False])
def test_one_output_is_the_second_class_score(from_logits):
    model = _with_one_output(from_logits, (binary_accuracy(from_logits),))
    probabilities = np.array([0.0, 0.011, 0.5, 0.51, 0.999, 1.0], np.float32)
    x = probabilities
    if from_logits:
        with np.errstate(divide="ignore"):
            x = np.log(probabilities) - np.log1p(-probabilities)
    # The label 7 is not a class, so its example is not counted.
    client = make_client(x[:, np.newaxis], np.zeros(6), [0, 1, 0, 1, 1, 7])
    actual = _counted(model, model.initial_weights, client)
    # A probability equal to the threshold means class 0, as in the accuracy.
    assert actual.confusion[0].tolist() == [[2, 0], [1, 2]]
    assert actual.confusion[1].sum() == 0
    held = {label: np.flatnonzero(actual.scores[0, label]).tolist() for label in (0, 1)}
    assert held == {0: [0, 25], 1: [0, 25, 49]}


def test_unknown_or_too_many_classes_are_not_counted():
    assert (
        class_counting(_with_one_output(True, (Metric("accuracy", lambda y, p: (y, y)),)), 2)
        is None
    )
    # Each class and domain has 3 numbers; 20 domains exceed the limit.
    assert class_counting(logistic_regression(4, 1000), 20) is None
    assert class_counting(logistic_regression(4, 1000), 10).num_classes == 1000


def test_user_metric_and_loss_define_classes():
    """The metric and the loss are the example in docs/reference/answers_by_class.md."""

    def is_right(labels, outputs):
        right = tf.cast(tf.equal(tf.argmax(outputs, 1, tf.int32), labels), tf.float32)
        return right, tf.ones_like(right)

    def user_loss(labels, outputs):
        return tf.zeros(tf.shape(labels))

    metric = Metric("accuracy", is_right, classes=ClassScores(lambda scores: scores))
    usual = logistic_regression(1, 2)
    for from_logits in (None, True, False):
        if from_logits is not None:
            user_loss.from_logits = from_logits
        actual = class_counting(dataclasses.replace(usual, loss=user_loss, metrics=(metric,)), 3)
        assert actual.num_classes == 2
        # Each of three domains has a 2 x 2 table, and 2 x 50 bins if the loss has `from_logits`.
        assert actual.num_numbers == 3 * (4 + 100 * (from_logits is not None))


def test_bounds_count_each_example_once():
    model = logistic_regression(4, 2)
    bounds = ClassCounting(model, 2, 2).bounds(ClientLimits(examples=30))
    assert isinstance(bounds, ClassSums)
    assert {(b.limit, b.integer, b.norm) for b in (bounds.confusion, bounds.scores)} == {
        (30, True, 30.0)
    }
    assert bounds.by_class == ()
    # The norm is largest if all examples have the same class and prediction.
    many = ClassCounting(logistic_regression(4, 25), 2, 25).bounds(ClientLimits(examples=30))
    assert many.by_class.norm == pytest.approx(np.linalg.norm([30, 30, 30]))
