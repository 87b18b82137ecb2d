"""FedBoost on point masses: fewer rounds with larger steps, and the order of figure 3."""

import numpy as np
import pytest

from benchmarks.fedboost_synthetic.measure import excess, main, point_masses, power_law, trained
from tff_agnostic.boosting.alpha import BoostOptions, alpha_steps

_Q, _ROUNDS, _ETA = 100, 2000, 0.01


def _excess(sampling: str, estimator: str) -> float:
    options = BoostOptions(
        predictor_sampling=sampling,
        budget=None if sampling == "none" else 32,
        predictor_draw="independent",
        gradient_estimator=estimator,
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
