"""Excess losses above baselines: values by hand, zero baselines, and the regret's saddle point."""

import itertools
import json
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from tests.algorithms.random_rounds import COHORTS, at_start
from tests.algorithms.stochastic_afl_cases import build_afl
from tests.support.comparing import assert_identical
from tests.support.models import squared_differences
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum
from tff_agnostic.domain_weights.ascent import Cvar, LambdaPlayer, ProjectedGradient, lambda_ascent
from tff_agnostic.domain_weights.ball import BallSet
from tff_agnostic.domain_weights.excess import excess_losses
from tff_agnostic.domain_weights.sets import BoxSet, HullSet
from tff_agnostic.models import logistic_regression


def test_excess_losses_subtract_measured_domains_baselines():
    losses = np.array([1.5, 0.2, 0.0, 0.0], np.float32)
    measured = np.array([True, True, False, True])
    actual = excess_losses(losses, (1.0, 0.5, 0.3, -0.25), measured)
    np.testing.assert_array_equal(actual, [0.5, 0.0, 0.0, 0.25])
    assert excess_losses(losses, None, measured) is losses


def _agnostic(**settings: Any) -> Any:
    problem = Problem.numbered(logistic_regression(4, 3), 3)
    chosen = {"client_learning_rate": 0.3, "lambda_learning_rate": 0.2, **settings}
    return agnostic_fed_avg(problem, make_options(AgnosticFedAvgOptions, **chosen))


@pytest.mark.slow
def test_zero_baselines_keep_rounds_identical(cohort_runtime):
    def rounds(**settings: Any) -> Any:
        algorithm = _agnostic(lambda_update="cvar:level=0.6", **settings)
        training = cohort_runtime.training(algorithm, PlainSum())
        return run_rounds(training, COHORTS[:4], at_start(training, algorithm))

    zero, without = rounds(lambda_baselines=(0.0, 0.0, 0.0)), rounds()
    assert_identical(zero[0], without[0])
    assert_identical(zero[1], without[1])
    state, reports = rounds(lambda_baselines=(0.9, 0.0, 0.0))
    assert np.any(state.algorithm.memory.lambda_ != without[0].algorithm.memory.lambda_)
    weights = [report["domain_weights"] for report in reports]
    by_round = np.array([entry["lambda"] for entry in weights])
    means = [by_round[: t + 1].mean(axis=0) for t in range(len(by_round))]
    np.testing.assert_allclose([entry["mean_lambda"] for entry in weights], means, rtol=1e-5)
    assert "mean_lambda" not in without[1][0]["domain_weights"]


@pytest.mark.parametrize(
    ("build", "baselines", "message"),
    [
        (_agnostic, (1.0, 2.0), "^baselines: expected 3 numbers, one per domain, found 2$"),
        (_agnostic, "own", "^baselines: expected 3 numbers, .* found 'own': train"),
        (_agnostic, (1.0, np.nan), "^--lambda_baselines: expected a finite number, found 1.0,nan$"),
        (build_afl, (1.0, 1.0, 1.0), "^--loss_estimate: expected ratio with baselines"),
    ],
)
def test_rejects_invalid_baselines(build, baselines, message):
    with pytest.raises(UserError, match=message):
        build(lambda_baselines=baselines)


# --- Rounds with excess losses reach the regret's saddle point


# Standard deviation of the noise in each domain's labels; no weights can fit this noise.
_NOISE = (2.0, 0.5, 0.05)


def _domains() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns inputs and labels of three least-squares problems with different solutions."""
    rng = np.random.default_rng(8)
    solutions = np.array([[1.0, 0.0], [-0.2, 0.8], [0.3, -1.0]])
    xs = [rng.normal(size=[40, 2]) for _ in _NOISE]
    ys = [x @ w + s * rng.normal(size=40) for x, w, s in zip(xs, solutions, _NOISE)]
    return xs, ys


def _smallest_worst_regret(
    regrets: Callable[[np.ndarray], np.ndarray], corners: np.ndarray
) -> np.ndarray:
    """Returns the weights w that minimise max_lambda lambda (L(w) - b), from a solver.

    Args:
        regrets: Called with w; returns L(w) - b, [p].
        corners: Corners of the set Lambda, [m, p], where linear functions have their maximum.
    """
    actual = optimize.minimize(
        lambda v: v[2],
        np.array([0.0, 0.0, 10.0]),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda v: v[2] - corners @ regrets(v[:2])},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert actual.success
    return np.asarray(actual.x[:2])


def _within(lower: Sequence[float], upper: Sequence[float]) -> np.ndarray:
    """Returns the corners of a box of mixtures, where all weights except one are at a bound."""
    actual = []
    for k in range(3):
        rest = [i for i in range(3) if i != k]
        for ends in itertools.product(*([lower[i], upper[i]] for i in rest)):
            corner = np.zeros(3)
            corner[rest], corner[k] = ends, 1.0 - sum(ends)
            if lower[k] <= corner[k] <= upper[k]:
                actual.append(corner)
    return np.array(actual)


def _circle(radius: float) -> np.ndarray:
    """Returns mixtures of three domains at chi2 distance `radius` from the uniform mixture."""
    basis = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / np.sqrt([[2.0], [6.0]])
    angle = np.linspace(0.0, 2.0 * np.pi, 361)[:, np.newaxis]
    around = np.cos(angle) * basis[0] + np.sin(angle) * basis[1]
    return 1.0 / 3.0 + np.sqrt(radius / 3.0) * around


_MIXTURES = {"a": {"0": 0.6, "1": 0.4}, "b": {"0": 0.2, "1": 0.2, "2": 0.6}}
_LOWER, _UPPER = (0.3, 0.1, 0.1), (0.8, 0.8, 0.4)
# The saddle point is on the border of every set except the simplex.
_SETS = {
    "simplex": ({"update": ProjectedGradient()}, np.eye(3)),
    "box": ({"set": BoxSet(_LOWER, _UPPER)}, _within(_LOWER, _UPPER)),
    "ball": ({"set": BallSet(0.02), "update": ProjectedGradient()}, _circle(0.02)),
    "hull": ({}, np.array([[0.6, 0.4, 0.0], [0.2, 0.2, 0.6]])),
    # CVaR bounds a weight by 1 / theta times the domain's share, which is 1/3.
    "cvar": ({"update": Cvar(0.9, 0.002)}, _within((0.0,) * 3, (1.0 / 3.0 / 0.9,) * 3)),
}


@pytest.mark.slow_cases("ball")
@pytest.mark.parametrize("name", _SETS)
def test_gradient_steps_reach_each_sets_saddle(name, tmp_path):
    values, corners = _SETS[name]
    if name == "hull":
        values = {"set": HullSet(tmp_path / "mixtures.json")}
        (tmp_path / "mixtures.json").write_text(json.dumps(_MIXTURES))
    player = LambdaPlayer(learning_rate=0.05, absent="freeze", **values)
    steps = lambda_ascent(player, ("0", "1", "2"))
    xs, ys = (np.stack(part) for part in _domains())
    solutions = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(xs, ys)]
    optima = [np.mean((x @ w - y) ** 2) for x, y, w in zip(xs, ys, solutions)]

    def regrets(w: np.ndarray) -> np.ndarray:
        return np.mean((xs @ w - ys) ** 2, axis=1) - optima

    def worst(w: np.ndarray) -> float:
        return float((corners @ regrets(w)).max())

    x, y, counts = tf.constant(xs, tf.float32), tf.constant(ys, tf.float32), tf.ones([3])

    @tf.function
    def followed(w: tf.Tensor, lambda_: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(1000):
            errors = tf.linalg.matvec(x, w) - y
            excess = excess_losses(tf.reduce_mean(errors**2, axis=1), optima, counts > 0)
            slopes = tf.linalg.matvec(x, errors, transpose_a=True) / 20.0
            w -= 0.1 * tf.linalg.matvec(slopes, steps.mixture(lambda_), transpose_a=True)
            lambda_ = steps.next(lambda_, excess, counts)
        return w

    least = worst(_smallest_worst_regret(regrets, corners))
    start = tf.constant(steps.initial, tf.float32)
    assert worst(followed(tf.zeros([2]), start).numpy()) == pytest.approx(least, abs=1e-3)
    # Without steps of lambda, the solution for the initial lambda would be worse.
    scale = np.sqrt(np.repeat(steps.mixture(start), 40))
    still = np.linalg.lstsq(scale[:, np.newaxis] * np.concatenate(xs), scale * ys.ravel(), None)[0]
    assert worst(still) > least + 0.004


@pytest.mark.slow
def test_rounds_reach_the_regrets_saddle(cohort_runtime):
    """Minimising the worst regret and the worst loss give different weights."""
    xs, ys = _domains()
    solutions = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(xs, ys)]

    def losses(w: np.ndarray) -> np.ndarray:
        return np.array([np.mean((x @ w - y) ** 2) for x, y in zip(xs, ys)])

    optima = np.array([losses(w)[k] for k, w in enumerate(solutions)])
    client = {
        "x": np.concatenate(xs).astype(np.float32),
        "y": np.concatenate(ys).astype(np.float32),
        "domain_id": np.repeat(np.arange(3), 40).astype(np.int32),
    }
    problem = Problem(squared_differences(), ("a", "b", "c"), expected_counts=(40.0,) * 3)

    def trained(baselines: Any, rounds: int) -> np.ndarray:
        options = make_options(
            AgnosticFedAvgOptions,
            client_learning_rate=0.05,
            client_batch_size=120,
            lambda_learning_rate=0.02,
            lambda_baselines=baselines,
        )
        algorithm = agnostic_fed_avg(problem, options)
        training = cohort_runtime.training(algorithm, PlainSum())
        state, _ = run_rounds(training, [[client]] * rounds)
        return np.asarray(state.algorithm.weights.trainable[0], np.float64)

    saddle = _smallest_worst_regret(lambda w: losses(w) - optima, np.eye(3))
    actual = trained(tuple(optima.tolist()), 400)
    regret = losses(actual) - optima
    assert regret.max() == pytest.approx((losses(saddle) - optima).max(), abs=1e-3)
    # Without baselines, only the noisiest domain is minimised.
    assert np.argmax(losses(saddle)) == 0
    assert (losses(trained(None, 200)) - optima).max() > 1.5 * regret.max()
