"""The server's step with every optimizer equals steps of TFF's or Keras' optimizers."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client, random_client
from tests.support.comparing import assert_all_close, assert_identical, flat, to_tensors
from tests.support.models import linear_model
from tests.support.rounds import EagerTraining
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.base.later import tff
from tff_agnostic.base.options import alternatives, hints
from tff_agnostic.computations import ClientTraining, ServerUpdate
from tff_agnostic.computations.server import Adagrad, Adam, Momentum, Nesterov, Sgd, Yogi
from tff_agnostic.models import Metric, logistic_regression

_OPTIMIZERS = [kind() for kind in alternatives(hints(ServerUpdate)["optimizer"])]


def _name(optimizer: Any) -> str:
    return type(optimizer).__name__.lower()


def _server(optimizer: Any) -> ServerUpdate:
    return ServerUpdate(optimizer, learning_rate=0.1)


def _algorithm(optimizer: Any = Sgd(), model=None):
    problem = Problem.numbered(logistic_regression(4, 3) if model is None else model, 2)
    client = ClientTraining(batch_size=4)
    options = AgnosticFedAvgOptions(client=client, server=_server(optimizer))
    return agnostic_fed_avg(problem, options)


def test_average_delta_is_the_optimizers_gradient():
    """The gradient is w minus the average of the clients' weights."""
    optimizer = Adagrad()
    training = EagerTraining(_algorithm(optimizer))
    rng = np.random.default_rng(0)
    cohort = [random_client(rng, n, range(2)) for n in (5, 8)]
    state = training.initialize()
    summed = training.sum_cohort(state, cohort)
    next_state, metrics = training.finish(state, (summed,))

    gradient = [delta / summed.beta for delta in summed.weighted_delta]
    specs = [tf.TensorSpec(g.shape, g.dtype) for g in gradient]
    built = _server(optimizer).build(linear_model())
    optimizer_state, expected = built.next(
        built.initialize(specs), state.algorithm.weights.trainable, gradient
    )
    after = next_state.algorithm
    assert_all_close(list(after.weights.trainable), expected, rtol=1e-6)
    states = (after.optimizer_state, optimizer_state)
    assert_all_close(*map(tf.nest.flatten, states), rtol=1e-6)
    norm = np.linalg.norm(flat(after.weights.trainable))
    np.testing.assert_allclose(metrics["finalizer"]["update_norm"], norm, rtol=1e-5)
    # A round without contributing clients keeps the state, so momentum changes no weights.
    kept, _ = training.next(next_state, [make_client(np.zeros([0, 4]), [])])
    assert_identical(kept._replace(round_num=next_state.round_num), next_state)


def test_metrics_are_transformed_ratios_by_domain():
    model = logistic_regression(4, 3)
    error = Metric("error", _guess_error, max_numerator=2.0, transform=tf.exp)
    model = dataclasses.replace(model, metrics=(*model.metrics, error))
    training = EagerTraining(_algorithm(model=model))
    cohort = [make_client(np.ones([3, 4]), [0, 0, 0], y=[0, 1, 2])]
    _, metrics = training.next(training.initialize(), cohort)
    train = metrics["client_work"]["train"]
    # With zero weights all scores are equal, so the model predicts the first class.
    np.testing.assert_allclose(train["loss"], [np.log(3), 0], rtol=1e-6)
    np.testing.assert_allclose(train["accuracy"], [1 / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(train["error"], np.exp([1.0, 0.0]), rtol=1e-6)
    np.testing.assert_array_equal(train["num_examples"], [3, 0])


def _guess_error(labels, scores):
    error = tf.cast(labels - tf.argmax(scores, axis=-1, output_type=labels.dtype), tf.float32)
    return error, tf.ones_like(error)


# --- Optimizers equal TFF's, and Nesterov momentum equals Keras'


class _Keras:
    """Keras' SGD with Nesterov momentum on variables with the given initial weights."""

    def __init__(self, weights, learning_rate, momentum):
        self._variables = [tf.Variable(w) for w in weights]
        self._sgd = tf.keras.optimizers.SGD(learning_rate, momentum=momentum, nesterov=True)

    def step(self, gradients):
        self._sgd.apply_gradients(zip(map(tf.constant, gradients), self._variables))
        return [v.numpy() for v in self._variables]


def _specs(weights):
    return [tf.TensorSpec(w.shape, w.dtype) for w in weights]


@pytest.mark.parametrize(("learning_rate", "momentum"), [(0.1, 0.9), (0.3, 0.0)])
def test_nesterov_steps_match_keras(learning_rate, momentum):
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ([3, 2], [2], [])]
    keras = _Keras(weights, learning_rate, momentum)
    optimizer = Nesterov(momentum).build(learning_rate)
    state = optimizer.initialize(_specs(weights))
    for _ in range(6):
        gradients = [np.asarray(rng.normal(size=w.shape), np.float32) for w in weights]
        state, weights = optimizer.next(state, weights, gradients)
        assert_all_close(list(weights), keras.step(gradients), rtol=1e-5, atol=1e-6)


_TFF = tff.learning.optimizers
# Functions that build optimizers: the package's from (momentum, epsilon), TFF's from (rate,
# momentum, epsilon).
_PAIRS: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda m, e: Sgd(), lambda rate, m, e: _TFF.build_sgdm(rate)),
    "momentum": (lambda m, e: Momentum(m), lambda rate, m, e: _TFF.build_sgdm(rate, m)),
    "adagrad": (lambda m, e: Adagrad(e), lambda rate, m, e: _TFF.build_adagrad(rate, epsilon=e)),
    "adam": (Adam, lambda rate, m, e: _TFF.build_adam(rate, beta_1=m, epsilon=e)),
    "yogi": (Yogi, lambda rate, m, e: _TFF.build_yogi(rate, beta_1=m, epsilon=e)),
}


def test_every_optimizer_has_a_reference():
    assert {*_PAIRS, "nesterov"} == set(map(_name, _OPTIMIZERS))


@pytest.mark.parametrize("name", _PAIRS)
@pytest.mark.parametrize("numbers", [(0.1, 0.9, 1e-3), (0.01, 0.0, 0.1)])
def test_steps_and_states_equal_tff(name, numbers):
    """States have the same keys in the same order, and values are equal bit for bit."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ([3, 2], [2], [])]
    gradients = [[rng.normal(size=w.shape).astype(np.float32) for w in weights] for _ in range(6)]

    def run(optimizer):
        step = tf.function(optimizer.next, autograph=False)
        state, now = to_tensors((optimizer.initialize(_specs(weights)), weights))
        states = [state]
        for gradient in gradients:
            state, now = step(state, now, to_tensors(gradient))
            states.append(state)
        return now, states

    (our_optimizer, tff_optimizer), (rate, *others) = _PAIRS[name], numbers
    actual, actual_states = run(our_optimizer(*others).build(rate))
    expected, expected_states = run(tff_optimizer(rate, *others))
    assert_identical(actual, expected)
    for state, expected_state in zip(actual_states, expected_states):
        assert list(state) == list(expected_state)
        assert_identical(dict(state), dict(expected_state))


def test_nesterov_keeps_float64():
    optimizer = Nesterov(0.9).build(0.1)
    weights = [tf.constant([1.0], tf.float64)]
    state, (stepped,) = optimizer.next(
        optimizer.initialize([tf.TensorSpec([1], tf.float64)]), weights, weights
    )
    assert stepped.dtype == state["velocity"][0].dtype == tf.float64
    np.testing.assert_allclose(stepped, [1 - 0.9 * 0.1 - 0.1], rtol=1e-7)
