"""The golden values of FedBoost and AFLBoost, of the reference that others are compared with."""

import numpy as np
import pytest
from scipy import optimize

from tests.algorithms.references import fed_boost as reference

_H = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
_ALPHA = np.array([0.5, 0.3, 0.2])
_EXAMPLE = reference.Example(_H, 0)
_TRUE = {"squared": (-0.62, 0.532, 0.16), "log": (-1.666667, -0.238095, -0.476190)}


def _expected(estimator: str, sampling: str, loss: str = "squared") -> np.ndarray:
    gamma = reference.gammas(sampling, _ALPHA, 2)
    return reference.expectation(
        gamma, lambda m: reference.estimate(estimator, loss, _ALPHA, gamma, m, _EXAMPLE)
    )


def test_weighted_sampling_is_equation_8():
    np.testing.assert_allclose(reference.gammas("weighted", _ALPHA, 2), [1, 0.6, 0.4])
    np.testing.assert_allclose(reference.gammas("uniform", _ALPHA, 2), [2 / 3] * 3)


@pytest.mark.parametrize("loss", ["squared", "log"])
def test_true_gradients(loss):
    gradient = reference.gradient_at(loss, _ALPHA, _EXAMPLE)
    np.testing.assert_allclose(gradient, _TRUE[loss], atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "sampling", "expected"),
    [
        ("masked", "weighted", (-0.62, 0.4776, 0.1696)),
        ("divided", "weighted", (-0.62, 0.796, 0.424)),
        ("unbiased", "weighted", (-0.62, 0.532, 0.16)),
        ("masked", "uniform", (-0.2333, 0.4867, 0.1653)),
        ("divided", "uniform", (-0.35, 0.73, 0.248)),
        ("unbiased", "uniform", (-0.62, 0.532, 0.16)),
    ],
)
def test_expectations_over_all_masks(estimator, sampling, expected):
    np.testing.assert_allclose(_expected(estimator, sampling), expected, atol=5e-5)


def test_all_coordinates_are_unbiased_for_the_squared_loss():
    # With the empty mask too, of which FedBoost makes no step: its gradient is that at 0.
    gamma = reference.gammas("uniform", _ALPHA, 2)
    found = reference.expectation(
        gamma, lambda m: reference.gradient_at("squared", m * _ALPHA / gamma, _EXAMPLE)
    )
    np.testing.assert_allclose(found, _TRUE["squared"], atol=1e-12)


def test_the_divided_log_loss_is_biased_as_computed():
    expected = (-1.694889, -0.23, -0.417778)
    np.testing.assert_allclose(_expected("divided", "weighted", "log"), expected, atol=1e-6)


def test_the_centred_gradient_has_mean_0_under_alpha():
    gradient = 1 + reference.gradient_at("log", _ALPHA, _EXAMPLE)
    assert abs(_ALPHA @ gradient) < 1e-12


def test_one_step_of_either_mirror_map():
    gradient = np.array(_TRUE["squared"])
    eg = reference.entropy_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(eg, (0.621849, 0.209741, 0.168411), atol=1e-6)
    euclid = reference.euclidean_step(_ALPHA, gradient, 0.5)
    np.testing.assert_allclose(euclid, (0.822, 0.046, 0.132), atol=1e-6)


def test_agnostic_optima():
    lambda_, value = reference.capacity(_H)
    np.testing.assert_allclose(lambda_, (0.331169, 0.382308, 0.286523), atol=1e-5)
    np.testing.assert_allclose(lambda_ @ _H, (0.327354, 0.429385, 0.243262), atol=1e-5)
    assert abs(value - 0.290323) < 1e-6
    # min over the simplex of the largest cross-entropy, as a smooth program with a bound t
    solved = optimize.minimize(
        lambda v: v[-1],
        [*[1 / 3] * 3, 2.0],
        constraints=[
            {"type": "eq", "fun": lambda v: v[:3].sum() - 1},
            {"type": "ineq", "fun": lambda v: v[-1] + _H @ np.log(v[:3] @ _H)},
        ],
        bounds=[(0, 1)] * 3 + [(None, None)],
    )
    np.testing.assert_allclose(solved.x, (0.311111, 0.222222, 0.466667, 1.098612), atol=1e-4)


def test_own_distributions_as_predictors_are_weighed_by_their_examples():
    rng = np.random.default_rng(0)
    words = [rng.choice(5, size=n, p=rng.dirichlet(np.ones(5))) for n in (7, 20, 3)]
    h = np.array([np.bincount(w, minlength=5) / len(w) for w in words])
    cohort = [[reference.Example(h, int(y)) for y in client] for client in words]
    best = np.array([7, 20, 3]) / 30
    alpha, gamma = np.full(3, 1 / 3), np.ones(3)
    for _ in range(600):
        alpha = reference.fed_boost_round(
            alpha, cohort, gamma, np.ones(3), "log", "masked", "entropy", 1.0
        )
    found, least = (reference.mean_loss("log", a, cohort) for a in (alpha, best))
    assert least <= found < least + 1e-4
