"""Tests of AgnosticFedAvg's domain counts and start, and of Delta-FL's smoothed threshold."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import minimize_scalar

from tests.support import golden
from tests.support.comparing import to_numpy
from tests.support.models import linear_model
from tests.support.options import make_options
from tff_agnostic.algorithms import agnostic_fed_avg as dw
from tff_agnostic.algorithms.tail_thresholds import GRID, smoothed_eta, smoothed_share
from tff_agnostic.computations import Problem


def _f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def _initial(options, num_domains, expected_counts=None, **arguments) -> dw.Domains:
    problem = Problem(linear_model(), tuple("abcd"[:num_domains]), expected_counts=expected_counts)
    return to_numpy(dw.agnostic_fed_avg(problem, options, **arguments).initialize().memory)


def test_window_slides_and_gives_mean_counts():
    window, mean = dw.slide(
        _f32([2, 4], [4, 0], [6, 2]), mean_counts=_f32(4, 2), counts=_f32(2, 10)
    )
    np.testing.assert_array_equal(window, [[4, 0], [6, 2], [2, 10]])
    np.testing.assert_allclose(mean, [4, 4], rtol=1e-6)


def test_window_keeps_absent_domains_last_positive_mean():
    window, mean = _f32([8, 3], [8, 3]), _f32(8, 3)
    for _ in range(5):
        window, mean = dw.slide(window, mean, _f32(6, 0))
    np.testing.assert_array_equal(window, [[6, 0], [6, 0]])
    # The last window with an example of the domain was (3, 0), whose mean is 1.5.
    np.testing.assert_allclose(mean, [6, 1.5], rtol=1e-6)


def test_window_ignores_round_without_examples():
    window, mean = dw.slide(_f32([1, 2], [3, 4]), _f32(2, 3), _f32(0, 0))
    np.testing.assert_array_equal(window, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(mean, [2, 3])


def test_alpha_is_lambda_divided_by_mean_counts():
    options = make_options(dw.AgnosticFedAvgOptions, lambda_initial=(0.1, 0.9))
    problem = Problem(linear_model(), ("a", "b"))
    algorithm = dw.agnostic_fed_avg(problem, options, initial_counts=(5.0, 0.5))
    alpha = algorithm.steps[0].broadcast(algorithm.initialize()).sent
    np.testing.assert_allclose(alpha, [0.02, 1.8], rtol=1e-6)


# --- Tests of initial states and of their checks


def test_lambda_starts_uniform_with_expected_counts():
    state = _initial(make_options(dw.AgnosticFedAvgOptions, window=3), 4)
    np.testing.assert_array_equal(state.lambda_, [0.25] * 4)
    np.testing.assert_array_equal(state.window, np.ones([3, 4]))
    np.testing.assert_array_equal(state.mean_counts, np.ones(4))
    expected = _initial(make_options(dw.AgnosticFedAvgOptions, window=2), 2, (30.0, 10.0))
    np.testing.assert_array_equal(expected.window, [[30, 10], [30, 10]])
    np.testing.assert_array_equal(expected.mean_counts, [30, 10])
    given = _initial(dw.AgnosticFedAvgOptions(), 2, (30.0, 10.0), initial_counts=(7.0, 9.0))
    np.testing.assert_array_equal(given.mean_counts, [7, 9])

    # Weights whose sum is nearly 1 are normalised.
    options = make_options(dw.AgnosticFedAvgOptions, lambda_initial=(0.333, 0.333, 0.3335))
    np.testing.assert_allclose(_initial(options, 3).lambda_.sum(), 1.0, rtol=1e-6)


@golden.values
def test_rejects_invalid_initial_values(case):
    arguments = {name: case.pop(name) for name in ("initial_counts",) if name in case}
    return golden.refusal(
        lambda: _initial(make_options(dw.AgnosticFedAvgOptions, **case), 2, **arguments)
    )


@golden.values
def test_rejects_invalid_options(case):
    return golden.refusal(make_options, dw.AgnosticFedAvgOptions, **case)


# --- Delta-FL's smoothed threshold equals a scalar minimiser's


_CENTERS = GRID.centers()


def _histogram(losses: list[float], weights: list[int]) -> np.ndarray:
    # Bin 0 counts losses below 0.
    histogram = np.zeros(1 + GRID.num_bins, np.int64)
    np.add.at(histogram, 1 + GRID.bin_index(tf.constant(losses)).numpy(), weights)
    return histogram


def _objective(eta: float, histogram: np.ndarray, theta: float, nu: float) -> float:
    above = np.maximum(_CENTERS - eta, 0.0)
    h = np.where(above <= nu, above**2 / (2 * nu), above - nu / 2)
    return eta + (histogram[1:] / histogram.sum()) @ h / theta


@pytest.mark.parametrize(("theta", "nu"), [(0.05, 5.0), (0.5, 0.01), (0.5, 0.3), (0.9, 0.3)])
def test_threshold_minimises_the_smoothed_objective(theta, nu):
    rng = np.random.default_rng(0)
    histogram = _histogram(rng.lognormal(size=30).tolist(), rng.integers(1, 50, size=30).tolist())
    eta = float(smoothed_eta(tf.constant(histogram), theta, nu))
    # Several values of eta can be minimisers, so compare the objective.
    actual = minimize_scalar(
        _objective, args=(histogram, theta, nu), bounds=(-6, 20), method="bounded"
    )
    assert _objective(eta, histogram, theta, nu) <= actual.fun + 1e-6
    shares = smoothed_share(tf.constant(eta), tf.constant(_CENTERS, tf.float32), nu).numpy()
    assert shares @ histogram[1:] / histogram.sum() == pytest.approx(theta, abs=1e-4)


def test_equal_losses_train_with_fraction_theta():
    eta = smoothed_eta(tf.constant(_histogram([2.0] * 4, [1, 2, 3, 4])), 0.3, 0.5)
    assert float(smoothed_share(eta, tf.constant(2.0), 0.5)) == pytest.approx(0.3, abs=1e-5)


def test_smoothed_threshold_equals_value_by_hand():
    """Losses near 1, 2, 3, 4 have the weights 0.1, 0.2, 0.3, 0.4; nu = 1, theta = 0.6.

    For eta between 2 and 3, the training weight is 0.4 + 0.3 (3 - eta) = 0.6.
    """
    one, two, three, four = (
        float(_CENTERS[GRID.bin_index(tf.constant(x))]) for x in (1.0, 2.0, 3.0, 4.0)
    )
    eta = smoothed_eta(tf.constant(_histogram([one, two, three, four], [1, 2, 3, 4])), 0.6, 1.0)
    assert float(eta) == pytest.approx(three - 2 / 3, rel=1e-6)


def test_all_clients_train_at_level_1():
    eta = smoothed_eta(tf.constant(_histogram([1.0, 4.0], [1, 1])), 1.0, 0.5)
    lowest = float(_CENTERS[GRID.bin_index(tf.constant(1.0))])
    assert float(eta) == pytest.approx(lowest - 0.5, rel=1e-6)
