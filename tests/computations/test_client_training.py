"""What one client computes and sends."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import golden
from tests.algorithms.cases import build
from tests.computations.harness import (
    assert_all_close,
    assert_identical,
    linear_model,
    make_client,
    random_client,
    run_rounds,
    single,
)
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.algorithms.agnostic_fed_avg import client_work
from tff_agnostic.computations import Broadcast, PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.client_output import TrainingOutput
from tff_agnostic.computations.domain_losses import Holdout, domain_sums
from tff_agnostic.computations.local_training import (
    ClientTraining,
    local_sgd,
    minus_rows,
)
from tff_agnostic.models import Metric, Model, logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_SEED = np.array([1, 2], np.int32)


def _weights(seed: int = 0) -> ModelWeights:
    rng = np.random.default_rng(seed)
    shapes = ([4, 3], [3])
    return ModelWeights([rng.normal(size=s).astype(np.float32) for s in shapes], [])


def _client(seed: int = 0, size: int = 23) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, [0, 1, 3])


def _output(model, alpha, weights, client, seed=_SEED, **options) -> TrainingOutput:
    """What a client sends in a round whose seed is `seed`."""
    return client_work(
        Broadcast(weights, np.array(alpha, np.float32)),
        single(client).seeded(seed),
        model=model,
        num_domains=len(alpha),
        training=ClientTraining(**options),
        holdout=Holdout(),
    )


def _update(client, alpha=(0.1, 0.2, 0.3, 0.4), **options) -> TrainingOutput:
    return _output(logistic_regression(4, 3), alpha, _weights(), client, **options)


@pytest.mark.slow
def test_a_huge_learning_rate_is_dropped_when_it_overflows():
    client = _client()
    client["x"] *= 1e20
    output = _update(client, learning_rate=1e25, epochs=2)
    assert output.clients.non_finite == 1
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))


@pytest.mark.slow
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
    output = _output(model, [1.0], model.initial_weights, client, learning_rate=1e-30)
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
        learning_rate=1.0,
        epochs=epochs,
        batch_size=1,
    )
    return float(output.weighted_delta[0][0])


@pytest.mark.slow
def test_every_step_draws_anew():
    first = _noise([1.0], epochs=1)
    assert _noise([1.0], epochs=1) == first
    draws = np.diff([0.0, *[_noise([1.0], epochs=e) for e in (1, 2, 3)]])
    assert len(set(np.round(draws, 4))) == 3


@pytest.mark.slow
def test_clients_with_other_data_and_rounds_with_another_seed_draw_differently():
    noise = {_noise([1.0]), _noise([2.0]), _noise([1.0], seed=np.array([1, 3], np.int32))}
    assert len(noise) == 3


# --- Clients of more examples than secure sums have room for, in whole rounds


_OPTIONS = make_options(SecureSumOptions, limit_examples=20, limit_update=20.0, limit_weight=200.0)
_ALGORITHMS = ["agnostic_fed_avg", "fed_avg", "q_ffl", "above_mean"]


def _client_of_limits(size: int, seed: int) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(seed), size, range(3))


def _first(client: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    return {name: column[:number] for name, column in client.items()}


# Its loss is larger than that of the others, so that it trains in every algorithm.
_LARGE = {**_client_of_limits(200, seed=0), "x": 3 * _client_of_limits(200, seed=0)["x"]}
_OTHERS = [_client_of_limits(9, seed=1), _client_of_limits(20, seed=2)]


@pytest.fixture(params=["vectorised"])
def runtime(request):
    with CohortRuntime(CohortOptions(client_mode=request.param)) as running:
        yield running


def _started(training: Any) -> Any:
    return run_rounds(training, [[_client_of_limits(12, seed=3), _client_of_limits(7, seed=4)]])[0]


def _matrix(state: Any) -> np.ndarray:
    return state.algorithm.weights.trainable[0]


def _clipped(report: Any) -> list[Any]:
    """Counts of what was clipped, of each exchange."""
    parts = report["aggregator"]
    return [parts["clipped"]] if "clipped" in parts else [p["clipped"] for p in parts.values()]


# Every algorithm in one way, and one algorithm in the other.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "name"),
    usually(
        [("streamed", "above_mean"), ("vectorised", "agnostic_fed_avg")],
        [*(("streamed", name) for name in _ALGORITHMS), ("vectorised", "agnostic_fed_avg")],
    ),
    indirect=["runtime"],
)
def test_one_of_ten_times_the_examples_weighs_as_one_at_the_limit(runtime, name):
    """It uses its first ones, so that counts, weights and losses belong together."""
    training = runtime.training(build(name), SecureSum(_OPTIONS))
    state = _started(training)
    found, report = training.next(state, [_LARGE, *_OTHERS])
    expected, of_limited = training.next(state, [_first(_LARGE, 20), *_OTHERS])
    assert_identical(found, expected)
    assert [counts.pop("examples") for counts in _clipped(report)] == [180] * len(_clipped(report))
    assert not any(counts.pop("examples") for counts in _clipped(of_limited))
    assert_identical(report, of_limited)
    assert sum(sum(counts.values()) for counts in _clipped(report)) == 0
    # Otherwise nothing would have been shown: the client moves the model.
    without, _ = training.next(state, _OTHERS)
    assert not np.allclose(_matrix(found), _matrix(without))


@pytest.mark.slow
def test_plain_sums_take_all_examples(runtime):
    training = runtime.training(build("agnostic_fed_avg"), PlainSum())
    state = _started(training)
    found, _ = training.next(state, [_LARGE, *_OTHERS])
    of_limited, _ = training.next(state, [_first(_LARGE, 20), *_OTHERS])
    assert not np.allclose(_matrix(found), _matrix(of_limited))


@pytest.mark.nightly
def test_the_tff_runtime_does_the_same(tff_runtime):
    training = tff_runtime.training(build("agnostic_fed_avg"), SecureSum(_OPTIONS))
    state = _started(training)
    found, report = training.next(state, [_LARGE, *_OTHERS])
    assert_identical(found, training.next(state, [_first(_LARGE, 20), *_OTHERS])[0])
    assert report["aggregator"]["clipped"]["examples"] == 180
    assert sum(report["client_work"]["train"]["num_examples"]) == 20 + 9 + 20


@pytest.mark.slow
def test_evaluations_are_on_the_first_examples_too(runtime):
    model = logistic_regression(4, 3)
    evaluate = runtime.evaluation(model, 3, SecureSum(_OPTIONS))
    found = evaluate(model.initial_weights, [[_LARGE, *_OTHERS]])
    expected = evaluate(model.initial_weights, [[_first(_LARGE, 20), *_OTHERS]])
    assert_identical(found.output, expected.output)
    assert found.clipped["examples"] == 180
    assert expected.clipped["examples"] == 0


# --- E epochs of SGD on one client: orders, the regularizer, and settings out of range


_SEED_OF_LOCAL_TRAINING = tf.constant(12, tf.int64)


def test_the_regularizer_is_in_the_gradient():
    """The mean gradient of the examples is 8 / 3, that of the regularizer w = 4."""
    trained, _ = local_sgd(
        linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2)),
        ClientTraining(learning_rate=1.0),
        ModelWeights([np.array([4.0], np.float32)], []),
        single(make_client([1, 2, 5], [0, 0, 1]), _SEED_OF_LOCAL_TRAINING),
        np.ones([2], np.float32),
        np.float32(3),
    )
    np.testing.assert_allclose(trained[0], [4 - (8 / 3 + 4)], rtol=1e-5)


def _trained(client, *, seed=_SEED_OF_LOCAL_TRAINING, **options):
    return local_sgd(
        logistic_regression(4, 3),
        ClientTraining(learning_rate=1.0, batch_size=4, **options),
        _weights(),
        single(client, seed),
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
    ).trained


@pytest.mark.slow
def test_shuffling_is_a_function_of_the_seed():
    client = _client()
    first = _trained(client)
    assert_identical(_trained(client), first)
    other = _trained(client, seed=tf.constant(13, tf.int64))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], _trained(client, shuffle=False)[0])


@pytest.mark.slow
def test_each_epoch_visits_every_example_once():
    """The gradient of a linear loss does not depend on the order: only on who was visited."""
    client = make_client(2.0 ** np.arange(9), np.zeros(9))
    for epochs in (1, 2, 3):
        trained, _ = local_sgd(
            linear_model(initial=0.0),
            ClientTraining(learning_rate=1.0, batch_size=2, epochs=epochs),
            ModelWeights([np.array([0.0], np.float32)], []),
            single(client, _SEED_OF_LOCAL_TRAINING),
            np.ones([1], np.float32),
            np.float32(1.0),
        )
        assert trained[0] == -epochs * (2.0**9 - 1)


@pytest.mark.slow
def test_epochs_have_different_orders():
    """Two epochs are not the order of the first one twice."""
    client = _client()
    two_epochs = _trained(client, epochs=2)
    first = ModelWeights(_trained(client, epochs=1), [])
    same_order_again = local_sgd(
        logistic_regression(4, 3),
        ClientTraining(learning_rate=1.0, batch_size=4),
        first,
        single(client, _SEED_OF_LOCAL_TRAINING),
        np.full([4], 0.25, np.float32),
        np.float32(len(client["y"]) * 0.25),
    ).trained
    assert not np.array_equal(two_epochs[0], same_order_again[0])


@golden.values
def test_rejects_options_out_of_range(case):
    return golden.refusal(ClientTraining, **case)


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-4, 1e-6])
def test_a_word_that_fills_the_batch_moves_by_the_sum_of_its_gradients(rate):
    """Taken off a weight of 1 one by one, 5,000 steps of 1e-4 / 5,000 would all be rounded away."""
    words = np.array([2] * 5000 + [0], np.int64)
    gradients = np.random.default_rng(0).normal(1.0, 0.1, size=[5001, 3]) * rate / 5000
    found = minus_rows(np.ones([4, 3], np.float32), words, gradients.astype(np.float32))
    expected = np.ones([4, 3])
    np.subtract.at(expected, words, gradients)
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-8 + 1e-6 * rate)
    assert_identical(found[1], np.ones([3], np.float32))


# --- Sums of losses, counts and metrics of each domain


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


def test_the_regularizer_is_part_of_every_examples_loss():
    model = linear_model(regularizer=lambda weights: 0.5 * tf.reduce_sum(weights[0] ** 2))
    weights = ModelWeights([np.array([4.0], np.float32)], [])
    sums = domain_sums(model, 2, weights, single(make_client([1, 2, 5], [0, 0, 1])), batch_size=2)
    np.testing.assert_allclose(sums.losses, [(1 + 2) * 4 + 2 * 8, 5 * 4 + 8])


@pytest.mark.slow
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
