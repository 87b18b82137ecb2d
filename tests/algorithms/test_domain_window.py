"""The window of counts by which lambda is scaled, and what a run starts from."""

import numpy as np

from tests import golden
from tests.computations.harness import linear_model, to_numpy
from tff_agnostic.algorithms import agnostic_fed_avg as dw
from tff_agnostic.computations import Problem


def _f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


def _initial(options, num_domains, expected_counts=None) -> dw.DomainState:
    problem = Problem(linear_model(), tuple("abcd"[:num_domains]), expected_counts=expected_counts)
    return to_numpy(dw.agnostic_fed_avg(problem, options).initialize().domains)


def test_the_window_slides_and_is_averaged():
    window, mean = dw.slide(
        _f32([2, 4], [4, 0], [6, 2]), mean_counts=_f32(4, 2), counts=_f32(2, 10)
    )
    np.testing.assert_array_equal(window, [[4, 0], [6, 2], [2, 10]])
    np.testing.assert_allclose(mean, [4, 4], rtol=1e-6)


def test_the_window_keeps_the_last_positive_mean_of_an_absent_domain():
    window, mean = _f32([8, 3], [8, 3]), _f32(8, 3)
    for _ in range(5):
        window, mean = dw.slide(window, mean, _f32(6, 0))
    np.testing.assert_array_equal(window, [[6, 0], [6, 0]])
    # Half of 3: the mean of the last window in which the domain still was.
    np.testing.assert_allclose(mean, [6, 1.5], rtol=1e-6)


def test_the_window_ignores_a_round_without_examples():
    window, mean = dw.slide(_f32([1, 2], [3, 4]), _f32(2, 3), _f32(0, 0))
    np.testing.assert_array_equal(window, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(mean, [2, 3])


def test_alpha_is_lambda_over_the_mean_counts():
    options = dw.AgnosticFedAvgOptions(
        initial_domain_weights=(0.1, 0.9), initial_domain_counts=(5.0, 0.5)
    )
    algorithm = dw.agnostic_fed_avg(Problem(linear_model(), ("a", "b")), options)
    alpha = algorithm.steps[0].broadcast(algorithm.initialize()).alpha
    np.testing.assert_allclose(alpha, [0.02, 1.8], rtol=1e-6)


# Initial states and their checks


def test_initial_state_defaults_to_uniform_weights_and_counts_of_one():
    state = _initial(dw.AgnosticFedAvgOptions(window=3), 4)
    np.testing.assert_array_equal(state.lambda_, [0.25] * 4)
    np.testing.assert_array_equal(state.window, np.ones([3, 4]))
    np.testing.assert_array_equal(state.mean_counts, np.ones(4))


def test_the_window_starts_with_the_counts_that_a_round_is_expected_to_have():
    expected = _initial(dw.AgnosticFedAvgOptions(window=2), 2, (30.0, 10.0))
    np.testing.assert_array_equal(expected.window, [[30, 10], [30, 10]])
    np.testing.assert_array_equal(expected.mean_counts, [30, 10])
    given = dw.AgnosticFedAvgOptions(initial_domain_counts=(7.0, 9.0))
    np.testing.assert_array_equal(_initial(given, 2, (30.0, 10.0)).mean_counts, [7, 9])


def test_initial_weights_that_nearly_sum_to_one_are_normalized():
    options = dw.AgnosticFedAvgOptions(initial_domain_weights=(0.333, 0.333, 0.3335))
    lambda_ = _initial(options, 3).lambda_
    np.testing.assert_allclose(lambda_.sum(), 1.0, rtol=1e-6)


@golden.values
def test_initial_values_that_do_not_fit_are_refused(case):
    return golden.refusal(lambda: _initial(dw.AgnosticFedAvgOptions(**case), 2))


@golden.values
def test_settings_out_of_range_are_refused(case):
    return golden.refusal(dw.AgnosticFedAvgOptions, **case)
