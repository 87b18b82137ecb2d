"""The closed-form epsilon of Gaussian noise."""

import math

from scipy import optimize
from scipy.stats import norm


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon of Gaussian noise (Dong, Roth, Su 2019, Corollary 2.13).

    Args:
        mu: Distance between neighbouring data sets' sums, in standard deviations of the noise.
        delta: The delta that epsilon is for.
    """

    def excess(epsilon: float) -> float:
        near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far) - delta)

    return float(optimize.brentq(excess, 0.0, 200.0))
