"""CVaR over domains equals its reference, a linear program's optimum, and values by hand."""

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.algorithms.references.delta_fl import cvar_lambda
from tests.support.solvers import assert_on_simplex
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights.ascent import (
    Cvar,
    LambdaAscent,
    LambdaPlayer,
    cvar_step,
    lambda_ascent,
)
from tff_agnostic.domain_weights.ball import BallSet

_LEVELS = (1e-30, 0.01, 0.1, 0.29, 0.5, 0.8, 1.0)
_ALPHA = (0.1, 0.2, 0.3, 0.4)


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _problems(num: int):
    """Yields losses with ties, training mixtures, levels, and previous values of lambda."""
    rng = np.random.default_rng(3)
    for k in range(num):
        p = int(rng.integers(1, 9))
        # Losses have few distinct values, some negative. Some domains are rare, others equal.
        losses = rng.choice(rng.normal(size=4), p).astype(np.float32)
        counts = rng.choice([1.0, 1.0, 5.0, 300.0, 1e5], p)
        lambda_ = rng.dirichlet(np.ones(p)).astype(np.float32)
        yield losses, counts / counts.sum(), _LEVELS[k % len(_LEVELS)], lambda_


def _steps(mixture=_ALPHA, **values) -> LambdaAscent:
    player = LambdaPlayer(update=Cvar(0.5, 1.0), **values)
    return lambda_ascent(player, "abcdefgh"[: len(mixture)], mixture)


def test_step_matches_reference():
    for losses, alpha, theta, lambda_ in _problems(40):
        # The reference compares fractions with an absolute tolerance, so theta must not be tiny.
        theta = max(theta, 1e-6)
        mixture = cvar_step(lambda_, losses, alpha, theta)
        assert mixture.dtype == np.float32
        np.testing.assert_allclose(mixture, cvar_lambda(losses, alpha, theta), rtol=1e-5, atol=1e-7)
        assert_on_simplex(mixture)


@pytest.mark.slow
def test_frozen_step_gives_other_domains_worst_mixture():
    """A linear program finds the worst mixture of the domains that are not frozen."""
    rng = np.random.default_rng(4)
    num_feasible = 0
    for losses, alpha, theta, lambda_ in _problems(100):
        is_free = rng.random(len(alpha)) < 0.6
        actual = np.asarray(cvar_step(lambda_, losses, alpha, theta, is_free=is_free))
        np.testing.assert_array_equal(actual[~is_free], lambda_[~is_free])
        assert_on_simplex(actual)
        rest = lambda_[is_free].sum(dtype=np.float64)
        if not is_free.any():
            continue
        free = alpha[is_free]
        if free.sum() / theta < rest:
            np.testing.assert_allclose(actual[is_free], rest * free / free.sum(), rtol=1e-5)
            continue
        num_feasible += 1
        bounds = [(0, min(a / theta, 1.0)) for a in free]
        best = linprog(-losses[is_free], A_eq=[np.ones(len(free))], b_eq=[rest], bounds=bounds)
        assert actual[is_free] @ losses[is_free] == pytest.approx(-best.fun, abs=1e-5)
    assert num_feasible > 20


def test_rate_interpolates_towards_worst_mixture():
    lambda_, losses = _f32(0.4, 0.3, 0.2, 0.1), _f32(4, 3, 2, 1)
    worst = np.asarray(cvar_step(lambda_, losses, _ALPHA, 0.5))
    actual = cvar_step(lambda_, losses, _ALPHA, 0.5, rate=0.25)
    np.testing.assert_allclose(actual, 0.75 * lambda_ + 0.25 * worst, rtol=1e-6)


def test_update_starts_at_training_or_given_mixture():
    np.testing.assert_allclose(_steps(mixture=(1, 2, 3, 4)).initial, _ALPHA)
    given = (0.7, 0.1, 0.1, 0.1)
    np.testing.assert_allclose(_steps(initial=given).initial, given)


def test_absent_domain_has_loss_0():
    steps = _steps(absent="zero")
    lambda_ = steps.next(_f32(*_ALPHA), _f32(2, 1, 3, 0), _f32(5, 5, 5, 0))
    np.testing.assert_allclose(lambda_, [0.2, 0.2, 0.6, 0.0], atol=1e-7)
    # The present domains are at their bounds alpha_i / theta; the absent domain gets the rest.
    steps = _steps(mixture=(1, 1, 4), absent="zero")
    lambda_ = steps.next(_f32(0, 0, 1), _f32(2, 1, 0), _f32(5, 5, 0))
    np.testing.assert_allclose(lambda_, [1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_frozen_absent_domain_keeps_its_weight():
    steps = _steps(absent="freeze")
    lambda_ = steps.next(_f32(0.2, 0.2, 0.1, 0.5), _f32(2, 1, 3, 0), _f32(5, 5, 5, 0))
    np.testing.assert_allclose(lambda_, [0.0, 0.0, 0.5, 0.5], atol=1e-7)
    # The free weight exceeds the two domains' bounds, so they share it in proportion to alpha.
    lambda_ = steps.next(_f32(1, 0, 0, 0), _f32(2, 1, 0, 0), _f32(5, 5, 0, 0))
    np.testing.assert_allclose(lambda_, [1 / 3, 2 / 3, 0.0, 0.0], rtol=1e-6)


def test_rejects_cvar_in_other_sets():
    with pytest.raises(UserError, match=r"^set: expected simplex with the update cvar"):
        _steps(set=BallSet())
