"""Hand-worked cases of the updates of lambda and of the window."""

import numpy as np
import pytest

from tff_agnostic.computations import domain_weights as dw
from tff_agnostic.errors import UserError


def _f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


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
    updated = dw.exponentiated_gradient(_f32(*lambda_), _f32(*losses), learning_rate)
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
    updated = dw.exponentiated_gradient(_f32(0.5, 0.3, 0.2), _f32(*losses), 0.5)
    _assert_on_simplex(updated)
    np.testing.assert_allclose(updated, expected, rtol=1e-2, atol=1e-6)


def test_exponentiated_gradient_keeps_a_zero_weight_at_zero():
    updated = dw.exponentiated_gradient(_f32(0.0, 0.6, 0.4), _f32(100.0, 1.0, 1.0), 1.0)
    np.testing.assert_allclose(updated, [0.0, 0.6, 0.4], rtol=1e-6)


def test_exponentiated_gradient_recovers_a_tiny_weight():
    tiny = np.finfo(np.float32).tiny
    updated = dw.exponentiated_gradient(_f32(tiny, 1.0), _f32(100.0, 0.0), 1.0)
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
    ],
)
def test_project_to_simplex(vector, expected):
    np.testing.assert_allclose(dw.project_to_simplex(_f32(*vector)), expected, atol=1e-6)


def test_projection_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(0)
    for _ in range(20):
        vector = rng.normal(size=5).astype(np.float32)
        projected = np.asarray(dw.project_to_simplex(vector))
        _assert_on_simplex(projected)
        others = rng.dirichlet(np.ones(5), size=500)
        nearest_other = np.linalg.norm(others - vector, axis=1).min()
        assert np.linalg.norm(projected - vector) <= nearest_other + 1e-6


def test_projected_gradient_moves_by_the_losses_before_it_projects():
    updated = dw.projected_gradient(_f32(0.5, 0.5), _f32(1.0, 0.0), 0.2)
    np.testing.assert_allclose(updated, [0.6, 0.4], rtol=1e-6)


def test_fixed_stays():
    np.testing.assert_array_equal(dw.fixed(_f32(0.3, 0.7), _f32(9, 0), 1.0), _f32(0.3, 0.7))


# Absent domains


@pytest.mark.parametrize("update", list(dw.DOMAIN_WEIGHT_UPDATES))
def test_a_round_without_examples_leaves_lambda(update):
    params = dw.DomainWeightsParams(update=update, learning_rate=1.0)
    lambda_ = _f32(0.1, 0.9)
    updated = dw.update_domain_weights(params, lambda_, _f32(0, 0), _f32(0, 0))
    np.testing.assert_array_equal(updated, lambda_)


def test_by_default_an_absent_domain_loses_weight():
    params = dw.DomainWeightsParams(learning_rate=1.0)
    updated = dw.update_domain_weights(params, _f32(0.5, 0.5), _f32(0, np.log(3)), _f32(0, 2))
    np.testing.assert_allclose(updated, [0.25, 0.75], rtol=1e-6)


def test_freeze_absent_shares_the_rest_among_the_present():
    params = dw.DomainWeightsParams(learning_rate=1.0, freeze_absent=True)
    losses = _f32(0, np.log(3), 0)
    updated = dw.update_domain_weights(params, _f32(0.5, 0.25, 0.25), losses, _f32(0, 2, 2))
    np.testing.assert_allclose(updated, [0.5, 0.375, 0.125], rtol=1e-6)


def test_freeze_absent_leaves_a_single_present_domain():
    params = dw.DomainWeightsParams(learning_rate=1.0, freeze_absent=True)
    updated = dw.update_domain_weights(params, _f32(0.3, 0.7), _f32(50.0, 0), _f32(4, 0))
    np.testing.assert_allclose(updated, [0.3, 0.7], rtol=1e-6)


@pytest.mark.parametrize("update", list(dw.DOMAIN_WEIGHT_UPDATES))
@pytest.mark.parametrize("losses", [(-50.0, 0.0, 0.0), (-500.0, -500.0, 0.0)])
def test_freeze_absent_stays_on_the_simplex_when_losses_are_negative(update, losses):
    params = dw.DomainWeightsParams(update=update, learning_rate=1.0, freeze_absent=True)
    counts = _f32(*[1.0 if loss else 0.0 for loss in losses])
    updated = dw.update_domain_weights(params, _f32(0.2, 0.2, 0.6), _f32(*losses), counts)
    _assert_on_simplex(updated)
    np.testing.assert_allclose(updated[2], 0.6, rtol=1e-6)


def test_freeze_absent_compares_negative_losses_of_the_present():
    params = dw.DomainWeightsParams(learning_rate=1.0, freeze_absent=True)
    losses = _f32(-500, -500 + np.log(3), 0)
    updated = dw.update_domain_weights(params, _f32(0.2, 0.2, 0.6), losses, _f32(1, 1, 0))
    np.testing.assert_allclose(updated, [0.1, 0.3, 0.6], rtol=1e-4)


# The window


def test_append_counts_slides_and_averages():
    window, mean = dw.append_counts(
        _f32([2, 4], [4, 0], [6, 2]), mean_counts=_f32(4, 2), counts=_f32(2, 10)
    )
    np.testing.assert_array_equal(window, [[4, 0], [6, 2], [2, 10]])
    np.testing.assert_allclose(mean, [4, 4], rtol=1e-6)


def test_append_counts_keeps_the_last_positive_mean_of_an_absent_domain():
    window, mean = _f32([8, 3], [8, 3]), _f32(8, 3)
    for _ in range(5):
        window, mean = dw.append_counts(window, mean, _f32(6, 0))
    np.testing.assert_array_equal(window, [[6, 0], [6, 0]])
    # Half of 3: the mean of the last window in which the domain still was.
    np.testing.assert_allclose(mean, [6, 1.5], rtol=1e-6)


def test_append_counts_ignores_a_round_without_examples():
    window, mean = dw.append_counts(_f32([1, 2], [3, 4]), _f32(2, 3), _f32(0, 0))
    np.testing.assert_array_equal(window, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(mean, [2, 3])


def test_scaling_vector_divides_the_weights_by_the_mean_counts():
    alpha = dw.scaling_vector(_f32(0.1, 0.9), _f32(5, 0.5))
    np.testing.assert_allclose(alpha, [0.02, 1.8], rtol=1e-6)


# Initial states and their checks


def test_initial_state_defaults_to_uniform_weights_and_counts_of_one():
    state = dw.initial_domain_state(dw.DomainWeightsParams(window_size=3), num_domains=4)
    np.testing.assert_array_equal(state.lambda_, [0.25] * 4)
    np.testing.assert_array_equal(state.window, np.ones([3, 4]))
    np.testing.assert_array_equal(state.mean_counts, np.ones(4))


def test_initial_weights_that_nearly_sum_to_one_are_normalized():
    params = dw.DomainWeightsParams(initial_weights=(0.333, 0.333, 0.3335))
    _assert_on_simplex(dw.initial_domain_state(params, 3).lambda_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_weights": (0.5, 0.6)}, "sum to 1.1"),
        ({"initial_weights": (-0.5, 1.5)}, "non-negative"),
        ({"initial_weights": (1.0,)}, "expected 2 numbers, one per domain, found 1"),
        ({"initial_weights": (float("nan"), 1.0)}, "finite"),
        ({"initial_counts": (1.0, 0.0)}, "positive"),
        ({"initial_counts": (1.0, 2.0, 3.0)}, "expected 2 numbers"),
        ({"initial_counts": (1.0, float("inf"))}, "finite"),
    ],
)
def test_initial_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        dw.initial_domain_state(dw.DomainWeightsParams(**options), num_domains=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "positive"),
        ({"learning_rate": float("nan")}, "positive"),
        ({"window_size": 0}, "at least 1 round"),
        ({"update": "exponentiated_gradent"}, "did you mean exponentiated_gradient"),
    ],
)
def test_parameters_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        dw.DomainWeightsParams(**options)
