"""Updates of lambda equal values by hand, and keep weights valid over many rounds."""

import numpy as np
import pytest

from tests.support.solvers import assert_on_simplex
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights import ascent, project_to_simplex
from tff_agnostic.domain_weights.ascent import (
    Cvar,
    ExponentiatedGradient,
    Fixed,
    LambdaOptions,
    LambdaPlayer,
    ProjectedGradient,
    lambda_ascent,
)

_UPDATES = [ExponentiatedGradient(), ProjectedGradient(), Fixed(), Cvar()]


def _f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def _next(options, lambda_, losses, counts):
    return lambda_ascent(options, ["abc"[i] for i in range(len(lambda_))]).next(
        lambda_, losses, counts
    )


# --- Exponentiated gradient


@pytest.mark.parametrize(
    ("lambda_", "losses", "learning_rate", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], [10, 0, 5, 0], 0.1, [0.198931, 0.14636526, 0.36197326, 0.2927305]),
        ([0.2, 0.4, 0.1, 0.3], [1, 2, 3, 4], 0.5, [0.08078121, 0.26637138, 0.10979304, 0.54305437]),
        ([0.5, 0.3, 0.2], [1e6, 0.0, 0.0], 0.5, [1, 0, 0]),
        ([0.5, 0.3, 0.2], [3e38, 1e38, 0.0], 0.5, [1, 0, 0]),
        # If products overflow float32, the result is the limit.
        ([0.5, 0.3, 0.2], [1e3, 1e3, -5.0], 3e38, [0.625, 0.375, 0.0]),
        ([0.5, 0.3, 0.2], [3e38, 3e38, 1e38], 3e38, [0.625, 0.375, 0.0]),
    ],
)
def test_exponentiated_gradient_equals_known_values(lambda_, losses, learning_rate, expected):
    updated = ascent.exponentiated_gradient(_f32(*lambda_), _f32(*losses), learning_rate)
    assert_on_simplex(updated)
    np.testing.assert_allclose(updated, expected, rtol=2e-6, atol=1e-6)


def test_equal_huge_losses_keep_lambda():
    updated = ascent.exponentiated_gradient(_f32(0.5, 0.3, 0.2), _f32(1e5, 1e5, 1e5), 0.5)
    # A product of 50,000 in float32 has an error of up to 0.002.
    np.testing.assert_allclose(updated, [0.5, 0.3, 0.2], rtol=4e-3)


# --- Tests of the projection on the simplex


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([1.2, 1.3, 1.5], [0.2, 0.3, 0.5]),
        ([1.0, 0.8, 0.0], [0.6, 0.4, 0.0]),
        ([-1.0, -1.0, -1.0], [1 / 3, 1 / 3, 1 / 3]),
        ([0.0, 0.8, 1.0], [0.0, 0.4, 0.6]),
        ([7.0], [1.0]),
        ([-4e8, -4e8, -5e8], [0.5, 0.5, 0.0]),
        # The first two values are neighbours in float32.
        ([2.0**25, 2.0**25 + 4, 3e37, 3e37], [0.0, 0.0, 0.5, 0.5]),
    ],
)
def test_projection_to_simplex_equals_known_values(vector, expected):
    np.testing.assert_allclose(project_to_simplex(_f32(*vector)), expected, atol=1e-6)


def test_projected_gradient_steps_then_projects():
    updated = ascent.projected_gradient(_f32(0.5, 0.5), _f32(1.0, 0.0), 0.2)
    np.testing.assert_allclose(updated, [0.6, 0.4], rtol=1e-6)


# --- Absent domains


@pytest.mark.parametrize("update", _UPDATES, ids=str)
def test_round_without_examples_keeps_lambda(update):
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    lambda_ = _f32(0.1, 0.9)
    updated = _next(options, lambda_, _f32(0, 0), _f32(0, 0))
    np.testing.assert_array_equal(updated, lambda_)
    if isinstance(update, Fixed):
        np.testing.assert_array_equal(_next(options, lambda_, _f32(9, 0), _f32(1, 1)), lambda_)


def test_absent_domain_is_frozen_or_has_loss_0():
    options = LambdaPlayer(learning_rate=1.0, absent="zero")
    updated = _next(options, _f32(0.5, 0.5), _f32(0, np.log(3)), _f32(0, 2))
    np.testing.assert_allclose(updated, [0.25, 0.75], rtol=1e-6)
    by_default = LambdaOptions(LambdaPlayer(learning_rate=1.0)).lambda_
    losses = _f32(0, np.log(3), 0)
    updated = _next(by_default, _f32(0.5, 0.25, 0.25), losses, _f32(0, 2, 2))
    np.testing.assert_allclose(updated, [0.5, 0.375, 0.125], rtol=1e-6)


@pytest.mark.parametrize("update", _UPDATES, ids=str)
def test_frozen_domains_and_negative_losses_give_a_mixture(update):
    losses = (-500.0, -500.0, 0.0)
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    counts = _f32(*[1.0 if loss else 0.0 for loss in losses])
    updated = _next(options, _f32(0.2, 0.2, 0.6), _f32(*losses), counts)
    assert_on_simplex(updated)
    np.testing.assert_allclose(updated[2], 0.6, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.0, -100.0])
def test_projected_gradient_with_frozen_domains_ignores_common_constant(constant):
    options = LambdaPlayer(ProjectedGradient(), learning_rate=0.1, absent="freeze")
    losses = _f32(constant, constant + 0.1, 0.0)
    updated = _next(options, _f32(0.1, 0.1, 0.8), losses, _f32(1, 1, 0))
    # (0.095, 0.105) is the nearest point to (0.1, 0.11) whose sum is 0.2.
    np.testing.assert_allclose(updated, [0.095, 0.105, 0.8], atol=2e-6)


@pytest.mark.parametrize("update", _UPDATES[:2], ids=str)
@pytest.mark.parametrize(
    ("mixture", "lambda_", "losses", "counts"),
    [
        # The slope of chi2 in the first domain is -2 (0.5 - 0.0127) / 0.0127 = -76.7.
        ((0.0127, 0.9873), (0.5, 0.5), (1.0, 0.0), (3, 0)),
        ((0.2, 0.3, 0.5), (0.6, 0.3, 0.1), (1.0, 2.0, 0.0), (1, 1, 0)),
    ],
)
def test_chi2_update_with_frozen_domains_keeps_sum(update, mixture, lambda_, losses, counts):
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    names = ["abc"[i] for i in range(len(mixture))]
    steps = lambda_ascent(options, names, mixture, ascent.chi2(1.0))
    updated = np.asarray(steps.next(_f32(*lambda_), _f32(*losses), _f32(*counts)))
    assert_on_simplex(updated)
    np.testing.assert_allclose(updated[-1], lambda_[-1], rtol=1e-6)
    if len(mixture) == 3:
        # The present domains' slopes are 1 - 4 and 2 - 0, so the second domain gains.
        assert updated[1] > lambda_[1]


def test_pessimism_slope_is_the_negated_penalty_slope():
    lambda_, mixture = _f32(0.2, 0.3, 0.5), _f32(0.5, 0.25, 0.25)
    slope = ascent.chi2(0.3, ascent.PESSIMISM)(lambda_, mixture)
    np.testing.assert_allclose(slope, 0.6 * (lambda_ - mixture) / mixture, rtol=1e-6)
    np.testing.assert_allclose(ascent.chi2(0.3)(lambda_, mixture), -slope)


# --- Many rounds

_ROUNDS = 300
_TINY = np.finfo(np.float32).tiny


def _moved(options, lambda_, losses, counts, rounds):
    """Returns lambda after `rounds` rounds with the same losses and counts."""
    for _ in range(rounds):
        lambda_ = np.asarray(_next(options, lambda_, losses, counts))
        assert np.all(np.isfinite(lambda_))
    return lambda_


@pytest.mark.slow
def test_fallen_weight_stays_positive_and_recovers():
    """The weight falls by a factor of e per round; in float32 it would be 0 after 90 rounds."""
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    counts = _f32(5, 5, 0)
    fallen = _moved(options, _f32(0.4, 0.4, 0.2), _f32(0, 1, 0), counts, _ROUNDS)
    assert fallen[0] == _TINY
    assert_on_simplex(fallen)
    assert fallen[2] == np.float32(0.2)
    # The weight grows by a factor of e per round, and log(1 / tiny) is 87.3.
    risen = _moved(options, fallen, _f32(1, 0, 0), counts, 100)
    np.testing.assert_allclose(risen[:2].sum(), 0.8, rtol=1e-5)
    assert risen[0] > 0.99 * risen[:2].sum()


def test_zero_weight_stays_zero():
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    lambda_ = _moved(options, _f32(0.0, 0.5, 0.5), _f32(9, 1, 0), _f32(5, 5, 5), 50)
    assert lambda_[0] == 0
    assert lambda_[1] > 0.99


def test_tiny_weights_of_present_domains_stay_normal():
    """Processors may flush numbers below float32's smallest normal number to 0."""
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    lambda_ = _moved(options, _f32(_TINY, _TINY, 1.0), _f32(3, 0, 0), _f32(1, 1, 0), 5)
    assert np.all(lambda_ >= _TINY)
    # The first domain can gain the third domain's weight only while the third is present.
    lambda_ = _moved(options, lambda_, _f32(1, 0, 0), _f32(1, 1, 1), 100)
    assert lambda_[0] > 0.99


def test_rejects_penalty_slope_for_updates_without_steps():
    with pytest.raises(UserError, match=r"^update: expected a step along the losses"):
        lambda_ascent(LambdaPlayer(Cvar()), ["a", "b"], slope=ascent.chi2(0.1))
