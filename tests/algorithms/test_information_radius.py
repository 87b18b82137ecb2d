"""AFLBoost with baselines minimises the worst Bregman divergence (Hamer et al. 2020, section 3)."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.algorithms.cases import random_ensemble
from tests.algorithms.references.fed_boost import capacity
from tests.computations.harness import run_rounds
from tests.options import make_options
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.program.runs.baselines import trivial_loss

_SIZE = 40
# Words of each domain, 40 in all. In each case a noisy domain has the largest entropy.
_CASES = {
    "three domains": [[34, 2, 2, 2], [2, 30, 4, 4], [9, 11, 10, 10]],
    "four domains": [[10, 10, 10, 10], [36, 2, 1, 1], [14, 10, 8, 8], [2, 1, 35, 2]],
}


def _divergences(loss: str, distributions: np.ndarray, h: np.ndarray) -> np.ndarray:
    """B_F(D_k || h) for F the negative entropy and F = x^2, the paper's examples."""
    if loss == "log":
        return np.sum(distributions * np.log(distributions / h), axis=1)
    return np.sum((distributions - h) ** 2, axis=1)


def _baselines(loss: str, distributions: np.ndarray) -> tuple[float, ...]:
    """L_k(h) - B_F(D_k || h) for any h: the entropy or the variance of D_k."""
    if loss == "log":
        return tuple((-np.sum(distributions * np.log(distributions), axis=1)).tolist())
    return tuple((1 - np.sum(distributions**2, axis=1)).tolist())


def _optimum(loss: str, distributions: np.ndarray) -> float:
    """min over alpha of max_k B_F(D_k || sum_l alpha_l D_l), by a solver."""
    p = len(distributions)
    result = minimize(
        lambda v: v[p],
        np.append(np.full(p, 1 / p), 1.0),
        method="SLSQP",
        bounds=[(0, 1)] * p + [(None, None)],
        constraints=[
            {"type": "eq", "fun": lambda v: v[:p].sum() - 1},
            {
                "type": "ineq",
                "fun": lambda v: v[p] - _divergences(loss, distributions, v[:p] @ distributions),
            },
        ],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert result.success
    return float(result.fun)


def _ensemble(distributions: np.ndarray, loss: str) -> EnsembleModel:
    scores = [ModelWeights([np.log(row).astype(np.float32)], []) for row in distributions]
    return ensemble(unigram_model(distributions.shape[1]), scores, loss=loss)


def _trained(runtime: Any, loss: str, counts: np.ndarray, **settings: Any) -> np.ndarray:
    """Returns alpha^A, with all examples and all predictors in each round."""
    distributions = counts / counts.sum(axis=1, keepdims=True)
    p = len(counts)
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
    problem = Problem(_ensemble(distributions, loss), names, 7, (float(_SIZE),) * p)
    training = runtime.training(spec.build(problem, options), PlainSum())
    words = np.concatenate([np.repeat(np.arange(len(row)), row) for row in counts])
    client = {
        "x": words.astype(np.int32),
        "y": words.astype(np.int32),
        "domain_id": np.repeat(np.arange(p), _SIZE).astype(np.int32),
    }
    state, _ = run_rounds(training, [[client]] * 1000)
    return np.asarray(state.algorithm.mean_alpha, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "loss"),
    [("three domains", "log"), ("four domains", "log"), ("four domains", "squared")],
)
def test_reaches_the_information_radius(cohort_runtime, case, loss):
    counts = np.array(_CASES[case])
    distributions = counts / _SIZE
    optimum = _optimum(loss, distributions)
    if loss == "log":
        assert capacity(distributions)[1] == pytest.approx(optimum, abs=1e-4)

    def worst(**settings: Any) -> float:
        alpha = _trained(cohort_runtime, loss, counts, **settings)
        return float(_divergences(loss, distributions, alpha @ distributions).max())

    baselines = _baselines(loss, distributions)
    assert worst(lambda_baselines=baselines) == pytest.approx(optimum, abs=1e-3)
    if case == "four domains" and loss == "log":
        # Without baselines the domain of the largest entropy is served.
        assert worst() > optimum + 0.05


@pytest.mark.parametrize("loss", ["log", "squared"])
def test_trivial_baselines_equal_entropy_and_variance(loss: str) -> None:
    counts = np.array(_CASES["three domains"])
    words = [np.repeat(np.arange(len(row)), row).astype(np.int32) for row in counts]
    distributions = counts / _SIZE
    models = [
        _ensemble(distributions, loss),
        random_ensemble(logistic_regression(2, counts.shape[1]), loss=loss),
    ]
    features = [np.zeros([_SIZE, 2], np.float32)] * 3
    for model, inputs in ((models[0], words), (models[1], features)):
        actual = [trivial_loss(model, [{"x": x, "y": y}]) for x, y in zip(inputs, words)]
        np.testing.assert_allclose(actual, _baselines(loss, distributions), rtol=1e-6)


def test_rejects_baselines_of_losses_that_are_not_means():
    with pytest.raises(UserError, match=r"^--loss_estimate: expected ratio with baselines"):
        make_options(
            ALGORITHMS["afl_boost"].options, lambda_baselines=(1.0, 2.0), loss_estimate="unbiased"
        )
