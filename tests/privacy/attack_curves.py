"""Exact epsilons of attacks on noisy sums, computed without the package's accountants.

The attacked client sends +C, and all other clients -C, where C is the clip norm. In each round the
attacker observes a number from a mixture of normal distributions. The mixture depends on whether
the attacked client is present. An FFT convolves the rounds' privacy losses.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom, norm

# Integration range beyond the mixtures' means, in standard deviations, and its number of points.
_REACH, _GRID = 9.0, 4000
# Step and size of the grid of privacy losses.
_STEP, _SIZE = 5e-4, 2**18


class Seen(NamedTuple):
    """The distribution of a round's sum, in units of the clip norm.

    Attributes:
        without: (probability, value) of each possible sum without the client, before noise.
        with_client: (probability, value) of each possible sum with the client, before noise.
        deviation: Standard deviation of the noise.
        share: Probability of such a round.
    """

    without: Sequence[tuple[float, float]]
    with_client: Sequence[tuple[float, float]]
    deviation: float
    share: float = 1.0


def counted(n: int, clients: int, z: float, expected: int, share: float = 1.0) -> Seen:
    """Returns the distribution for a round with a public number n of clients.

    The attacked client's noise is always in the sum: without its values, the client sends zeros.
    """
    q = n / clients
    return Seen(
        [(1 - q, 0.0), (q, 1.0)], [(1 - q, 0.0), (q, 2.0)], z * (n / expected) ** 0.5, share
    )


def counted_sizes(clients: int, z: float, expected: int, least: int) -> list[Seen]:
    """Returns a distribution for each size of a Poisson cohort, with the size's probability."""
    sized = binom(clients, expected / clients)
    sizes = range(max(least, int(sized.ppf(1e-12))), int(sized.isf(1e-12)) + 1)
    return [counted(n, clients, z, expected, float(sized.pmf(n))) for n in sizes]


def coins_known(q: float, z: float) -> list[Seen]:
    """Returns the distribution for an attacker who knows which other clients take part."""
    return [Seen([(1.0, 0.0)], [(1 - q, 0.0), (q, 1.0)], z)]


def coins_secret(answering: int, expected: int, z: float) -> list[Seen]:
    """Returns the distribution for an attacker who does not know which other clients take part."""
    q = expected / answering
    others = binom(answering - 1, q)
    taking_part = range(int(others.ppf(1e-12)), int(others.isf(1e-12)) + 1)
    without = [(float(others.pmf(k)), float(-k)) for k in taking_part]
    drawn = [(q * chance, mean + 1) for chance, mean in without]
    return [Seen(without, [((1 - q) * chance, mean) for chance, mean in without] + drawn, z)]


def epsilon(rounds_seen: Sequence[Seen], rounds: int, delta: float) -> float:
    """Returns the minimum epsilon that holds if the attacked client is added or removed."""
    return max(
        _epsilon(_losses(rounds_seen, is_swapped), rounds, delta) for is_swapped in (False, True)
    )


def _losses(rounds_seen: Sequence[Seen], is_swapped: bool) -> np.ndarray:
    """Returns the distribution of a round's privacy loss on the grid of multiples of `_STEP`."""
    result = np.zeros(_SIZE)
    for seen in rounds_seen:
        means = [mean for _, mean in [*seen.without, *seen.with_client]]
        reach = _REACH * seen.deviation
        x, width = np.linspace(min(means) - reach, max(means) + reach, _GRID, retstep=True)
        logs = [_log_density(x, cases, seen.deviation) for cases in seen[:2]]
        without, with_client = logs[::-1] if is_swapped else logs
        weights = seen.share * width * np.exp(with_client)
        # Splitting a probability between the two nearest multiples keeps the mean.
        place = (with_client - without) / _STEP + _SIZE // 2
        low = np.floor(place).astype(int)
        result += np.bincount(low, weights * (low + 1 - place), _SIZE)
        result += np.bincount(low + 1, weights * (place - low), _SIZE)
    # A round without a released sum has the privacy loss 0.
    result[_SIZE // 2] += 1 - result.sum()
    return result


def _log_density(
    x: np.ndarray, cases: Sequence[tuple[float, float]], deviation: float
) -> np.ndarray:
    terms = [np.log(chance) + norm.logpdf(x, mean, deviation) for chance, mean in cases]
    density: np.ndarray = logsumexp(terms, axis=0)
    return density


def _epsilon(losses: np.ndarray, rounds: int, delta: float) -> float:
    together = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(losses)) ** rounds, _SIZE)
    total = np.maximum(np.fft.fftshift(together), 0.0)
    values = (np.arange(_SIZE) - _SIZE // 2) * _STEP
    # Bisection, as delta(epsilon) = E max(0, 1 - exp(epsilon - loss)) decreases.
    low, high = 0.0, float(values[-1])
    for _ in range(50):
        middle = (low + high) / 2
        above = values > middle
        if np.sum(total[above] * -np.expm1(middle - values[above])) > delta:
            low = middle
        else:
            high = middle
    return high
