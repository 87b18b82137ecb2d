"""Counts of outputs by class equal NumPy's."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client, single
from tests.support.comparing import assert_identical
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.computations.class_sums import ClassCounting, ClassSums, class_counting
from tff_agnostic.computations.domain_losses import domain_sums_and_counts
from tff_agnostic.models import Metric, binary_accuracy, logistic_regression
from tff_agnostic.models.metrics import ClassScores
from tff_agnostic.models.model import Model, ModelWeights

_DOMAINS = 2


def _client(rng, num_classes):
    domains, labels = rng.integers(_DOMAINS, size=30), rng.integers(num_classes, size=30)
    return make_client(rng.normal(size=[30, 4]), domains, labels)


def _weights(rng, num_classes):
    shapes = ([4, num_classes], [num_classes])
    return ModelWeights([rng.normal(size=shape).astype(np.float32) for shape in shapes], [])


def _counted(model, weights, client):
    counting = class_counting(model, _DOMAINS)
    clients = single(client)
    _, counts = domain_sums_and_counts(model, _DOMAINS, weights, clients, counting, batch_size=7)
    return tf.nest.map_structure(np.asarray, counting.sums(counts))


def _probabilities(client, weights):
    kernel, bias = weights.trainable
    exp = np.exp(client["x"] @ kernel + bias)
    return exp / exp.sum(axis=1, keepdims=True)


def _table(client, columns, num_classes, num_columns):
    """Returns the examples by domain, class and column."""
    table = np.zeros([_DOMAINS, num_classes, num_columns], int)
    np.add.at(table, (client["domain_id"], client["y"], columns), 1)
    return table


@pytest.mark.parametrize("num_classes", [2, 3, 25])
def test_outputs_are_counted_by_domain_and_class(num_classes):
    rng = np.random.default_rng(num_classes)
    client, weights = _client(rng, num_classes), _weights(rng, num_classes)
    actual = _counted(logistic_regression(4, num_classes), weights, client)
    probabilities = _probabilities(client, weights)
    table = _table(client, probabilities.argmax(axis=1), num_classes, num_classes)
    confusion, by_class, scores = table, (), ()
    if num_classes == 25:
        right = np.diagonal(table, axis1=1, axis2=2)
        by_class = np.stack([table.sum(axis=2), table.sum(axis=1), right], axis=1)
        confusion = ()
    if num_classes == 2:
        scores = _table(client, np.floor(50 * probabilities[:, 1]).astype(int), 2, 50)
        # The threshold 1/2 is an edge between bins, so histogram and confusion matrix agree.
        np.testing.assert_array_equal(scores[..., 25:].sum(axis=2), table[..., 1])
    assert_identical(actual, ClassSums(confusion, by_class, scores))


def test_ensemble_scores_equal_mixture_probabilities():
    rng = np.random.default_rng(0)
    predictors = [_weights(rng, 2) for _ in range(2)]
    client, model = _client(rng, 2), ensemble(logistic_regression(4, 2), predictors)
    actual = _counted(model, model.initial_weights, client)
    mixture = np.mean([_probabilities(client, weights)[:, 1] for weights in predictors], axis=0)
    expected = _table(client, np.floor(50 * mixture).astype(int), 2, 50)
    np.testing.assert_array_equal(actual.scores, expected)


def _with_one_output(*metrics):
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
    model = _with_one_output(binary_accuracy(from_logits))
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
    metric = Metric("accuracy", lambda y, p: (y, y))
    assert class_counting(_with_one_output(metric), 2) is None
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
    limits = ClientLimits(examples=30)
    confusion, by_class, scores = ClassCounting(logistic_regression(4, 2), 2, 2).bounds(limits)
    assert {(b.limit, b.integer, b.norm) for b in (confusion, scores)} == {(30, True, 30.0)}
    assert by_class == ()
    # The norm is largest if all examples have the same class and prediction.
    many = ClassCounting(logistic_regression(4, 25), 2, 25).bounds(limits)
    assert many.by_class.norm == pytest.approx(np.linalg.norm([30, 30, 30]))
