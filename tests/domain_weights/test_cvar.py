"""CVaR over domains: against its reference, a linear program, and cases worked by hand."""

import numpy as np
import pytest
from scipy.optimize import linprog

from tests import golden
from tests.algorithms.references.delta_fl import cvar_lambda
from tests.options import make_options
from tff_agnostic.algorithms import AgnosticFedAvgOptions
from tff_agnostic.algorithms.stochastic_afl import StochasticAflOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights.ascent import (
    Cvar,
    LambdaAscent,
    LambdaPlayer,
    ProjectedGradient,
    cvar_step,
    lambda_ascent,
)
from tff_agnostic.domain_weights.ball import BallSet

_LEVELS = (1e-30, 0.01, 0.1, 0.29, 0.5, 0.8, 1.0)
_ALPHA = (0.1, 0.2, 0.3, 0.4)


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _problems(num: int):
    """Yields losses with ties, training mixtures, levels, and some lambda before."""
    rng = np.random.default_rng(3)
    for k in range(num):
        p = int(rng.integers(1, 9))
        # A few values only, negative ones too; some shares are of a rare domain, or equal.
        losses = rng.choice(rng.normal(size=4), p).astype(np.float32)
        counts = rng.choice([1.0, 1.0, 5.0, 300.0, 1e5], p)
        lambda_ = rng.dirichlet(np.ones(p)).astype(np.float32)
        yield losses, counts / counts.sum(), _LEVELS[k % len(_LEVELS)], lambda_


def _assert_on_simplex(lambda_) -> None:
    assert np.all(np.isfinite(lambda_))
    assert np.all(np.asarray(lambda_) >= 0)
    np.testing.assert_allclose(np.sum(lambda_), 1.0, rtol=1e-6)


def _steps(level: float = 0.5, rate: float = 1.0, mixture=_ALPHA, **values) -> LambdaAscent:
    player = LambdaPlayer(update=Cvar(level, rate), **values)
    return lambda_ascent(player, "abcdefgh"[: len(mixture)], mixture)


@pytest.mark.slow
def test_it_is_the_reference():
    for losses, alpha, theta, lambda_ in _problems(150):
        # The reference has an absolute tolerance in theta.
        theta = max(theta, 1e-6)
        found = cvar_step(lambda_, losses, alpha, theta)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, cvar_lambda(losses, alpha, theta), rtol=1e-5, atol=1e-7)


def test_no_mixture_of_the_level_is_worse():
    for losses, alpha, theta, lambda_ in _problems(60):
        found = np.asarray(cvar_step(lambda_, losses, alpha, theta), np.float64)
        bounds = [(0, min(a / theta, 1.0)) for a in alpha]
        best = linprog(-losses, A_eq=[np.ones(len(alpha))], b_eq=[1.0], bounds=bounds)
        assert found @ losses == pytest.approx(-best.fun, abs=1e-5)
        assert np.all(found <= alpha / theta * (1 + 1e-6))
        _assert_on_simplex(found)


@pytest.mark.slow
def test_with_weights_that_stay_it_is_the_worst_mixture_that_has_them():
    rng = np.random.default_rng(4)
    num_feasible = 0
    for losses, alpha, theta, lambda_ in _problems(150):
        is_free = rng.random(len(alpha)) < 0.6
        found = np.asarray(cvar_step(lambda_, losses, alpha, theta, is_free=is_free))
        np.testing.assert_array_equal(found[~is_free], lambda_[~is_free])
        _assert_on_simplex(found)
        rest = lambda_[is_free].sum(dtype=np.float64)
        if not is_free.any():
            continue
        free = alpha[is_free]
        if free.sum() / theta < rest:
            np.testing.assert_allclose(found[is_free], rest * free / free.sum(), rtol=1e-5)
            continue
        num_feasible += 1
        bounds = [(0, min(a / theta, 1.0)) for a in free]
        best = linprog(-losses[is_free], A_eq=[np.ones(len(free))], b_eq=[rest], bounds=bounds)
        assert found[is_free] @ losses[is_free] == pytest.approx(-best.fun, abs=1e-5)
    assert num_feasible > 30


def test_a_rate_goes_a_part_of_the_way():
    lambda_, losses = _f32(0.4, 0.3, 0.2, 0.1), _f32(4, 3, 2, 1)
    worst = np.asarray(cvar_step(lambda_, losses, _ALPHA, 0.5))
    found = cvar_step(lambda_, losses, _ALPHA, 0.5, rate=0.25)
    np.testing.assert_allclose(found, 0.75 * lambda_ + 0.25 * worst, rtol=1e-6)


# As an update


def test_it_starts_at_the_training_mixture_or_where_it_is_told_to():
    np.testing.assert_allclose(_steps(mixture=(1, 2, 3, 4)).initial, _ALPHA)
    given = (0.7, 0.1, 0.1, 0.1)
    np.testing.assert_allclose(_steps(initial=given).initial, given)


def test_the_loss_of_an_absent_domain_is_0():
    steps = _steps(absent="zero")
    lambda_ = steps.next(_f32(*_ALPHA), _f32(2, 1, 3, 0), _f32(5, 5, 5, 0))
    np.testing.assert_allclose(lambda_, [0.2, 0.2, 0.6, 0.0], atol=1e-7)
    # Unless it has to share: two thirds of the training mixture are in it.
    steps = _steps(mixture=(1, 1, 4), absent="zero")
    lambda_ = steps.next(_f32(0, 0, 1), _f32(2, 1, 0), _f32(5, 5, 0))
    np.testing.assert_allclose(lambda_, [1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_an_absent_domain_that_is_frozen_keeps_its_weight():
    steps = _steps(absent="freeze")
    lambda_ = steps.next(_f32(0.2, 0.2, 0.1, 0.5), _f32(2, 1, 3, 0), _f32(5, 5, 5, 0))
    np.testing.assert_allclose(lambda_, [0.0, 0.0, 0.5, 0.5], atol=1e-7)
    # What the last one leaves is more than the level allows the others, who share it by alpha.
    lambda_ = steps.next(_f32(1, 0, 0, 0), _f32(2, 1, 0, 0), _f32(5, 5, 0, 0))
    np.testing.assert_allclose(lambda_, [1 / 3, 2 / 3, 0.0, 0.0], rtol=1e-6)


@pytest.mark.nightly_cases("0.3-True", "1.0-False", "1.0-True")
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_it_stays_on_the_simplex_whoever_is_there(freeze, rate):
    rng = np.random.default_rng(5)
    steps = _steps(0.3, rate, absent="freeze" if freeze else "zero")
    lambda_ = _f32(*steps.initial)
    for _ in range(100):
        counts = (rng.integers(0, 3, 4) * rng.integers(0, 2, 4)).astype(np.float32)
        losses = np.where(counts > 0, rng.normal(size=4), 0).astype(np.float32)
        before, lambda_ = lambda_, np.asarray(steps.next(lambda_, losses, counts))
        _assert_on_simplex(lambda_)
        kept = counts == 0 if freeze or not counts.any() else np.zeros(4, bool)
        np.testing.assert_array_equal(lambda_[kept], before[kept])


def test_a_domain_that_is_trained_on_and_not_measured_keeps_its_weight():
    counts, measured = _f32(5, 5, 5, 0), _f32(2, 0, 2, 0)
    steps = _steps(absent="zero")
    lambda_ = steps.next(_f32(0.2, 0.3, 0.1, 0.4), _f32(2, 0, 3, 0), counts, measured)
    np.testing.assert_allclose(lambda_, [0.1, 0.3, 0.6, 0.0], atol=1e-7)


# What does not go with it


@golden.values
def test_rejects_cvar_out_of_range(case):
    return golden.refusal(make_options, AgnosticFedAvgOptions, lambda_update=case)


def test_rejects_cvar_in_other_sets():
    with pytest.raises(UserError, match=r"^set: expected simplex with the update cvar"):
        _steps(set=BallSet())


def test_stochastic_afl_rejects_cvar():
    with pytest.raises(UserError, match=r"^update: expected a step along estimates of the losses"):
        StochasticAflOptions(lambda_=LambdaPlayer(update=Cvar()))
    StochasticAflOptions(lambda_=LambdaPlayer(update=ProjectedGradient()))
