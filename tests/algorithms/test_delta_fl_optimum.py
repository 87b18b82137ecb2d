"""Delta-FL finds a convex solver's minimum of the superquantile of the clients' losses."""

import functools

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.algorithms.references.delta_fl import (
    smoothed_shares,
    smoothed_superquantile,
    superquantile,
)
from tests.support.algorithms import build
from tests.support.clients import NUM_DOMAINS, random_client
from tests.support.comparing import flat
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression

pytestmark = pytest.mark.slow

_FEATURES, _CLASSES, _RIDGE = 4, 3, 0.05
_SHAPES = ((_FEATURES, _CLASSES), (_CLASSES,))
_NUM_CLIENTS = 12


@functools.cache
def _clients():
    """Returns clients of different sizes, each with its own rule for labels."""
    rng = np.random.default_rng(3)
    clients = []
    for _ in range(_NUM_CLIENTS):
        client = random_client(rng, int(rng.integers(4, 30)), range(NUM_DOMAINS))
        rule = rng.normal(size=(_FEATURES, _CLASSES), scale=1.0) + np.eye(_FEATURES, _CLASSES)
        client["y"] = np.argmax(client["x"] @ rule, axis=1).astype(client["y"].dtype)
        clients.append(client)
    return clients


def _alphas():
    return np.array([len(client["y"]) for client in _clients()], np.float64)


def _losses(w):
    """Returns each client's regularised loss F_k(w) and gradient; w is a flat vector."""
    kernel, bias = np.reshape(w[:12], _SHAPES[0]), w[12:]
    losses, gradients = [], []
    for client in _clients():
        x, y = client["x"].astype(np.float64), client["y"]
        scores = x @ kernel + bias
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(y)), y]).mean() + _RIDGE / 2 * w @ w)
        error = (p - np.eye(_CLASSES)[y]) / len(y)
        gradients.append(np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)]) + _RIDGE * w)
    return np.array(losses), np.array(gradients)


@functools.cache
def _optimum(theta):
    """Returns min_{w, eta, s} eta + (1/theta) sum alpha_k s_k with s_k >= F_k - eta, s_k >= 0."""
    alpha = _alphas() / _alphas().sum()
    size = 15

    def above(z):
        return z[size + 1 :] - (_losses(z[:size])[0] - z[size])

    def above_jacobian(z):
        _, gradients = _losses(z[:size])
        return np.hstack([-gradients, np.ones([_NUM_CLIENTS, 1]), np.eye(_NUM_CLIENTS)])

    slope = np.concatenate([np.zeros(size), [1.0], alpha / theta])
    start = np.concatenate([np.zeros(size + 1), np.full(_NUM_CLIENTS, 2.0)])
    actual = minimize(
        lambda z: slope @ z,
        start,
        jac=lambda z: slope,
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": above, "jac": above_jacobian}],
        bounds=[(None, None)] * (size + 1) + [(0, None)] * _NUM_CLIENTS,
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert actual.success, actual.message
    return superquantile(_losses(actual.x[:size])[0], _alphas(), theta)


def _mean_of_late_iterates(runtime, theta, boundary):
    algorithm = build(
        "delta_fl",
        logistic_regression(_FEATURES, _CLASSES, _RIDGE),
        theta=(theta,),
        boundary=boundary,
        client_learning_rate=0.1,
        client_epochs=1,
        client_batch_size=100,
        client_shuffle=False,
    )
    training = runtime.training(algorithm, PlainSum())
    state, iterates = training.initialize(), []
    for _ in range(300):
        state, _ = training.next(state, _clients())
        iterates.append(flat(algorithm.main_model(state.algorithm).trainable))
    return np.mean(iterates[150:], axis=0)


def _reached(runtime, theta, boundary):
    w = _mean_of_late_iterates(runtime, theta, boundary)
    return superquantile(_losses(w)[0], _alphas(), theta)


@pytest.mark.parametrize("theta", [0.1, 0.8])
def test_superquantile_falls_to_the_solvers_optimum(cohort_runtime, theta):
    assert _reached(cohort_runtime, theta, "exact") == pytest.approx(_optimum(theta), rel=0.01)


def test_printed_algorithm_stays_above_the_optimum(cohort_runtime):
    """In the paper, clients at the threshold train in full, so a fraction above theta trains."""
    assert 1.01 < _reached(cohort_runtime, 0.5, "paper") / _optimum(0.5) < 1.05


def test_smoothed_objective_falls_to_its_optimum(cohort_runtime):
    """The smoothed objective is differentiable, so an unconstrained solver finds its optimum."""
    theta, nu = 0.3, 0.2

    def objective(w):
        losses, gradients = _losses(w)
        shares, _ = smoothed_shares(losses, _alphas(), theta, nu)
        pi = shares * _alphas() / _alphas().sum() / theta
        return smoothed_superquantile(losses, _alphas(), theta, nu), pi @ gradients

    optimum = minimize(objective, np.zeros(15), jac=True, method="BFGS")
    w = _mean_of_late_iterates(cohort_runtime, theta, f"smooth:width={nu}")
    assert objective(w)[0] == pytest.approx(optimum.fun, rel=1e-3)
    # The smoothed objective's minimum is not the exact objective's.
    assert superquantile(_losses(optimum.x)[0], _alphas(), theta) > 1.001 * _optimum(theta)
