"""What one client computes and sends."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    assert_all_close,
    assert_identical,
    linear_model,
    make_client,
    random_client,
)
from tff_agnostic.computations.client_update import client_update
from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.local_training import LocalTrainingParams, local_training
from tff_agnostic.computations.structures import ClientInput
from tff_agnostic.errors import UserError
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.functional import ModelWeights

_SEED = np.array([1, 2], np.int32)


def _weights(seed: int = 0) -> ModelWeights:
    rng = np.random.default_rng(seed)
    shapes = ([4, 3], [3])
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in shapes], [])


def _client(seed: int = 0, size: int = 23) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, [0, 1, 3])


# The domain pass


def test_domain_pass_sums_losses_counts_and_metrics_of_each_domain():
    model, weights, client = logistic_regression(4, 3), _weights(), _client()
    sums = domain_pass(model, 4, weights, client, batch_size=256)

    scores = client["x"] @ weights.trainable[0] + weights.trainable[1]
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(23), client["y"]]
    correct = scores.argmax(axis=1) == client["y"]
    for i in range(4):
        in_domain = client["domain_id"] == i
        np.testing.assert_allclose(sums.losses[i], losses[in_domain].sum(), rtol=1e-5)
        assert sums.counts[i] == in_domain.sum()
        accuracy = sums.metric_sums["accuracy"]
        assert accuracy.numerator[i] == correct[in_domain].sum()
        assert accuracy.denominator[i] == in_domain.sum()


@pytest.mark.parametrize("batch_size", [1, 2, 7, 22, 23, 24])
def test_domain_pass_does_not_depend_on_its_batch_size(batch_size):
    model, weights, client = logistic_regression(4, 3), _weights(), _client()
    sums = domain_pass(model, 4, weights, client, batch_size)
    assert_all_close(sums, domain_pass(model, 4, weights, client, 1000))


def test_domain_pass_of_a_client_without_examples_is_zero():
    sums = domain_pass(logistic_regression(4, 3), 4, _weights(), _client(size=0), 8)
    for value in tf.nest.flatten(sums):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def test_the_regularizer_is_in_the_domain_pass_and_in_the_gradient():
    model = linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2))
    weights = ModelWeights([np.array([4.0], np.float32)], [])
    client = make_client([1, 2, 5], [0, 0, 1])
    sums = domain_pass(model, 2, weights, client, 8)
    np.testing.assert_allclose(sums.losses, [(1 + 2) * 4 + 2 * 8, 5 * 4 + 8])
    trained = local_training(
        model,
        LocalTrainingParams(learning_rate=1.0),
        weights,
        client,
        np.ones([2], np.float32),
        np.float32(3),
        _SEED,
    )
    np.testing.assert_allclose(trained[0], [4 - (8 / 3 + 4)], rtol=1e-5)


# What is sent


def _update(client, alpha=(0.1, 0.2, 0.3, 0.4), **params):
    client_input = ClientInput(_weights(), np.array(alpha, np.float32), _SEED)
    return client_update(
        logistic_regression(4, 3), 4, LocalTrainingParams(**params), client_input, client
    )


def test_beta_is_the_scaled_count_and_weighs_the_delta():
    client = _client()
    output = _update(client, batch_size=5)
    counts = np.bincount(client["domain_id"], minlength=4)
    np.testing.assert_allclose(output.beta, counts @ [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    trained = local_training(
        logistic_regression(4, 3),
        LocalTrainingParams(batch_size=5, shuffle=False),
        _weights(),
        client,
        np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        output.beta,
        _SEED,
    )
    unshuffled = _update(client, batch_size=5, shuffle=False)
    for delta, w, w_k in zip(unshuffled.weighted_delta, _weights().trainable, trained):
        np.testing.assert_allclose(delta, output.beta * (w - w_k), rtol=1e-5, atol=1e-7)


def test_losses_are_those_before_training():
    client = _client()
    output = _update(client, learning_rate=1.0, epochs=3)
    sums = domain_pass(logistic_regression(4, 3), 4, _weights(), client, 256)
    assert_all_close(output.domain_losses, sums.losses)
    assert_identical(output.domain_counts, sums.counts)
    assert_all_close(output.metric_sums, OrderedDict(sums.metric_sums))


def test_a_huge_learning_rate_is_dropped_when_it_overflows():
    client = _client()
    client["x"] *= 1e20
    output = _update(client, learning_rate=1e25, epochs=2)
    assert output.clients.non_finite == 1
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))


# Shuffling


def _trained(client, *, seed=_SEED, **params):
    return local_training(
        logistic_regression(4, 3),
        LocalTrainingParams(learning_rate=1.0, batch_size=4, **params),
        _weights(),
        client,
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
        seed,
    )


def test_shuffling_is_a_function_of_the_seed():
    client = _client()
    first = _trained(client)
    assert_identical(_trained(client), first)
    other = _trained(client, seed=np.array([1, 3], np.int32))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], _trained(client, shuffle=False)[0])


def test_each_epoch_visits_every_example_once():
    """The gradient of a linear loss does not depend on the order: only on who was visited."""
    client = make_client(2.0 ** np.arange(9), np.zeros(9))
    for epochs in (1, 2, 3):
        trained = local_training(
            linear_model(initial=0.0),
            LocalTrainingParams(learning_rate=1.0, batch_size=2, epochs=epochs),
            ModelWeights([np.array([0.0], np.float32)], []),
            client,
            np.ones([1], np.float32),
            np.float32(1.0),
            _SEED,
        )
        assert trained[0] == -epochs * (2.0**9 - 1)


def test_epochs_have_different_orders():
    """Two epochs are not the order of the first one twice."""
    client = _client()
    two_epochs = _trained(client, epochs=2)
    first = ModelWeights(_trained(client, epochs=1), [])
    same_order_again = local_training(
        logistic_regression(4, 3),
        LocalTrainingParams(learning_rate=1.0, batch_size=4),
        first,
        client,
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
        _SEED,
    )
    assert not np.array_equal(two_epochs[0], same_order_again[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "client learning rate: expected a positive number"),
        ({"learning_rate": float("inf")}, "client learning rate"),
        ({"epochs": 0}, "client epochs: expected at least 1, found 0"),
        ({"batch_size": 0}, "batch size: expected at least 1"),
        ({"domain_pass_batch_size": 0}, "domain pass batch size"),
        ({"normalizer": "clients"}, "did you mean client"),
    ],
)
def test_parameters_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        LocalTrainingParams(**options)
