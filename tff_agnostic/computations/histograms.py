"""Distributions over clients that a server can learn from sums: histograms on a fixed grid.

Each client adds 1 to the bin nearest to its value, which then stands for it; quantiles are
interpolated between neighbouring clients' values, superquantiles are means of the worst clients'.
On a linear grid the error of both is at most half a step, 0.0025 over [0, 1]; on the logarithmic
one at most 2.74% of the number itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable, Union

import numpy as np

from tff_agnostic.base.later import tf


@dataclasses.dataclass(frozen=True)
class LinearGrid:
    """Centres 0 to `upper` at a constant distance, by default upper / 200."""

    upper: float = 1.0
    num_bins: int = 201

    def bin_of(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the index of the nearest centre, int32, of values of any shape."""
        nearest = tf.round(values / self.upper * (self.num_bins - 1))
        return tf.cast(tf.clip_by_value(nearest, 0, self.num_bins - 1), tf.int32)

    def centers(self) -> np.ndarray:
        """Returns the centres, float64 [num_bins]."""
        return _fixed(np.linspace, 0.0, self.upper, self.num_bins)

    def edge(self, positions: np.ndarray) -> np.ndarray:
        """Returns where bins begin, float64, of positions of any shape; those outside go on."""
        return (np.asarray(positions) - 0.5) * (self.upper / (self.num_bins - 1))


@dataclasses.dataclass(frozen=True)
class LogGrid:
    """Centres from 1e-6 to 1e6 at a constant ratio; what is smaller or larger joins the ends."""

    lower: float = 1e-6
    upper: float = 1e6
    num_bins: int = 513

    def bin_of(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the index of the nearest centre on a log scale, int32."""
        span = math.log(self.upper / self.lower)
        positions = tf.math.log(tf.maximum(values, self.lower) / self.lower) / span
        nearest = tf.round(positions * (self.num_bins - 1))
        return tf.cast(tf.clip_by_value(nearest, 0, self.num_bins - 1), tf.int32)

    def centers(self) -> np.ndarray:
        """Returns the centres, float64 [num_bins]."""
        return _fixed(np.geomspace, self.lower, self.upper, self.num_bins)

    def edge(self, positions: np.ndarray) -> np.ndarray:
        """Returns where bins begin, float64, of positions of any shape; those outside go on."""
        log_ratio = math.log(self.upper / self.lower) / (self.num_bins - 1)
        return self.lower * np.exp((np.asarray(positions) - 0.5) * log_ratio)


Grid = Union[LinearGrid, LogGrid]


@functools.lru_cache(maxsize=32)
def _fixed(space: Callable[..., np.ndarray], lower: float, upper: float, num: int) -> np.ndarray:
    # A report asks for the same ones some thousand times.
    found = space(lower, upper, num)
    found.flags.writeable = False
    return found


@dataclasses.dataclass(frozen=True)
class SizeGrid:
    """Numbers of examples by powers of two: bin i holds 2^i to 2^(i + 1) - 1, the last one more."""

    num_bins: int = 24

    def holds(self, count: tf.Tensor) -> tf.Tensor:
        """Returns which bin a number of examples is in, boolean [num_bins]; none holds 0."""
        lower = self.lower()
        # Compared: a logarithm may be a little less than a whole number.
        upper = np.append(lower[1:], np.iinfo(np.int64).max)
        count = tf.cast(count, tf.int64)
        return (count >= lower) & (count < upper)

    def lower(self) -> np.ndarray:
        """Returns the smallest number of examples of each bin, int64 [num_bins]."""
        return 2 ** np.arange(self.num_bins, dtype=np.int64)


def quantile(grid: Grid, counts: np.ndarray, q: float) -> float:
    """Returns the q-quantile of the clients of a histogram, as NumPy's default method has it.

    Of n sorted values it is the one at position q * (n - 1), counted from 0; between two positions
    it is interpolated linearly. (Hyndman and Fan 1996, definition 7.)

    Args:
        counts: Clients in each bin, int [num_bins].
        q: In [0, 1].

    Returns:
        The quantile; NaN if there are no clients.
    """
    total = int(counts.sum())
    if total == 0:
        return math.nan
    # Rounded first: 0.7 * 10 is a little less than 7, and the value at 7 would be left out.
    position = round(q * (total - 1), 6)
    below = math.floor(position)
    ranks = np.cumsum(counts)
    centers = grid.centers()
    lower, upper = (
        centers[np.searchsorted(ranks, k, "right")] for k in (below, math.ceil(position))
    )
    return float(lower + (position - below) * (upper - lower))


def superquantile(
    grid: Grid, counts: np.ndarray, share: float, worst_is_largest: bool = True
) -> float:
    """Returns the mean of the worst clients of a histogram, all of them with the same weight.

    Of n clients they are the worst `share` * n; the one at the boundary counts with the part of it
    that is left. It is the conditional value at risk of the histogram, exactly, and that of the
    clients' own values up to the grid: no order statistic is further off than a single value.

    Args:
        counts: Clients in each bin, int [num_bins].
        share: In (0, 1]; with 1 it is the mean, and below 1 / n the worst client's value.
        worst_is_largest: Whether large values are bad, or small ones.

    Returns:
        The superquantile; NaN if there are no clients.
    """
    total = int(counts.sum())
    if total == 0:
        return math.nan
    order = slice(None, None, -1 if worst_is_largest else 1)
    values, clients = grid.centers()[order], np.asarray(counts, np.float64)[order]
    wanted = share * total
    reached = np.minimum(np.cumsum(clients), wanted)
    return float(np.diff(reached, prepend=0.0) @ values / wanted)
