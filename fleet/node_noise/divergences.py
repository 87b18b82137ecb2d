"""Epsilon of noised sums, from Renyi divergences of Gaussian and Skellam noise.

Every epsilon is computed from the noise. An epsilon that a plan's author states is compared with
this epsilon, and never used instead. "Divergences" are float arrays with upper bounds on the Renyi
divergences at `ORDERS`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

import numpy as np

ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, 1024])
# Maximum order at which bounds use the sampling of cohorts. Bounds at higher orders ignore it.
_MAX_SAMPLED_ORDER = 64
# For numerical integration: number of standard deviations beyond which the integrand is negligible,
# and number of steps per standard deviation.
_FAR, _STEPS = 12.0, 4
_BISECTIONS = 200
_THRESHOLDS = 401
# Relative tolerance for a stated epsilon, as an exporter may use another grid of orders.
TOLERANCE = 5e-3

# Maps Renyi orders to divergences.
Divergence = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class SkellamSum:
    """Noise of a sum whose clients have added Skellam noise.

    Attributes:
        groups: For each group of tensors: largest squared l2 norm of a client's integers, variance
            of the sum's noise, and number of values.
        takes_part: Probability with which a client secretly decides to contribute its values.
    """

    groups: tuple[tuple[int, float, int], ...]
    takes_part: Fraction


@functools.lru_cache(maxsize=64)
def skellam_divergences(noise: SkellamSum) -> np.ndarray:
    """Returns the divergences of a sum with this noise (Agarwal, Kairouz, Liu 2021, Thm. 3.5)."""

    def combined(orders: np.ndarray) -> np.ndarray:
        total = np.zeros(len(orders))
        for squared, mu, size in noise.groups:
            if mu == 0:
                return np.full(len(orders), math.inf if squared else 0.0)
            # The l1 norm of integers is at most their squared l2 norm.
            l1 = min(math.sqrt(size * squared), squared)
            rest = np.minimum(((2 * orders - 1) * squared + 6 * l1) / (4 * mu**2), 1.5 * l1 / mu)
            total = total + orders * squared / (2 * mu) + rest
        return total

    return poisson_sampled(combined, float(noise.takes_part))


def composed_epsilon(sums: Mapping[SkellamSum, int], delta: float) -> float:
    """Returns a client's epsilon, given the number of its sums at each noise level."""
    total = np.zeros(len(ORDERS))
    for noise, count in sums.items():
        total = total + count * skellam_divergences(noise)
    return epsilon_from_divergences(total, delta)


def epsilon_from_divergences(divergences: np.ndarray, delta: float) -> float:
    """Returns epsilon from divergences at `ORDERS` (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    if not divergences.any():
        return 0.0
    if not 0 < delta < 1:
        return math.inf if delta <= 0 else 0.0
    bounds = divergences + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.min(bounds)))


def poisson_sampled(divergence: Divergence, rate: float) -> np.ndarray:
    """Returns the divergences of a release with Poisson sampling (Zhu, Wang 2019, Theorem 5).

    Args:
        divergence: Divergence of the release between cohorts with and without a client, in both
            directions.
        rate: Probability that a client takes part, above 0.
    """

    def at(order: int, terms: np.ndarray) -> float:
        j = np.arange(2, order + 1)
        # In the theorem, terms with j > 2 have a factor of 3.
        factors = np.where(j == 2, 0.0, math.log(3))
        shares = (order - j) * math.log1p(-rate) + j * math.log(rate)
        first = (order - 1) * math.log1p(-rate) + math.log(order * rate - rate + 1)
        logs = _log_binomials(order, j) + shares + factors + (j - 1) * terms
        return _log_sum(np.append(logs, first))

    return _amplified(divergence, rate, at)


def sampled_without_replacement(divergence: Divergence, rate: float) -> np.ndarray:
    """Returns the divergences of a release with fixed-size cohorts (Wang et al. 2019, Theorem 9).

    Args:
        divergence: Divergence of the release between cohorts that differ in one client.
        rate: Cohort size as a fraction of all clients, above 0.
    """

    def at(order: int, terms: np.ndarray) -> float:
        j = np.arange(2, order + 1)
        second = float(terms[0])
        expm1 = second + math.log(-math.expm1(-second)) if second > 0 else -math.inf
        smaller = min(math.log(4) + expm1, math.log(2) + second)
        values = np.where(j == 2, smaller, math.log(2) + (j - 1) * terms)
        return _log_sum(np.append(j * math.log(rate) + _log_binomials(order, j) + values, 0.0))

    return _amplified(divergence, rate, at)


def _amplified(
    divergence: Divergence, rate: float, at: Callable[[int, np.ndarray], float]
) -> np.ndarray:
    plain = divergence(ORDERS)
    if rate == 1 or not np.isfinite(plain).all():
        return plain
    # Divergences never decrease with the order, so the next integer order gives an upper bound.
    whole = np.maximum(np.ceil(ORDERS), 2).astype(int)
    terms = divergence(np.arange(2.0, _MAX_SAMPLED_ORDER + 1))
    sampled = {n: at(n, terms[: n - 1]) / (n - 1) for n in range(2, _MAX_SAMPLED_ORDER + 1)}
    return np.minimum(plain, [sampled.get(int(order), math.inf) for order in whole])


def _log_binomials(order: int, j: np.ndarray) -> np.ndarray:
    return np.array(
        [math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in j]
    )


def _log_sum(logs: np.ndarray) -> float:
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest))))


def gaussian(sensitivity: float) -> Divergence:
    """Returns the divergence of Gaussian noise.

    Args:
        sensitivity: Distance between neighbouring sums, in standard deviations of the noise.
    """
    return lambda orders: orders * sensitivity**2 / 2


def poisson_sampled_gaussian(noise_multiplier: float, rate: float) -> np.ndarray:
    """Returns the divergences of Gaussian noise with Poisson sampling.

    The divergence at order a is log(A) / (a - 1), A = E[((1 - q) + q exp(u / z - 1 / (2 z^2)))^a],
    for a standard normal u, sampling rate q and noise multiplier z (Mironov, Talwar, Zhang 2019,
    section 3.3). The expectation is a sum over an evenly spaced grid of u.
    """
    plain = gaussian(1 / noise_multiplier)(ORDERS)
    if rate == 1:
        return plain
    step = min(1.0, noise_multiplier) / _STEPS
    sampled = ORDERS <= _MAX_SAMPLED_ORDER
    u = np.arange(-_FAR, _MAX_SAMPLED_ORDER / noise_multiplier + _FAR, step)
    loss = u / noise_multiplier - 1 / (2 * noise_multiplier**2)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + loss)
    density = math.log(step / math.sqrt(2 * math.pi)) - u**2 / 2
    plain[sampled] = [_log_sum(density + a * ratio) / (a - 1) for a in ORDERS[sampled]]
    return plain


def gaussian_epsilon(sensitivity: float, delta: float) -> float:
    """Returns the exact epsilon of one Gaussian release (Balle, Wang 2018, Theorem 8).

    Args:
        sensitivity: Distance d between neighbouring releases, in standard deviations of the noise;
            sqrt(d_1^2 + ... + d_n^2) for n releases.
    """
    if sensitivity == 0:
        return 0.0
    if math.isinf(sensitivity):
        return math.inf

    def exceeds(epsilon: float) -> bool:
        near, far = (
            sensitivity / 2 - epsilon / sensitivity,
            -sensitivity / 2 - epsilon / sensitivity,
        )
        log_second = epsilon + _log_normal_cdf(far)
        return math.exp(_log_normal_cdf(near)) - math.exp(min(log_second, 0.0)) > delta

    low, high = 0.0, 1.0
    while exceeds(high):
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def epsilon_lower_bound(
    noise_multiplier: float, rate: float, rounds: int, delta: float, sensitivity: float
) -> float:
    """Returns a lower bound on the epsilon of Gaussian sums over sampled cohorts.

    The bound assumes an attacker who only sees the total over all rounds, and compares it with a
    threshold. The client takes part in a binomial number of rounds, and changes the total by 1 in
    each. With sensitivity 2, the neighbouring client changes it by -1 in the same rounds.
    """
    counts = np.arange(rounds + 1)
    logs = _log_binomials(rounds, counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = logs + np.where(counts, counts * np.log(rate), 0.0)
        logs = logs + np.where(rounds - counts, (rounds - counts) * np.log1p(-rate), 0.0)
    kept = logs > max(logs) - 60
    counts, logs = counts[kept], logs[kept]
    deviation = noise_multiplier * math.sqrt(rounds)
    mean, spread = rate * rounds, math.hypot(deviation, math.sqrt(rate * rounds))
    best = 0.0
    for threshold in np.linspace(mean - 10 * spread, mean + 10 * spread, _THRESHOLDS):
        above = [_log_normal_cdf((k - threshold) / deviation) for k in counts]
        shift = 0.0 if sensitivity == 1 else 1.0
        others = [_log_normal_cdf((-shift * k - threshold) / deviation) for k in counts]
        power = math.exp(_log_sum(logs + above)) - delta
        if power > 0:
            best = max(best, math.log(power) - _log_sum(logs + others))
    return best


def _log_normal_cdf(x: float) -> float:
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    # Use the asymptotic series, whose first omitted term is below 1e-7 of the sum.
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)


def tree_sensitivity(rounds: Iterable[int], last: int, restart_every: int | None) -> float:
    """Returns the l2 distance, in clip norms, by which one client changes the vector of tree nodes.

    A tree node at height h sums 2^h rounds. A client changes the node by one clip norm for each of
    these rounds in which it took part (Kairouz et al. 2021, DP-FTRL).

    Args:
        rounds: Rounds in which the client took part, from 1.
        last: Number of rounds so far. Incomplete tree nodes are not released.
        restart_every: Number of rounds per tree; None for one tree over all rounds.
    """
    size, counts = restart_every or last, dict[tuple[int, int, int], int]()
    for number in rounds:
        tree, place = divmod(number - 1, size)
        released = min(size, last - tree * size)
        for height in range(released.bit_length()):
            node = place >> height
            if (node + 1) << height <= released:
                counts[tree, height, node] = counts.get((tree, height, node), 0) + 1
    return math.sqrt(sum(count**2 for count in counts.values()))
