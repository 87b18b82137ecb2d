"""Confidence intervals of what an evaluation reports, as far as sums over clients allow them.

All are two-sided and of the level `LEVEL`. What each of them takes for granted:

- A share of examples: Wilson's interval (1927), as if examples were independent. Those of one
  client mostly are alike, and then the interval is too narrow: sums do not tell by how much.
- The mean over clients: Student's, from the spread of the histogram of the clients' values.
- A percentile over clients: between two order statistics, by the binomial distribution of how many
  clients lie below (Conover 1999, section 3.2); no distribution is taken for granted.
- The superquantile over clients: Student's, from the spread of its influence function (Trindade et
  al. 2007), where its tail has `LEAST_IN_TAIL` clients at the least.

Clients are taken for a random sample of those that the model is for.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from tff_agnostic.later import scipy

LEVEL = 0.95
# With fewer the intervals of skewed tails are far too narrow.
LEAST_IN_TAIL = 10

# Lower and upper end; None where none can be given.
Interval = Optional[tuple[float, float]]


def share_interval(share: float, count: float) -> Interval:
    """Returns Wilson's interval of a share of `count` examples.

    Args:
        share: In [0, 1].
        count: Examples; with none there is no interval.
    """
    if not count > 0 or not 0 <= share <= 1:
        return None
    z = float(scipy.special.ndtri((1 + LEVEL) / 2))
    center = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def mean_interval(values: np.ndarray, clients: np.ndarray, mean: float) -> Interval:
    """Returns Student's interval of the mean over clients.

    None of fewer than two clients, or of clients that are all alike.

    Args:
        values: Values that clients have, [n].
        clients: How many have each of them, [n].
        mean: The mean over the clients, which the sums know better than the histogram.
    """
    return _students(np.asarray(values, np.float64), clients, mean)


def quantile_interval(values: np.ndarray, clients: np.ndarray, q: float) -> Interval:
    """Returns the interval of the q-quantile over clients; None of too few clients.

    Args:
        values: Values that clients have, ascending, [n].
        clients: How many have each of them, [n].
        q: In (0, 1).
    """
    ranks = np.cumsum(clients)
    total = int(ranks[-1]) if len(ranks) else 0
    if total < 2:
        return None
    alpha = 1 - LEVEL
    # P(fewer than `below` clients lie under the quantile) <= alpha / 2, and the same from above.
    below = _largest_unlikely(total, q, alpha / 2) + 1
    above = total - _largest_unlikely(total, 1 - q, alpha / 2)
    if below < 1 or above > total:
        return None
    low, high = (float(values[np.searchsorted(ranks, k)]) for k in (below, above))
    return low, high


def superquantile_interval(
    values: np.ndarray, clients: np.ndarray, share: float, worst_is_largest: bool
) -> Interval:
    """Returns Student's interval of the mean of the worst clients.

    None if the worst `share` of them are fewer than `LEAST_IN_TAIL`.

    Args:
        values: Values that clients have, [n].
        clients: How many have each of them, [n].
        share: Of all clients, in (0, 1].
        worst_is_largest: Whether large values are bad, or small ones.
    """
    total = float(np.sum(clients))
    if share * total < LEAST_IN_TAIL:
        return None
    sign = 1.0 if worst_is_largest else -1.0
    losses = sign * np.asarray(values, np.float64)
    order = np.argsort(-losses, kind="stable")
    reached = np.minimum(np.cumsum(np.asarray(clients, np.float64)[order]), share * total)
    mean = float(np.diff(reached, prepend=0.0) @ losses[order]) / (share * total)
    threshold = losses[order][np.searchsorted(reached, share * total)]
    influence = threshold + np.maximum(losses - threshold, 0.0) / share
    found = _students(influence, clients, mean)
    if found is None:
        return None
    low, high = sorted(sign * end for end in found)
    return low, high


def _students(values: np.ndarray, clients: np.ndarray, mean: float) -> Interval:
    total = float(np.sum(clients))
    if total < 2 or not np.all(np.isfinite(values)) or not math.isfinite(mean):
        return None
    weights = np.asarray(clients, np.float64) / total
    center = weights @ values
    variance = float(weights @ (values - center) ** 2) * total / (total - 1)
    if variance == 0:
        return None
    half = float(scipy.special.stdtrit(total - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / total)
    return mean - half, mean + half


def _largest_unlikely(total: int, q: float, probability: float) -> int:
    """Returns the largest k with P(Binomial(total, q) <= k) <= probability; -1 if there is none."""
    # The inverse in a real k, then the whole numbers beside it.
    guess = scipy.special.bdtrik(probability, total, q)
    k = -1 if math.isnan(guess) else math.floor(guess) + 1
    while k >= 0 and scipy.special.bdtr(min(k, total), total, q) > probability:
        k -= 1
    return k
