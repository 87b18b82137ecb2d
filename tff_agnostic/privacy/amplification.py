"""Amplification by sampling: Renyi divergences of any release about a randomly drawn cohort.

dp-accounting supports amplification only for Gaussian noise. The bounds here hold at integer
orders. As a divergence does not decrease with the order, a non-integer order uses the bound at the
next integer. The divergence without sampling is a second bound, and the smaller bound counts.

For Gaussian noise with Poisson cohorts, the exact divergence is computed at non-integer orders,
where versions of dp-accounting differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# Function that maps orders to Renyi divergences.
Divergence = Callable[[np.ndarray], np.ndarray]
# Largest order for which sums are computed; above it, the bound is the divergence without sampling.
_MAX_SAMPLED_ORDER = 256
# For numerical integration: number of standard deviations beyond which the integrand is negligible,
# and minimum number of steps per standard deviation.
_FAR, _STEPS = 12.0, 4


def poisson_sampled(divergence: Divergence, rate: float, orders: np.ndarray) -> np.ndarray:
    """Returns the divergences with Poisson cohorts (Zhu and Wang 2019, Theorem 5).

    Args:
        divergence: Maps orders to the release's divergences between a cohort with a client and the
            cohort without this client, in both directions. No other released value, such as the
            cohort size, may distinguish the two cohorts.
        rate: Sampling rate q, above 0.
        orders: Orders above 1, ascending.
    """

    def at(order: int, terms: np.ndarray) -> float:
        j = np.arange(2, order + 1)
        # Theorem 5 has a factor of 3 in the terms with j >= 3.
        factors = np.where(j == 2, 0.0, math.log(3))
        binomials = _log_binomials(order, j)
        shares = (order - j) * math.log1p(-rate) + j * math.log(rate)
        first = (order - 1) * math.log1p(-rate) + math.log(order * rate - rate + 1)
        return log_sum(np.append(binomials + shares + factors + (j - 1) * terms, first))

    return _amplified(divergence, rate, orders, at)


def poisson_sampled_gaussian(
    noise_multiplier: float, rate: float, orders: np.ndarray
) -> np.ndarray:
    """Returns the divergences of Gaussian noise with Poisson cohorts.

    They are log(A) / (a - 1), where A = E[((1 - q) + q exp(u / z - 1 / (2 z^2)))^a] for a standard
    normal u (Mironov, Talwar, Zhang 2019, section 3.3). The integrand is analytic for |Im u| < pi
    z, so sums with a step of min(1, z) / 4 are exact up to rounding.

    Args:
        noise_multiplier: Noise multiplier z, above 0.
        rate: Sampling rate q, above 0 and below 1.
        orders: Orders a above 1; the cost grows with the largest order.
    """
    step = min(1.0, noise_multiplier) / _STEPS
    u = np.arange(-_FAR, np.max(orders) / noise_multiplier + _FAR, step)
    loss = u / noise_multiplier - 1 / (2 * noise_multiplier**2)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + loss)
    density = math.log(step / math.sqrt(2 * math.pi)) - u**2 / 2
    return np.array([log_sum(density + order * ratio) / (order - 1) for order in orders])


def sampled_without_replacement(
    divergence: Divergence, rate: float, orders: np.ndarray
) -> np.ndarray:
    """Returns the divergences with cohorts of a fixed size (Wang, Balle, Kasiviswanathan 2019).

    This is Theorem 9 of the paper, for releases whose divergence of infinite order is unbounded.

    Args:
        divergence: Maps orders to the release's divergences between cohorts in which one client is
            replaced.
        rate: Fraction of clients that a round draws, above 0.
        orders: Orders above 1, ascending.
    """

    def at(order: int, terms: np.ndarray) -> float:
        j = np.arange(2, order + 1)
        second = terms[0]
        # The term with j = 2 has the factor min(4 (e^eps - 1), 2 e^eps).
        smaller = min(math.log(4) + _log_expm1(second), math.log(2) + second)
        values = np.where(j == 2, smaller, math.log(2) + (j - 1) * terms)
        return log_sum(np.append(j * math.log(rate) + _log_binomials(order, j) + values, 0.0))

    return _amplified(divergence, rate, orders, at)


def _amplified(
    divergence: Divergence,
    rate: float,
    orders: np.ndarray,
    at: Callable[[int, np.ndarray], float],
) -> np.ndarray:
    plain = np.asarray(divergence(orders), np.float64)
    if rate == 1:
        return plain
    whole = np.maximum(np.ceil(orders), 2).astype(int)
    by_order: dict[int, float] = {}
    for order in sorted({int(a) for a in whole if a <= _MAX_SAMPLED_ORDER}):
        terms = np.asarray(divergence(np.arange(2, order + 1, dtype=np.float64)), np.float64)
        by_order[order] = at(order, terms) / (order - 1)
    sampled = np.array([by_order.get(int(a), np.inf) for a in whole])
    return np.minimum(plain, sampled)


def _log_binomials(order: int, j: np.ndarray) -> np.ndarray:
    values = [math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in j]
    return np.array(values)


def log_sum(logs: np.ndarray) -> float:
    """Returns log(sum(exp(logs))), without overflow."""
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest))))


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x)) if x > 0 else -math.inf
