"""AFLBoost with baselines minimises the worst Bregman divergence (Hamer et al. 2020, section 3)."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.algorithms.references.fed_boost import capacity
from tests.support.algorithms import random_ensemble, unigram_ensemble
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression
from tff_agnostic.program.runs.baselines import trivial_loss

_SIZE = 40
# Counts of four words in four domains. The first domain's words are noise with maximum entropy.
_COUNTS = np.array([[10, 10, 10, 10], [36, 2, 1, 1], [14, 10, 8, 8], [2, 1, 35, 2]])
_DISTRIBUTIONS = _COUNTS / _SIZE


def _divergences(loss: str, h: np.ndarray) -> np.ndarray:
    """Returns B_F(D_k || h) of each domain, where F is the negative entropy or F = x^2."""
    if loss == "log":
        return np.sum(_DISTRIBUTIONS * np.log(_DISTRIBUTIONS / h), axis=1)
    return np.sum((_DISTRIBUTIONS - h) ** 2, axis=1)


def _baselines(loss: str) -> tuple[float, ...]:
    """Returns L_k(h) - B_F(D_k || h), which is the entropy or variance of D_k for any h."""
    if loss == "log":
        return tuple((-np.sum(_DISTRIBUTIONS * np.log(_DISTRIBUTIONS), axis=1)).tolist())
    return tuple((1 - np.sum(_DISTRIBUTIONS**2, axis=1)).tolist())


def _optimum(loss: str) -> float:
    """Returns min over alpha of max_k B_F(D_k || sum_l alpha_l D_l), by a solver."""
    p = len(_COUNTS)
    result = minimize(
        lambda v: v[p],
        np.append(np.full(p, 1 / p), 1.0),
        method="SLSQP",
        bounds=[(0, 1)] * p + [(None, None)],
        constraints=[
            {"type": "eq", "fun": lambda v: v[:p].sum() - 1},
            {"type": "ineq", "fun": lambda v: v[p] - _divergences(loss, v[:p] @ _DISTRIBUTIONS)},
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert result.success
    return float(result.fun)


def _trained(runtime: Any, loss: str, **settings: Any) -> np.ndarray:
    """Returns the mean alpha^A of rounds with all examples and all predictors."""
    p = len(_COUNTS)
    spec = ALGORITHMS["afl_boost"]
    options = make_options(
        spec.options,
        predictor_sampling="none",
        alpha_learning_rate=0.3,
        lambda_learning_rate=1.0,
        loss_estimate="ratio",
        **settings,
    )
    names = tuple(map(str, range(p)))
    problem = Problem(unigram_ensemble(_DISTRIBUTIONS, loss), names, 7, (float(_SIZE),) * p)
    training = runtime.training(spec.build(problem, options), PlainSum())
    words = np.concatenate([np.repeat(np.arange(len(row)), row) for row in _COUNTS])
    client = {
        "x": words.astype(np.int32),
        "y": words.astype(np.int32),
        "domain_id": np.repeat(np.arange(p), _SIZE).astype(np.int32),
    }
    state, _ = run_rounds(training, [[client]] * 1000)
    return np.asarray(state.algorithm.mean_alpha, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["log", "squared"])
def test_afl_boost_reaches_the_information_radius(cohort_runtime, loss):
    optimum = _optimum(loss)
    if loss == "log":
        assert capacity(_DISTRIBUTIONS)[1] == pytest.approx(optimum, abs=1e-4)

    def worst(**settings: Any) -> float:
        alpha = _trained(cohort_runtime, loss, **settings)
        return float(_divergences(loss, alpha @ _DISTRIBUTIONS).max())

    assert worst(lambda_baselines=_baselines(loss)) == pytest.approx(optimum, abs=1e-3)
    if loss == "log":
        # Without baselines, the domain with the largest entropy dominates.
        assert worst() > optimum + 0.05


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_trivial_baselines_equal_entropy_or_variance(loss: str) -> None:
    words = [np.repeat(np.arange(len(row)), row).astype(np.int32) for row in _COUNTS]
    models = [
        unigram_ensemble(_DISTRIBUTIONS, loss),
        random_ensemble(logistic_regression(2, len(_COUNTS)), loss=loss),
    ]
    features = [np.zeros([_SIZE, 2], np.float32)] * len(_COUNTS)
    for model, inputs in ((models[0], words), (models[1], features)):
        actual = [trivial_loss(model, [{"x": x, "y": y}]) for x, y in zip(inputs, words)]
        np.testing.assert_allclose(actual, _baselines(loss), rtol=1e-6)
