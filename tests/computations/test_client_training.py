"""A client's training: updates, losses, counts, shuffling, and limits of secure sums."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.clients import cohort, make_client, random_client, single
from tests.support.comparing import assert_identical
from tests.support.models import linear_model, random_weights
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms.agnostic_fed_avg import client_work
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import Broadcast, SecureSum, SecureSumOptions
from tff_agnostic.computations.client_output import TrainingOutput
from tff_agnostic.computations.domain_losses import Holdout, domain_sums
from tff_agnostic.computations.local_training import ClientTraining, local_sgd, minus_rows
from tff_agnostic.models import Metric, logistic_regression
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([1, 2], np.int32)


def _output(model, client, seed=_SEED, **options) -> TrainingOutput:
    """Returns a client's output in a round of AgnosticFedAvg with one domain."""
    return client_work(
        Broadcast(model.initial_weights, np.array([1.0], np.float32)),
        single(client).seeded(seed),
        model=model,
        num_domains=1,
        training=ClientTraining(**options),
        holdout=Holdout(),
    )


_INFINITE = Metric("infinite", lambda y, p: (tf.divide(p, 0.0), tf.ones_like(p)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metrics", "x", "learning_rate"),
    [((_INFINITE,), [1.0, 2.0], 1e-30), ((), [1.0, 3e38], 1e-30), ((), [1e20, 2e20], 1e25)],
    ids=["metric", "loss", "update"],
)
def test_client_with_non_finite_values_sends_zeros(metrics, x, learning_rate):
    model = dataclasses.replace(linear_model(), metrics=metrics)
    output = _output(model, make_client(x, [0, 0]), learning_rate=learning_rate, epochs=2)
    assert output.clients.non_finite == 1
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def _noise(x, *, seed=_SEED, epochs=1) -> float:
    """Returns a client's weighted delta, where each gradient is the prediction's random number."""

    def predict(weights, x, training, seed):
        return weights.trainable[0] * tf.random.stateless_uniform([tf.size(x)], seed)

    model = dataclasses.replace(linear_model(initial=0.0), predict=predict)
    how = {"learning_rate": 1.0, "epochs": epochs, "batch_size": 1}
    output = _output(model, make_client(x, [0] * len(x)), seed, **how)
    return float(output.weighted_delta[0][0])


@pytest.mark.slow
def test_noise_differs_by_step_client_and_round():
    first = _noise([1.0])
    assert _noise([1.0]) == first
    draws = np.diff([0.0, first, *[_noise([1.0], epochs=e) for e in (2, 3)]])
    assert len(set(np.round(draws, 4))) == 3
    assert len({first, _noise([2.0]), _noise([1.0], seed=np.array([1, 3], np.int32))}) == 3


# --- Tests of clients with more examples than the limit of secure sums


_SECURE = SecureSum(
    make_options(SecureSumOptions, limit_examples=20, limit_update=20.0, limit_weight=200.0)
)
_LARGE, *_OTHERS = cohort(sizes=(200, 9, 20))
# This client has the largest loss, so that it trains in every algorithm.
_LARGE["x"] *= 3
_FIRST = {name: column[:20] for name, column in _LARGE.items()}


@pytest.mark.slow
def test_client_beyond_limit_uses_its_first_examples(streaming_runtime):
    training = streaming_runtime.training(build("above_mean"), _SECURE)
    state, _ = run_rounds(training, [cohort(1, sizes=(12, 7))])
    actual, report = training.next(state, [_LARGE, *_OTHERS])
    expected, limited_report = training.next(state, [_FIRST, *_OTHERS])
    assert_identical(actual, expected)
    for step in ("survey", "training"):
        clipped, limited = (r["aggregator"][step]["clipped"] for r in (report, limited_report))
        assert (clipped.pop("examples"), limited.pop("examples")) == (180, 0)
        assert sum(clipped.values()) == 0
    assert_identical(report, limited_report)
    # The large client's update changes the model.
    without, _ = training.next(state, _OTHERS)
    kernel, other = (s.algorithm.weights.trainable[0] for s in (actual, without))
    assert not np.allclose(kernel, other)
    with pytest.raises(UserError, match="expected at least 2 clients in a sum, found 1"):
        training.next(state, [_LARGE])


@pytest.mark.slow
def test_evaluation_uses_each_clients_first_examples(streaming_runtime):
    model = logistic_regression(4, 3)
    evaluate = streaming_runtime.evaluation(model, 3, _SECURE)
    actual, expected = (
        evaluate(model.initial_weights, [[first, *_OTHERS]]) for first in (_LARGE, _FIRST)
    )
    assert_identical(actual.output, expected.output)
    assert (actual.clipped["examples"], expected.clipped["examples"]) == (180, 0)


# --- Tests of local SGD on one client


_TRAINING_SEED = tf.constant(12, tf.int64)


def test_regularizer_is_in_losses_and_gradient():
    model = linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2))
    weights, client = model.initial_weights, make_client([1, 2, 5], [0, 0, 1])
    # The examples' mean gradient is 8 / 3, and the regularizer's gradient is w = 4.
    trained, _ = local_sgd(
        model,
        ClientTraining(learning_rate=1.0),
        weights,
        single(client, _TRAINING_SEED),
        np.ones([2], np.float32),
        np.float32(3),
    )
    np.testing.assert_allclose(trained[0], [4 - (8 / 3 + 4)], rtol=1e-5)
    # Each example's loss is x w, plus 8 for the regularizer.
    sums = domain_sums(model, 2, weights, single(client), batch_size=2)
    np.testing.assert_allclose(sums.losses, [(1 + 2) * 4 + 2 * 8, 5 * 4 + 8])


def _trained(client, *, seed=_TRAINING_SEED, weights=random_weights(), **options):
    return local_sgd(
        logistic_regression(4, 3),
        ClientTraining(learning_rate=1.0, batch_size=4, **options),
        weights,
        single(client, seed),
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
    ).trained


@pytest.mark.slow
def test_shuffling_depends_on_seed_and_epoch():
    client = random_client(np.random.default_rng(0), 23, [0, 1, 3])
    first = _trained(client)
    assert_identical(_trained(client), first)
    other = _trained(client, seed=tf.constant(13, tf.int64))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], _trained(client, shuffle=False)[0])
    # The second epoch's order differs from the first epoch's.
    once_more = _trained(client, weights=ModelWeights(first, []))
    assert not np.array_equal(_trained(client, epochs=2)[0], once_more[0])


@pytest.mark.parametrize("rate", [1e-1, 1e-6])
def test_rows_with_repeated_ids_change_by_summed_gradients(rate):
    """If 5,000 tiny steps were subtracted from 1 one at a time, rounding would lose each step."""
    words = np.array([2] * 5000 + [0], np.int64)
    gradients = np.random.default_rng(0).normal(1.0, 0.1, size=[5001, 3]) * rate / 5000
    actual = minus_rows(np.ones([4, 3], np.float32), words, gradients.astype(np.float32))
    expected = np.ones([4, 3])
    np.subtract.at(expected, words, gradients)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=6e-8 + 1e-6 * rate)
    assert_identical(actual[1], np.ones([3], np.float32))


@pytest.mark.slow
def test_large_loss_hides_no_small_losses_in_sum():
    """The first of 60,000 examples has 600,000 times the loss of each other example."""
    x = np.array([1e4] + [0.017] * 59_999, np.float32)
    sums = domain_sums(
        linear_model(), 2, linear_model().initial_weights, single(make_client(x, [0] * 60_000))
    )
    expected = 4.0 * np.sum(x, dtype=np.float64)
    np.testing.assert_allclose(sums.losses, [expected, 0.0], rtol=5e-5)
