"""Exact epsilon of Gaussian noise, independent of the fleet's code."""

import math

from scipy import optimize, stats


def exact_gaussian_epsilon(distance: float, delta: float) -> float:
    """Returns epsilon of a Gaussian release (Balle, Wang 2018, Theorem 8), computed with SciPy.

    Args:
        distance: Distance between neighbouring releases, in standard deviations of the noise.
    """

    def excess(epsilon: float) -> float:
        far = math.exp(epsilon + stats.norm.logcdf(-distance / 2 - epsilon / distance))
        return float(stats.norm.cdf(distance / 2 - epsilon / distance)) - far - delta

    return float(optimize.brentq(excess, 0, distance**2 / 2 + 12 * distance + 1))
