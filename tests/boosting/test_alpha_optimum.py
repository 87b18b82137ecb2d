"""Steps of alpha without clients equal NumPy's and approach known optima.

Point masses are from figure 3 of Hamer et al. 2020: each predictor is certain of one outcome. The
outcomes follow a power law, which is therefore the optimal alpha.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import minimize

from tests.support.options import make_options
from tff_agnostic.boosting.alpha import MIRROR_MAPS, AlphaSteps, BoostOptions
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES
from tff_agnostic.boosting.sampling import GRADIENT_ESTIMATORS
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_Q, _ROUNDS, _ETA = 100, 2000, 0.01
_POWER_LAW = 1 / np.arange(1, _Q + 1) / np.sum(1 / np.arange(1, _Q + 1))


def _mixture(predictors: np.ndarray, loss: str) -> EnsembleModel:
    with np.errstate(divide="ignore"):
        scores = np.log(np.asarray(predictors, np.float32))
    rows = [ModelWeights([row], []) for row in scores]
    return ensemble(unigram_model(predictors.shape[1]), rows, loss=loss)


def _trained(model: EnsembleModel, shares: np.ndarray, rounds: int, **settings: Any) -> np.ndarray:
    """Returns alpha after `rounds` rounds with all outcomes, weighted by their shares."""
    steps = AlphaSteps(model, make_options(BoostOptions, **settings), 0)
    weights, outcomes = tf.constant(shares, tf.float32), tf.range(len(shares))
    stacks = [tf.constant(stack) for stack in model.initial_weights.non_trainable]
    loss = MIXTURE_LOSSES[model.mixture_loss]
    estimator = GRADIENT_ESTIMATORS[steps.options.estimator(model)]

    def next_alpha(t: tf.Tensor, alpha: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        message = steps.broadcast(ModelWeights([alpha], stacks), tf.ones([1]), t)
        outputs = model.members.outputs(message.weights.non_trainable, outcomes)
        mixed = loss.at(outputs, message.weights.trainable[0], outcomes)
        estimates = estimator.estimate(mixed.gradients, outputs.squared_norms(), message.sent)
        gradient = tf.linalg.matvec(estimates, weights, transpose_a=True)
        return t + 1, steps.next(alpha, gradient, tf.constant(1.0), t)

    @tf.function
    def run() -> tf.Tensor:
        start = (tf.constant(0), tf.constant(model.initial_weights.trainable[0]))
        return tf.while_loop(lambda t, _: t < rounds, next_alpha, start)[1]

    return np.asarray(run(), np.float64)


def _excess_loss(sampling: str, estimator: str) -> float:
    """Returns the squared loss after training on point masses, minus the optimal loss."""
    alpha = _trained(
        _mixture(np.eye(_Q), "squared"),
        _POWER_LAW,
        _ROUNDS,
        predictor_sampling=sampling,
        budget=None if sampling == "none" else 32,
        predictor_draw="independent",
        gradient_estimator=estimator,
        uniform_share=0.0,
        alpha_learning_rate=_ETA,
    )
    return float(np.sum((alpha - _POWER_LAW) ** 2))


def test_whole_ensemble_steps_match_numpy():
    alpha = np.full(_Q, 1 / _Q)
    for _ in range(_ROUNDS):
        alpha = alpha * np.exp(-_ETA * 2 * (alpha - _POWER_LAW))
        alpha /= alpha.sum()
    expected = np.sum((alpha - _POWER_LAW) ** 2)
    assert _excess_loss("none", "masked") == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_masked_gradients_rank_samplings_as_in_figure_3():
    start = np.sum((1 / _Q - _POWER_LAW) ** 2)
    assert start == pytest.approx(0.05076, abs=5e-6)
    full, weighted, uniform = (_excess_loss(s, "masked") for s in ("none", "weighted", "uniform"))
    assert full < weighted < uniform < start
    # Sampling with an unbiased estimator is as good as using all predictors.
    assert _excess_loss("weighted", "unbiased") == pytest.approx(full, rel=0.1)


def test_default_estimator_ends_closer_than_papers_estimator():
    """Expectation maximisation converges to the optimum of the log loss."""
    rng = np.random.default_rng(1)
    predictors = rng.dirichlet(np.full(20, 0.4), 8) * 0.98 + 0.02 / 20
    mixture = np.append(rng.dirichlet(np.full(3, 2.0)), np.zeros(5))
    shares = 0.9 * mixture @ predictors + 0.1 * rng.dirichlet(np.ones(20))
    alpha = np.full(8, 1 / 8)
    for _ in range(20_000):
        alpha = alpha * (predictors @ (shares / (alpha @ predictors)))
    # The duality gap on the simplex bounds the distance to the optimal loss.
    gradient = -predictors @ (shares / (alpha @ predictors))
    assert alpha @ gradient - gradient.min() < 1e-6

    def excess(weights: np.ndarray) -> float:
        return float(shares @ np.log((alpha @ predictors) / (weights @ predictors)))

    figure = {"gradient_estimator": "masked", "predictor_draw": "independent", "uniform_share": 0.0}
    model = _mixture(predictors, "log")
    figures, default = (
        excess(_trained(model, shares, 400, budget=3, alpha_learning_rate=0.1, **settings))
        for settings in (figure, {})
    )
    start = excess(np.full(8, 1 / 8))
    assert default < start / 2 < start < figures


@pytest.mark.parametrize(("name", "factor"), [("squared", 1.0), ("euclidean", 0.5)])
def test_mirror_step_minimises_the_printed_objective(name, factor):
    """Figure 1, line 5, is argmin_x eta <delta, x> + B_F(x || alpha), with F = factor |x|^2."""
    rng = np.random.default_rng(3)
    alpha, delta, eta = rng.dirichlet(np.ones(5)), rng.normal(size=5), 0.1
    best = minimize(
        lambda x: eta * delta @ x + factor * np.sum((x - alpha) ** 2),
        alpha,
        method="SLSQP",
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-14},
    )
    step = MIRROR_MAPS[name](tf.constant(alpha, tf.float32), tf.constant(-delta, tf.float32), eta)
    np.testing.assert_allclose(step, best.x, atol=1e-6)
