"""Sums of losses, counts and metrics of each domain."""

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    assert_all_close,
    linear_model,
    make_client,
    random_client,
    single,
)
from tff_agnostic.computations.domain_losses import domain_sums
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights


def _weights(seed: int = 0) -> ModelWeights:
    rng = np.random.default_rng(seed)
    shapes = ([4, 3], [3])
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in shapes], [])


def _client(seed: int = 0, size: int = 23) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, [0, 1, 3])


def test_domain_pass_sums_losses_counts_and_metrics_of_each_domain():
    model, weights, client = logistic_regression(4, 3), _weights(), _client()
    sums = domain_sums(model, 4, weights, single(client), batch_size=256)

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
    sums = domain_sums(model, 4, weights, single(client), batch_size=batch_size)
    assert_all_close(sums, domain_sums(model, 4, weights, single(client), batch_size=1000))


def test_domain_pass_of_a_client_without_examples_is_zero():
    sums = domain_sums(logistic_regression(4, 3), 4, _weights(), single(_client(size=0)))
    for value in tf.nest.flatten(sums):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def test_the_regularizer_is_part_of_every_examples_loss():
    model = linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2))
    weights = ModelWeights([np.array([4.0], np.float32)], [])
    sums = domain_sums(model, 2, weights, single(make_client([1, 2, 5], [0, 0, 1])), batch_size=2)
    np.testing.assert_allclose(sums.losses, [(1 + 2) * 4 + 2 * 8, 5 * 4 + 8])


@pytest.mark.parametrize("order", [1, -1], ids=["large first", "small first"])
def test_a_large_sum_does_not_swallow_small_losses(order):
    """Of 60,000 examples the first, or the last, has a million times the loss of the others."""
    x = np.array([1e4] + [0.017] * 59_999, np.float32)[::order]
    sums = domain_sums(
        linear_model(),
        2,
        linear_model().initial_weights,
        single(make_client(x, [0] * 60_000)),
    )
    expected = 4.0 * np.sum(x, dtype=np.float64)
    np.testing.assert_allclose(sums.losses, [expected, 0.0], rtol=5e-5)
