"""The smoothed threshold of Delta-FL against a scalar minimiser."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import minimize_scalar

from tff_agnostic.algorithms.tail_thresholds import GRID, smoothed_eta, smoothed_share

_CENTERS = GRID.centers()


def _histogram(losses: list[float], weights: list[int]) -> np.ndarray:
    histogram = np.zeros(GRID.num_bins, np.int64)
    np.add.at(histogram, GRID.bin_of(tf.constant(losses)).numpy(), weights)
    return histogram


def _objective(eta: float, histogram: np.ndarray, theta: float, nu: float) -> float:
    above = np.maximum(_CENTERS - eta, 0.0)
    h = np.where(above <= nu, above**2 / (2 * nu), above - nu / 2)
    return eta + (histogram / histogram.sum()) @ h / theta


@pytest.mark.parametrize("nu", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("theta", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_it_minimises_the_smoothed_objective(theta, nu, seed):
    rng = np.random.default_rng(seed)
    histogram = _histogram(rng.lognormal(size=30).tolist(), rng.integers(1, 50, size=30).tolist())
    eta = float(smoothed_eta(tf.constant(histogram), theta, nu))
    # Several may be as good; none is better.
    found = minimize_scalar(
        _objective, args=(histogram, theta, nu), bounds=(-6, 20), method="bounded"
    )
    assert _objective(eta, histogram, theta, nu) <= found.fun + 1e-6
    shares = smoothed_share(tf.constant(eta), tf.constant(_CENTERS, tf.float32), nu).numpy()
    assert shares @ histogram / histogram.sum() == pytest.approx(theta, abs=1e-4)


def test_equal_losses_count_alike_and_as_much_as_the_level():
    eta = smoothed_eta(tf.constant(_histogram([2.0] * 4, [1, 2, 3, 4])), 0.3, 0.5)
    assert float(smoothed_share(eta, tf.constant(2.0), 0.5)) == pytest.approx(0.3, abs=1e-5)


def test_golden_values():
    """Losses near 1, 2, 3, 4, a tenth to four tenths of the weight, nu = 1 and theta = 0.6.

    Between 2 and 3 it is 0.4 + 0.3 (3 - eta) = 0.6.
    """
    one, two, three, four = (
        float(_CENTERS[GRID.bin_of(tf.constant(x))]) for x in (1.0, 2.0, 3.0, 4.0)
    )
    eta = smoothed_eta(tf.constant(_histogram([one, two, three, four], [1, 2, 3, 4])), 0.6, 1.0)
    assert float(eta) == pytest.approx(three - 2 / 3, rel=1e-6)


def test_everyone_counts_below_the_first_loss():
    eta = smoothed_eta(tf.constant(_histogram([1.0, 4.0], [1, 1])), 1.0, 0.5)
    lowest = float(_CENTERS[GRID.bin_of(tf.constant(1.0))])
    assert float(eta) == pytest.approx(lowest - 0.5, rel=1e-6)
