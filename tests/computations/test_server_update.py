"""What the server does with a sum, with every server optimizer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    assert_identical,
    make_client,
    random_client,
    run_rounds,
)
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.server_optimizers import SERVER_OPTIMIZERS
from tff_agnostic.models import Metric, logistic_regression


def _options(server_optimizer: str) -> AgnosticFedAvgOptions:
    return AgnosticFedAvgOptions(
        batch_size=4, server_optimizer=server_optimizer, server_learning_rate=0.1
    )


def _algorithm(server_optimizer: str, model=None):
    problem = Problem.of_numbered_domains(logistic_regression(4, 3) if model is None else model, 2)
    return agnostic_fed_avg(problem, _options(server_optimizer))


def _cohorts(num: int) -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    return [[random_client(rng, n, range(2)) for n in (5, 8)] for _ in range(num)]


@pytest.fixture(params=list(SERVER_OPTIMIZERS))
def optimizer(request) -> str:
    return request.param


def test_the_average_delta_is_the_gradient(optimizer):
    """One round is one step of the optimizer on w minus the average of the clients' weights."""
    training = EagerTraining(_algorithm(optimizer))
    (cohort,) = _cohorts(1)
    state = training.initialize()
    summed = training.sum_cohort(state, cohort)
    next_state, metrics = training.finish(state, (summed,))

    gradient = [delta / summed.beta for delta in summed.weighted_delta]
    specs = [tf.TensorSpec(g.shape, g.dtype) for g in gradient]
    by_itself = _options(optimizer).build_server_optimizer()
    optimizer_state, expected = by_itself.next(
        by_itself.initialize(specs), state.algorithm.weights.trainable, gradient
    )
    after = next_state.algorithm
    assert_all_close(list(after.weights.trainable), expected, rtol=1e-6)
    for value, expected_value in zip(
        tf.nest.flatten(after.optimizer_state), tf.nest.flatten(optimizer_state)
    ):
        np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    moved = np.concatenate([np.ravel(w) for w in after.weights.trainable])
    np.testing.assert_allclose(
        metrics["finalizer"]["update_norm"], np.linalg.norm(moved), rtol=1e-5
    )


def test_a_round_without_weight_leaves_the_optimizer_as_it_was(optimizer):
    """Momentum must not go on pushing the model while no client contributes."""
    training = EagerTraining(_algorithm(optimizer))
    state, _ = run_rounds(training, _cohorts(2))
    next_state, _ = training.next(state, [make_client(np.zeros([0, 4]), [])])
    assert_identical(next_state._replace(round_num=state.round_num), state)


# One that counts its steps, and one that does not.
@pytest.mark.parametrize("optimizer", ["adam", "nesterov"], indirect=True)
def test_runs_in_tff_follow_the_pure_functions(tff_runtime, optimizer):
    algorithm = _algorithm(optimizer)
    cohorts = _cohorts(3)
    state, metrics = run_rounds(tff_runtime.training(algorithm, PlainSum()), cohorts)
    expected, expected_metrics = run_rounds(EagerTraining(algorithm), cohorts)
    assert_all_close(state, expected, rtol=1e-4, atol=1e-5)
    for actual_round, expected_round in zip(metrics, expected_metrics):
        # What a runtime adds to the report.
        assert (actual_round.pop("aggregator"), actual_round.pop("skipped")) == ({}, 0)
        assert_all_close(actual_round, expected_round, rtol=1e-4, atol=1e-5)


def test_metrics_are_losses_and_ratios_of_each_domain_before_training():
    training = EagerTraining(_algorithm("sgd"))
    cohort = [make_client(np.ones([3, 4]), [0, 0, 0], y=[0, 1, 2])]
    _, metrics = training.next(training.initialize(), cohort)
    train = metrics["client_work"]["train"]
    # Weights of zero give every class the same score, and the first class is predicted.
    np.testing.assert_allclose(train["loss"], [np.log(3), 0], rtol=1e-6)
    np.testing.assert_allclose(train["accuracy"], [1 / 3, 0], rtol=1e-6)
    np.testing.assert_array_equal(train["num_examples"], [3, 0])


def test_rounds_report_the_values_of_metrics_not_their_ratios():
    model = logistic_regression(4, 3)
    error = Metric("error", _error_of_guess, max_numerator=2.0, transform=tf.exp)
    model = dataclasses.replace(model, metrics=(*model.metrics, error))
    training = EagerTraining(_algorithm("sgd", model))
    client = make_client(np.ones([4, 4]), [0, 0, 1, 1], y=[2, 1, 0, 0])
    _, (metrics,) = run_rounds(training, [[client]])
    np.testing.assert_allclose(
        metrics["client_work"]["train"]["error"], np.exp([1.5, 0.0]), rtol=1e-6
    )


def _error_of_guess(labels, scores):
    error = tf.cast(labels - tf.argmax(scores, axis=-1, output_type=labels.dtype), tf.float32)
    return error, tf.ones_like(error)
