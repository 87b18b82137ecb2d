"""What Stochastic-AFL draws, enumerated or counted: means and variances of its gradients."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.random_rounds import W_0
from tests.algorithms.references.softmax import SOFTMAX
from tests.algorithms.stochastic_afl_cases import COUNTS, build_afl
from tests.computations.harness import make_client, random_client, single
from tests.selection import exhaustive
from tff_agnostic.algorithms.saddle_point import draw
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.local_training import gradient_pass
from tff_agnostic.models import logistic_regression


def _population() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [random_client(rng, n, range(3)) for n in (4, 7, 2, 9)]


def test_over_all_cohorts_both_gradients_are_those_of_the_population(cohort_runtime):
    """Every pair of four clients: the mean step is that of all clients at once."""
    clients = _population()
    totals = np.bincount(np.concatenate([c["domain_id"] for c in clients]), minlength=3)

    def step(cohort: Any, counts: np.ndarray) -> Any:
        algorithm = build_afl(counts=counts, server_learning_rate=1.0, domain_learning_rate=1e-3)
        training = cohort_runtime.training(algorithm, PlainSum())
        state, _ = training.next(training.initialize(), list(cohort))
        return [*state.algorithm.weights.trainable, state.algorithm.lambda_]

    steps = [step(pair, totals / 2.0) for pair in itertools.combinations(clients, 2)]
    for mean, whole in zip(map(np.mean, zip(*steps), itertools.repeat(0)), step(clients, totals)):
        np.testing.assert_allclose(mean, whole, atol=1e-6)


def test_over_all_domains_the_weighted_gradient_is_the_per_domain_one():
    """K with probability lambda_K: the gradients at alpha = e_K / n_K, by lambda."""
    (client,) = [c for c in _population() if len(c["y"]) == 9]
    lambda_ = np.array([0.2, 0.5, 0.3], np.float32)
    gradients = [_gradient(client, vertex) for vertex in np.eye(3, dtype=np.float32)]
    mean = [sum(l_k * g for l_k, g in zip(lambda_, gs)) for gs in zip(*gradients)]
    for found, expected in zip(mean, _gradient(client, lambda_)):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@exhaustive
def test_over_all_draws_a_sample_has_the_gradient_and_the_losses_of_all_examples():
    """Of samples of one example each is n times that example, and all are drawn alike."""
    rng = np.random.default_rng(5)
    client = make_client(rng.normal(size=[5, 4]), [0, 1, 1, 2, 0], rng.integers(3, size=5))
    alpha = np.array([0.5, 0.2, 0.3], np.float32)

    @tf.function
    def sample(seed: tf.Tensor) -> Any:
        return _passed(client, alpha, seed, sample_size=1)

    singles = [
        _passed(
            {key: column[[j]] for key, column in client.items()}, alpha, tf.constant(0, tf.int64)
        )
        for j in range(5)
    ]
    times = np.zeros(5)
    for seed in range(1000):
        found = sample(tf.constant(seed, tf.int64))
        np.testing.assert_array_equal(found.sums.counts, [2, 2, 1])
        (j,) = [
            j
            for j, single in enumerate(singles)
            if np.allclose(found.gradient[0], 5 * single.gradient[0], rtol=1e-5)
        ]
        np.testing.assert_allclose(found.sums.losses, 5 * singles[j].sums.losses, rtol=1e-5)
        times[j] += 1
    # 200 each, with a standard deviation of 12.6.
    assert np.all(np.abs(times - 200) < 5 * 12.6)


def _passed(client: Any, alpha: Any, seed: Any, sample_size: Any = None) -> Any:
    return gradient_pass(
        logistic_regression(4, 3),
        3,
        W_0,
        single(tf.nest.map_structure(tf.constant, client), seed),
        tf.constant(alpha),
        sample_size,
    )


def _gradient(client: Any, lambda_: np.ndarray) -> Any:
    alpha = (lambda_ / COUNTS).astype(np.float32)
    return _passed(client, alpha, tf.constant(0, tf.int64)).gradient


def test_draws_have_their_probabilities_and_never_what_has_none():
    probabilities = np.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], np.float32)
    drawn = [int(draw(tf.constant(probabilities), tf.constant([k, 1]))) for k in range(2000)]
    shares = np.bincount(drawn, minlength=6) / 2000
    assert not shares[probabilities == 0].any()
    # Standard deviations of at most 0.011.
    np.testing.assert_allclose(shares, probabilities, atol=0.055)


def test_lambda_of_one_domain_trains_on_that_domain_alone(cohort_runtime):
    algorithm = build_afl(domain_weight_update="fixed", initial_domain_weights=(1.0, 0.0, 0.0))
    training = cohort_runtime.training(algorithm, PlainSum())
    clients = _population()
    of_first = [
        {key: column[client["domain_id"] == 0] for key, column in client.items()}
        for client in clients
    ]
    states = [training.next(training.initialize(), c)[0] for c in (clients, of_first)]
    for one, other in zip(*(s.algorithm.weights.trainable for s in states)):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_one_loss_of_one_domain_has_the_mean_of_all(cohort_runtime):
    """p L_K e_K: lambda moves in one entry, and each entry moves in a third of the rounds."""
    algorithm = build_afl(lambda_gradient="one_domain", domain_learning_rate=1e-3)
    training = cohort_runtime.training(algorithm, PlainSum())
    cohort = _population()
    state, moved = training.initialize(), []
    for _ in range(60):
        before = np.asarray(state.algorithm.lambda_)
        state, report = training.next(state, cohort)
        losses = np.asarray(report["client_work"]["train"]["loss"])
        losses = losses * np.asarray(report["client_work"]["train"]["num_examples"]) / COUNTS
        # What the projection takes from all alike is taken back.
        change = np.asarray(state.algorithm.lambda_) - before
        k = int(np.argmax(change))
        np.testing.assert_allclose(
            change[k] - change[k - 1], 3 * 1e-3 * losses[k], rtol=1e-3, atol=1e-6
        )
        moved.append(k)
    assert np.all(np.bincount(moved, minlength=3) > 8)


@exhaustive
def test_the_variances_of_both_gradients_are_those_of_the_paper(cohort_runtime):
    """Per domain sum_k lambda_k^2 var_k, weighted sum_k lambda_k (var_k + ||grad L_k - grad L||^2).

    Each of three clients has a domain, and draws one example.
    """
    rng = np.random.default_rng(6)
    lambda_ = np.array([0.2, 0.5, 0.3])
    clients = [
        make_client(rng.normal(size=[5, 4]) + k, [k] * 5, rng.integers(3, size=5)) for k in range(3)
    ]
    zeros = [np.zeros([4, 3]), np.zeros([3])]

    def flat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.concatenate([g.ravel() for g in SOFTMAX.summed_gradient(zeros, x, y)])

    singles = np.array(
        [[flat(c["x"][[j]], c["y"][[j]]) for j in range(5)] for c in clients], np.float64
    )
    means = singles.mean(axis=1)
    var = np.square(singles - means[:, np.newaxis]).sum(axis=2).mean(axis=1)
    between = np.square(means - lambda_ @ means).sum(axis=1)
    expected = {"per_domain": lambda_**2 @ var, "weighted": lambda_ @ (var + between)}
    assert expected["per_domain"] < expected["weighted"]
    for gradient, variance in expected.items():
        # A step of almost nothing: w stays where it is, and says what the gradient was.
        algorithm = build_afl(
            counts=[5.0] * 3,
            server_learning_rate=1e-6,
            domain_weight_update="fixed",
            initial_domain_weights=tuple(lambda_),
            weights_gradient=gradient,
            sample_size=1,
        )
        training = cohort_runtime.training(algorithm, PlainSum())
        state, gradients = training.initialize(), []
        for _ in range(500):
            before = state.algorithm.weights.trainable
            state, _ = training.next(state, clients)
            steps = zip(before, state.algorithm.weights.trainable)
            gradients.append(np.concatenate([np.ravel(w - v) for w, v in steps]) / 1e-6)
        found = np.asarray(gradients, np.float64)
        np.testing.assert_allclose(found.mean(axis=0), lambda_ @ means, atol=0.15)
        assert np.square(found - lambda_ @ means).sum(axis=1).mean() == pytest.approx(
            variance, rel=0.18
        )
