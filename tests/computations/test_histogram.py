"""Quantiles from histograms against exact ones."""

import math

import numpy as np
import pytest

from tff_agnostic.computations.histogram import LinearGrid, LogGrid, quantile

_QS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


def _counts(grid, values: np.ndarray) -> np.ndarray:
    return np.bincount(grid.bin_of(values.astype(np.float32)), minlength=grid.num_bins)


def _exact(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q))


@pytest.mark.parametrize("q", _QS)
@pytest.mark.parametrize("num_clients", [1, 2, 7, 100, 999])
def test_quantiles_on_a_linear_grid_are_within_half_a_bin(q, num_clients):
    values = np.random.default_rng(num_clients).beta(2, 1, num_clients)
    grid = LinearGrid()
    estimate = quantile(grid, _counts(grid, values), q)
    assert abs(estimate - _exact(values, q)) <= 0.0025 + 1e-6


@pytest.mark.parametrize("upper", [0.5, 1.0, 40.0])
def test_a_linear_grid_scales_with_its_upper_end(upper):
    values = upper * np.random.default_rng(0).random(200)
    grid = LinearGrid(upper)
    for q in _QS:
        assert abs(quantile(grid, _counts(grid, values), q) - _exact(values, q)) <= upper / 399


@pytest.mark.parametrize("q", _QS)
def test_quantiles_on_a_log_grid_are_within_a_share_of_the_value(q):
    values = np.exp(np.random.default_rng(1).uniform(math.log(1e-6), math.log(1e6), 500))
    grid = LogGrid()
    exact = _exact(values, q)
    assert abs(quantile(grid, _counts(grid, values), q) - exact) <= 0.028 * exact


@pytest.mark.parametrize(
    ("grid", "values", "bins"),
    [
        (LinearGrid(), [-1.0, 0.0, 0.5, 1.0, 9.0], [0, 0, 100, 200, 200]),
        (LogGrid(), [-1.0, 0.0, 1e-9, 1.0, 1e6, 1e30], [0, 0, 0, 256, 512, 512]),
    ],
    ids=["linear", "log"],
)
def test_what_is_outside_the_grid_joins_its_ends(grid, values, bins):
    np.testing.assert_array_equal(grid.bin_of(np.array(values, np.float32)), bins)


@pytest.mark.parametrize("grid", [LinearGrid(), LogGrid()], ids=["linear", "log"])
def test_every_centre_is_in_its_own_bin(grid):
    centers = grid.centers().astype(np.float32)
    assert len(centers) == grid.num_bins
    np.testing.assert_array_equal(grid.bin_of(centers), np.arange(grid.num_bins))


def test_the_quantile_of_no_clients_is_nan():
    assert math.isnan(quantile(LinearGrid(), np.zeros([201], np.int64), 0.5))


@pytest.mark.parametrize("q", [0.1, 0.3, 0.55, 0.7, 0.9])
def test_positions_that_are_whole_numbers_are_not_interpolated(q):
    """0.55 * 100 is 55.000000000000007 in floating point; the quantile is still the 55th value."""
    grid = LinearGrid(upper=200.0)
    counts = np.zeros([grid.num_bins], np.int64)
    counts[0:101] = 1
    assert quantile(grid, counts, q) == round(100 * q)


def test_between_two_clients_quantiles_are_interpolated():
    grid = LinearGrid()
    counts = _counts(grid, np.array([0.2, 0.6]))
    found = [quantile(grid, counts, q) for q in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert found == pytest.approx([0.2, 0.24, 0.4, 0.56, 0.6])
    log = LogGrid()
    # A quantile of losses is between losses, not between their logarithms.
    found = quantile(log, _counts(log, np.array([1.0, 1e6])), 0.5)
    assert found == pytest.approx(500_000.5)
