"""Samples of predictors have their probabilities, and gradient estimates equal the reference."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.references import fed_boost as reference
from tests.support.options import make_options
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import BoostOptions
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES, SharedOutputs
from tff_agnostic.boosting.sampling import (
    GRADIENT_ESTIMATORS,
    PREDICTOR_DRAWS,
    PREDICTOR_SAMPLINGS,
    SentPredictors,
)

_H = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], np.float32)
_ALPHA = np.array([0.5, 0.3, 0.2], np.float32)
_DRAWS = 6000


def _gamma(sampling: str, alpha: Any, budget: int, uniform_share: float = 0.0) -> np.ndarray:
    actual = PREDICTOR_SAMPLINGS[sampling](tf.constant(alpha), budget, uniform_share)
    return np.asarray(actual)


def _estimated(estimator: str, loss: str, gamma: np.ndarray, mask: np.ndarray) -> np.ndarray:
    if not mask.any():
        return np.zeros(3)
    outputs = SharedOutputs(tf.constant(_H.T))
    actual = MIXTURE_LOSSES[loss].at(
        outputs, tf.constant((mask * _ALPHA / gamma).astype(np.float32)), tf.constant([0])
    )
    sent = SentPredictors(*(tf.constant(v.astype(np.float32)) for v in (_ALPHA, gamma, mask)))
    estimate = GRADIENT_ESTIMATORS[estimator].estimate
    return np.asarray(estimate(actual.gradients, outputs.squared_norms(), sent))[0]


@pytest.mark.parametrize("sampling", ["none", "uniform", "weighted"])
@pytest.mark.parametrize(
    ("estimator", "loss"),
    [(e, x) for e, s in GRADIENT_ESTIMATORS.items() for x in MIXTURE_LOSSES if s.loss in (None, x)],
)
def test_every_mask_gives_the_reference_estimate(estimator, loss, sampling):
    gamma = _gamma(sampling, _ALPHA, 2)
    example = reference.Example(_H, 0)
    for mask in reference.masks(3):
        expected = reference.estimate(estimator, loss, _ALPHA, gamma, mask, example)
        actual = _estimated(estimator, loss, gamma, mask)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("budget", "uniform_share"), [(1, 0.0), (5, 0.0), (2, 0.1)])
def test_gammas_match_equation_8_and_uniform_share(budget, uniform_share):
    alpha = np.array([0.6, 0.3, 0.1 - 2e-7, 1e-7, 1e-7], np.float32)
    for sampling in ("uniform", "weighted"):
        gamma = _gamma(sampling, alpha, budget, uniform_share)
        expected = reference.gammas(sampling, alpha, budget, uniform_share)
        np.testing.assert_allclose(gamma, expected, rtol=1e-6)
        assert gamma.sum() <= budget * (1 + 1e-6)
        assert np.all(gamma >= 0.999 * uniform_share * budget / 5)
    np.testing.assert_array_equal(_gamma("none", alpha, budget), np.ones(5))


@functools.cache
def _draws(draw: str, gamma: tuple[float, ...], budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sampled predictors, bool [draws, q], and messages' indices, int [draws, room]."""

    def draw_once(seed: tf.Tensor) -> Any:
        return tuple(PREDICTOR_DRAWS[draw](tf.constant(gamma), budget, seed))

    seeds = tf.constant(np.random.default_rng(2).integers(-(2**62), 2**62, size=_DRAWS))
    output = (tf.int32, tf.float32)
    run = tf.function(
        lambda s: tf.map_fn(draw_once, s, fn_output_signature=output), autograph=False
    )
    indices, sampled = run(seeds)
    chosen = np.zeros([_DRAWS, len(gamma)], bool)
    np.put_along_axis(chosen, np.asarray(indices), np.asarray(sampled) > 0, axis=1)
    return chosen, np.asarray(indices)


_GAMMA = (0.9, 0.4, 0.3, 0.25, 0.1, 0.05)


@pytest.mark.parametrize("draw", list(PREDICTOR_DRAWS))
def test_predictors_are_sampled_with_probability_gamma(draw):
    chosen, indices = _draws(draw, _GAMMA, 2)
    np.testing.assert_allclose(chosen.mean(axis=0), _GAMMA, atol=0.025)
    # Unsampled predictors fill the rest of the message, so no predictor is in it twice.
    assert all(len(set(row)) == indices.shape[1] for row in indices[:100].tolist())


def test_systematic_draw_size_equals_gammas_sum():
    chosen, indices = _draws("systematic", _GAMMA, 2)
    assert set(chosen.sum(axis=1)) == {2}
    assert indices.shape[1] == 2
    # If the sum is fractional, the size is the sum rounded down or up, at most C.
    sizes = _draws("systematic", (1.0, 0.5, 0.2), 2)[0].sum(axis=1)
    assert set(sizes) == {1, 2}
    np.testing.assert_allclose(sizes.mean(), 1.7, atol=0.025)


def test_large_systematic_draw_size_equals_budget():
    gamma = tf.fill([1000], np.float32(137 / 1000))
    for seed in range(10):
        drawn = PREDICTOR_DRAWS["systematic"](gamma, 137, tf.constant(seed, tf.int64))
        assert drawn.indices.shape == [137]
        assert float(tf.reduce_sum(drawn.is_sampled)) == 137


@pytest.mark.parametrize("budget", [1, 2])
def test_unbiased_estimator_has_documented_systematic_bias(budget):
    """With equal gammas, systematic draws are all sets of C predictors, equally probable."""
    q = 3
    gamma = np.full(q, budget / q)
    sets = [mask for mask in reference.masks(q) if mask.sum() == budget]
    actual = np.mean([_estimated("unbiased", "squared", gamma, mask) for mask in sets], axis=0)
    factor = (budget - 1) * q / (budget * (q - 1))
    in_common = _H @ _H.T * (1 - np.eye(q))
    gradient = reference.gradient_at("squared", _ALPHA, reference.Example(_H, 0))
    np.testing.assert_allclose(actual, gradient - 2 * (1 - factor) * in_common @ _ALPHA, atol=1e-5)


def test_systematic_draws_of_predictors_are_not_independent():
    assert [PREDICTOR_DRAWS["independent"].room(4, q) for q in (100, 6)] == [14, 6]
    gamma = (2 / 3,) * 3
    pairs = {
        draw: np.mean(np.all(_draws(draw, gamma, 2)[0][:, :2], axis=1)) for draw in PREDICTOR_DRAWS
    }
    # Systematic draws take two of three predictors, each pair with probability 1/3.
    np.testing.assert_allclose(pairs["systematic"], 1 / 3, atol=0.025)
    np.testing.assert_allclose(pairs["independent"], 4 / 9, atol=0.025)


def test_rejects_projections_without_uniform_share():
    with pytest.raises(UserError, match="--uniform_share: expected a positive share"):
        make_options(BoostOptions, mirror_map="euclidean", uniform_share=0.0)
    make_options(BoostOptions, mirror_map="euclidean")
    make_options(BoostOptions, mirror_map="euclidean", predictor_sampling="uniform")
