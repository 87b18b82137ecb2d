"""FedBoost on point masses, the order of figure 3 with fewer rounds; and beside exact optima."""

import itertools

import numpy as np
import pytest

from benchmarks.fedboost_synthetic.measure import excess, main, point_masses, power_law, trained
from benchmarks.fedboost_synthetic.oracle import excess_after, oracle
from tff_agnostic.boosting.alpha import BoostOptions, alpha_steps

_Q, _ROUNDS, _ETA = 100, 2000, 0.01


def _excess(sampling: str, estimator: str) -> float:
    options = BoostOptions(
        predictor_sampling=sampling,
        budget=None if sampling == "none" else 32,
        predictor_draw="independent",
        gradient_estimator=estimator,
        uniform_share=0.0,
        alpha_learning_rate=_ETA,
    )
    lambda_ = power_law(_Q)
    return excess(trained(alpha_steps(point_masses(_Q), options, 0), lambda_, _ROUNDS), lambda_)


def test_steps_of_the_whole_ensemble_are_those_of_numpy():
    lambda_ = power_law(_Q)
    alpha = np.full(_Q, 1 / _Q)
    for _ in range(_ROUNDS):
        alpha = alpha * np.exp(-_ETA * 2 * (alpha - lambda_))
        alpha /= alpha.sum()
    assert _excess("none", "masked") == pytest.approx(excess(alpha, lambda_), rel=1e-3)


def test_the_order_of_figure_3_is_that_of_the_masked_gradient():
    start = excess(np.full(_Q, 1 / _Q), power_law(_Q))
    assert start == pytest.approx(0.05076, abs=5e-6)
    full, weighted, uniform = (_excess(s, "masked") for s in ("none", "weighted", "uniform"))
    assert full < weighted < uniform < start
    # Without its bias, sampling costs next to nothing.
    assert _excess("weighted", "unbiased") == pytest.approx(full, rel=0.1)


def test_the_command_prints_a_table(capsys):
    main(["--predictors=6", "--estimators=divided", "--budgets", "2", "--rounds=3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["estimator", "full", "uniform", "2", "weighted", "2"]
    assert [line.split()[0] for line in lines[3:]] == ["divided"]


def test_the_oracles_least_squared_loss_is_that_of_the_best_support():
    """Of each set of predictors the least loss of weights that sum to 1, where none is negative."""
    problem = oracle("squared", 1)
    excesses = []
    for mask in itertools.product([False, True], repeat=len(problem.predictors)):
        h = problem.predictors[list(mask)]
        q = len(h)
        if q:
            matrix = np.block([[h @ h.T, np.ones((q, 1))], [np.ones((1, q)), np.zeros((1, 1))]])
            weights = np.linalg.solve(matrix, np.append(h @ problem.shares, 1.0))[:q]
            if weights.min() >= 0:
                alpha = np.zeros(len(mask))
                alpha[list(mask)] = weights
                excesses.append(problem.excess(alpha))
    assert min(excesses) == pytest.approx(0, abs=1e-9)


def test_the_oracles_least_log_loss_is_that_of_exponentiated_gradients():
    problem = oracle("log", 1)
    h, shares = problem.predictors, problem.shares
    alpha = np.full(len(h), 1 / len(h))
    for _ in range(20_000):
        gradient = -h @ (shares / (alpha @ h))
        alpha = alpha * np.exp(-0.3 * gradient)
        alpha /= alpha.sum()
    # The gap of a convex function on the simplex bounds what is above the least.
    gap = alpha @ gradient - gradient.min()
    assert gap < 1e-5
    assert -1e-9 < problem.excess(alpha) <= gap


def test_the_defaults_end_nearer_to_the_optimum_than_the_figure_which_ends_above_its_start():
    problem = oracle("log", 1)
    start = problem.excess(np.full(len(problem.predictors), 1 / len(problem.predictors)))
    figure = {
        "gradient_estimator": "masked",
        "predictor_draw": "independent",
        "uniform_share": 0.0,
    }
    ends = [excess_after(problem, settings, 0.1, 400, 1) for settings in (figure, {})]
    assert ends[1] < start / 4 < start < ends[0]
