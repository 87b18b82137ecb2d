"""What one client computes and sends."""

import dataclasses
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
    single,
)
from tff_agnostic.algorithms.agnostic_fed_avg import client_work
from tff_agnostic.computations.client_output import TrainingBroadcast, TrainingOutput
from tff_agnostic.computations.domain_losses import Holdout, domain_sums
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_sgd
from tff_agnostic.models import Metric, Model, logistic_regression
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([1, 2], np.int32)
_CLIENT_SEED = tf.constant(5, tf.int64)


def _weights(seed: int = 0) -> ModelWeights:
    rng = np.random.default_rng(seed)
    shapes = ([4, 3], [3])
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in shapes], [])


def _client(seed: int = 0, size: int = 23) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, [0, 1, 3])


def _output(model, alpha, weights, client, seed=_SEED, **options) -> TrainingOutput:
    """What a client sends in a round whose seed is `seed`."""
    return client_work(
        TrainingBroadcast(weights, np.array(alpha, np.float32)),
        single(client).seeded(seed),
        model=model,
        num_domains=len(alpha),
        options=LocalTrainingOptions(**options),
        holdout=Holdout(),
    )


def _update(client, alpha=(0.1, 0.2, 0.3, 0.4), **options) -> TrainingOutput:
    return _output(logistic_regression(4, 3), alpha, _weights(), client, **options)


def test_beta_is_the_scaled_count_and_weighs_the_delta():
    client = _client()
    output = _update(client, batch_size=5)
    counts = np.bincount(client["domain_id"], minlength=4)
    np.testing.assert_allclose(output.beta, counts @ [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    trained, _ = local_sgd(
        logistic_regression(4, 3),
        LocalTrainingOptions(batch_size=5, shuffle=False),
        _weights(),
        single(client, _CLIENT_SEED),
        np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        output.beta,
    )
    unshuffled = _update(client, batch_size=5, shuffle=False)
    for delta, w, w_k in zip(unshuffled.weighted_delta, _weights().trainable, trained):
        np.testing.assert_allclose(delta, output.beta * (w - w_k), rtol=1e-5, atol=1e-7)


def test_losses_are_those_before_training():
    client = _client()
    output = _update(client, client_learning_rate=1.0, client_epochs=3)
    sums = domain_sums(logistic_regression(4, 3), 4, _weights(), single(client))
    assert_all_close(output.domain_losses, sums.losses)
    assert_identical(output.domain_counts, sums.counts)
    assert_all_close(output.metric_sums, OrderedDict(sums.metric_sums))


def test_a_huge_learning_rate_is_dropped_when_it_overflows():
    client = _client()
    client["x"] *= 1e20
    output = _update(client, client_learning_rate=1e25, client_epochs=2)
    assert output.clients.non_finite == 1
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))


@pytest.mark.parametrize("spoil_the_metric", [False, True])
def test_losses_or_metrics_that_are_not_finite_are_dropped_with_a_finite_update(spoil_the_metric):
    model = linear_model()
    x = [1.0, 2.0]
    if spoil_the_metric:
        infinite = Metric("infinite", lambda y, p: (tf.divide(p, 0.0), tf.ones_like(p)))
        model = dataclasses.replace(model, metrics=(infinite,))
    else:
        x = [1.0, 3e38]
    client = make_client(x, [0, 0])
    output = _output(model, [1.0], model.initial_weights, client, client_learning_rate=1e-30)
    assert output.clients.non_finite == 1
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def _noise_model() -> Model:
    """A linear model whose gradient is the noise that its predictions draw."""

    def predict(weights, x, training, seed):
        return weights.trainable[0] * tf.random.stateless_uniform([tf.size(x)], seed)

    return dataclasses.replace(linear_model(), predict=predict)


def _noise(x, *, seed=_SEED, epochs=1) -> float:
    """Returns how far noise moved the only weight of a client, alpha and beta aside."""
    output = _output(
        _noise_model(),
        [1.0],
        ModelWeights([np.array([0.0], np.float32)], []),
        make_client(x, np.zeros(len(x))),
        seed,
        client_learning_rate=1.0,
        client_epochs=epochs,
        batch_size=1,
    )
    return float(output.weighted_delta[0][0])


def test_every_step_draws_anew():
    first = _noise([1.0], epochs=1)
    assert _noise([1.0], epochs=1) == first
    draws = np.diff([0.0, *[_noise([1.0], epochs=e) for e in (1, 2, 3)]])
    assert len(set(np.round(draws, 4))) == 3


def test_clients_with_other_data_and_rounds_with_another_seed_draw_differently():
    noise = {_noise([1.0]), _noise([2.0]), _noise([1.0], seed=np.array([1, 3], np.int32))}
    assert len(noise) == 3
