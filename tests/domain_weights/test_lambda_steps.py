"""Hand-worked cases of the updates of lambda, and what they lead to in many rounds."""

import numpy as np
import pytest

from tests.marks import usually
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
from tff_agnostic.domain_weights.sets import BoxSet

_UPDATES = [ExponentiatedGradient(), ProjectedGradient(), Fixed(), Cvar()]


def _f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def _next(options, lambda_, losses, counts):
    return lambda_ascent(options, ["abc"[i] for i in range(len(lambda_))]).next(
        lambda_, losses, counts
    )


def _assert_on_simplex(vector) -> None:
    vector = np.asarray(vector)
    assert np.all(np.isfinite(vector))
    assert np.all(vector >= 0)
    np.testing.assert_allclose(vector.sum(), 1.0, rtol=1e-6)


# Exponentiated gradient


@pytest.mark.parametrize(
    ("lambda_", "losses", "learning_rate", "expected"),
    [
        (
            [0.1, 0.2, 0.3, 0.4],
            [10, 0, 5, 0],
            0.1,
            [0.198931, 0.14636526, 0.36197326, 0.2927305],
        ),
        (
            [0.2, 0.4, 0.1, 0.3],
            [1, 2, 3, 4],
            0.5,
            [0.08078121, 0.26637138, 0.10979304, 0.54305437],
        ),
    ],
)
def test_exponentiated_gradient_golden_values(lambda_, losses, learning_rate, expected):
    updated = ascent.exponentiated_gradient(_f32(*lambda_), _f32(*losses), learning_rate)
    np.testing.assert_allclose(updated, expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1e6, 0.0, 0.0], [1, 0, 0]),
        ([1e4, 1e4, 0.0], [0.5 / 0.8, 0.3 / 0.8, 0]),
        ([3e38, 1e38, 0.0], [1, 0, 0]),
        ([1e5, 1e5, 1e5], [0.5, 0.3, 0.2]),
    ],
)
def test_exponentiated_gradient_of_huge_losses_does_not_overflow(losses, expected):
    updated = ascent.exponentiated_gradient(_f32(0.5, 0.3, 0.2), _f32(*losses), 0.5)
    _assert_on_simplex(updated)
    np.testing.assert_allclose(updated, expected, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("losses", [[1e3, 1e3, -5.0], [3e38, 3e38, 1e38], [1e3, 1e3, -3e38]])
def test_a_product_beyond_the_range_of_float32_gives_the_limit(losses):
    updated = ascent.exponentiated_gradient(_f32(0.5, 0.3, 0.2), _f32(*losses), 3e38)
    np.testing.assert_allclose(updated, [0.625, 0.375, 0.0], atol=1e-6)


def test_exponentiated_gradient_recovers_a_tiny_weight():
    tiny = np.finfo(np.float32).tiny
    updated = ascent.exponentiated_gradient(_f32(tiny, 1.0), _f32(100.0, 0.0), 1.0)
    np.testing.assert_allclose(updated, [1.0, 0.0], atol=1e-4)


# Projection on the simplex


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([1.2, 1.3, 1.5], [0.2, 0.3, 0.5]),
        ([2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([1.0, 0.8, 0.0], [0.6, 0.4, 0.0]),
        ([-1.0, -1.0, -1.0], [1 / 3, 1 / 3, 1 / 3]),
        ([0.0, 0.8, 1.0], [0.0, 0.4, 0.6]),
        ([-5.0, 3.0], [0.0, 1.0]),
        ([7.0], [1.0]),
        ([4e8, 1e8], [1.0, 0.0]),
        ([-4e8, -4e8, -5e8], [0.5, 0.5, 0.0]),
        # Neighbours in float32.
        ([2.0**25, 2.0**25 + 4, 3e37, 3e37], [0.0, 0.0, 0.5, 0.5]),
    ],
)
def test_project_to_simplex(vector, expected):
    np.testing.assert_allclose(project_to_simplex(_f32(*vector)), expected, atol=1e-6)


def test_projected_gradient_moves_by_the_losses_before_it_projects():
    updated = ascent.projected_gradient(_f32(0.5, 0.5), _f32(1.0, 0.0), 0.2)
    np.testing.assert_allclose(updated, [0.6, 0.4], rtol=1e-6)


def test_fixed_stays():
    options = LambdaPlayer(Fixed(), learning_rate=1.0, absent="freeze")
    updated = _next(options, _f32(0.3, 0.7), _f32(9, 0), _f32(1, 1))
    np.testing.assert_array_equal(updated, _f32(0.3, 0.7))


# Absent domains


@pytest.mark.parametrize("update", _UPDATES, ids=str)
def test_a_round_without_examples_leaves_lambda(update):
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    lambda_ = _f32(0.1, 0.9)
    updated = _next(options, lambda_, _f32(0, 0), _f32(0, 0))
    np.testing.assert_array_equal(updated, lambda_)


def test_an_absent_domain_whose_loss_is_0_loses_weight():
    options = LambdaPlayer(learning_rate=1.0, absent="zero")
    updated = _next(options, _f32(0.5, 0.5), _f32(0, np.log(3)), _f32(0, 2))
    np.testing.assert_allclose(updated, [0.25, 0.75], rtol=1e-6)


def test_by_default_an_absent_domain_keeps_its_weight_and_the_others_share_the_rest():
    options = LambdaOptions(LambdaPlayer(learning_rate=1.0)).lambda_
    losses = _f32(0, np.log(3), 0)
    updated = _next(options, _f32(0.5, 0.25, 0.25), losses, _f32(0, 2, 2))
    np.testing.assert_allclose(updated, [0.5, 0.375, 0.125], rtol=1e-6)


def test_freeze_absent_leaves_a_single_present_domain():
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    updated = _next(options, _f32(0.3, 0.7), _f32(50.0, 0), _f32(4, 0))
    np.testing.assert_allclose(updated, [0.3, 0.7], rtol=1e-6)


@pytest.mark.parametrize("update", _UPDATES, ids=str)
@pytest.mark.parametrize("losses", [(-50.0, 0.0, 0.0), (-500.0, -500.0, 0.0)])
def test_freeze_absent_stays_on_the_simplex_when_losses_are_negative(update, losses):
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    counts = _f32(*[1.0 if loss else 0.0 for loss in losses])
    updated = _next(options, _f32(0.2, 0.2, 0.6), _f32(*losses), counts)
    _assert_on_simplex(updated)
    np.testing.assert_allclose(updated[2], 0.6, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.0, 1.0, 100.0, -100.0])
def test_frozen_projected_gradient_ignores_common_constant(constant):
    options = LambdaPlayer(ProjectedGradient(), learning_rate=0.1, absent="freeze")
    losses = _f32(constant, constant + 0.1, 0.0)
    updated = _next(options, _f32(0.1, 0.1, 0.8), losses, _f32(1, 1, 0))
    # The nearest point to (.1, .11) whose sum is .2.
    np.testing.assert_allclose(updated, [0.095, 0.105, 0.8], atol=2e-6)


def test_freeze_absent_compares_negative_losses_of_the_present():
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    losses = _f32(-500, -500 + np.log(3), 0)
    updated = _next(options, _f32(0.2, 0.2, 0.6), losses, _f32(1, 1, 0))
    np.testing.assert_allclose(updated, [0.1, 0.3, 0.6], rtol=1e-4)


@pytest.mark.parametrize("update", _UPDATES[:2], ids=str)
@pytest.mark.parametrize(
    ("mixture", "lambda_", "losses", "counts"),
    [
        # By hand: the slope of chi2 in the first domain is -2 (.5 - .0127) / .0127 = -76.7.
        ((0.0127, 0.9873), (0.5, 0.5), (1.0, 0.0), (3, 0)),
        ((0.2, 0.3, 0.5), (0.6, 0.3, 0.1), (1.0, 2.0, 0.0), (1, 1, 0)),
    ],
)
def test_freeze_absent_keeps_the_sum_with_a_chi2_term(update, mixture, lambda_, losses, counts):
    options = LambdaPlayer(update, learning_rate=1.0, absent="freeze")
    names = ["abc"[i] for i in range(len(mixture))]
    steps = lambda_ascent(options, names, mixture, ascent.chi2(1.0))
    updated = np.asarray(steps.next(_f32(*lambda_), _f32(*losses), _f32(*counts)))
    _assert_on_simplex(updated)
    np.testing.assert_allclose(updated[-1], lambda_[-1], rtol=1e-6)
    if len(mixture) == 3:
        # The present ones share the rest by the slopes: 1 - 4 and 2 - 0.
        assert updated[1] > lambda_[1]


# Many rounds

_ROUNDS = 2000
_TINY = np.finfo(np.float32).tiny


def _moved(options, lambda_, losses, counts, rounds):
    """Lambda after rounds that are all alike."""
    for _ in range(rounds):
        lambda_ = np.asarray(_next(options, lambda_, losses, counts))
        assert np.all(np.isfinite(lambda_))
    return lambda_


@pytest.mark.slow
@pytest.mark.parametrize("freeze", usually([True], [False, True]))
def test_a_weight_that_fell_for_thousands_of_rounds_is_positive_and_recovers(freeze):
    """It falls by e a round; float32 has no room for 90 of them, and log 0 would be the end."""
    options = LambdaPlayer(learning_rate=1.0, absent="freeze" if freeze else "zero")
    counts = _f32(5, 5, 0)
    fallen = _moved(options, _f32(0.4, 0.4, 0.2), _f32(0, 1, 0), counts, _ROUNDS)
    assert fallen[0] == _TINY
    _assert_on_simplex(fallen)
    assert fallen[2] == (np.float32(0.2) if freeze else _TINY)
    # log(1 / tiny) is 87.3.
    risen = _moved(options, fallen, _f32(1, 0, 0), counts, 100)
    np.testing.assert_allclose(risen[:2].sum(), 0.8 if freeze else 1.0, rtol=1e-5)
    assert risen[0] > 0.99 * risen[:2].sum()


@pytest.mark.parametrize("freeze", [False, True])
def test_a_weight_that_was_0_stays_0(freeze):
    options = LambdaPlayer(learning_rate=1.0, absent="freeze" if freeze else "zero")
    lambda_ = _moved(options, _f32(0.0, 0.5, 0.5), _f32(9, 1, 0), _f32(5, 5, 5), 50)
    assert lambda_[0] == 0
    assert lambda_[1] > 0.99


def test_present_domains_may_have_next_to_nothing_to_share():
    """Halves of the smallest normal number are not normal: processors may take them for 0."""
    options = LambdaPlayer(learning_rate=1.0, absent="freeze")
    lambda_ = _moved(options, _f32(_TINY, _TINY, 1.0), _f32(3, 0, 0), _f32(1, 1, 0), 5)
    assert np.all(lambda_ >= _TINY)
    # Nothing but the next round in which the third is present as well can give them more.
    lambda_ = _moved(options, lambda_, _f32(1, 0, 0), _f32(1, 1, 1), 100)
    assert lambda_[0] > 0.99


def test_in_a_box_the_loss_of_an_absent_domain_is_the_mean_of_the_others():
    box = LambdaPlayer(set=BoxSet(upper=(0.6,)), learning_rate=0.5, absent="freeze")
    lambda_ = _f32(0.1, 0.4, 0.5)
    found = _next(box, lambda_, _f32(2.0, 0.0, 1.0), _f32(3, 0, 1))
    # (0.1 * 2 + 0.5 * 1) / 0.6
    expected = lambda_ * np.exp(0.5 * np.array([2.0, 7 / 6, 1.0]))
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("update", [Cvar(), Fixed()], ids=str)
def test_rejects_slope_of_updates_without_steps(update):
    with pytest.raises(UserError, match=r"^update: expected a step along the losses"):
        lambda_ascent(LambdaPlayer(update), ["a", "b"], slope=ascent.chi2(0.1))
