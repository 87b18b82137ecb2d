"""Kinds of noise: the server's independent or tree noise, and clients' Skellam noise.

Each noisy sum that the server obtains is a release. `gaussian` is independent noise for each
release. `TreeResidual` is the noise of tree aggregation (DP-FTRL, Kairouz et al. 2021). After t
releases, the total noise is a sum over the nodes of a binary tree that cover 1 to t. The privacy
cost of all prefix sums therefore grows only with the logarithm of the rounds. The module
`noise_generators` draws the random numbers.

Clients add symmetric Skellam noise, the difference of two Poisson numbers with equal means. A sum
over clients is Skellam noise with the summed variance. One random 64-bit word per number selects an
entry of an alias table (Walker 1977, Vose 1991), whose columns have equal probability. Each column
contains two values. If a distribution is too wide for a table, several numbers from one table are
added.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple, Optional, Protocol

import numpy as np

from tff_agnostic.base.later import tf

# Offset between node indices of consecutive trees.
_TREE = 2**40
_WORD_BITS = 64
# Bits of the column index in the largest table, which takes half a megabyte.
_MAX_TABLE_BITS = 16
# Values outside of a table have at most the probability exp(-_LOG_INVERSE).
_LOG_INVERSE = (_WORD_BITS + 1) * math.log(2)
_DIGITS = 40


class Draw(Protocol):
    """Draws noise for all values of a release, or for one value."""

    def __call__(self, level: tf.Tensor, number: tf.Tensor, /) -> tf.Tensor:
        """Returns noise that differs for every pair of level and number.

        Args:
            level: Level of a node in a tree, int64 scalar below 64; 0 for other noise.
            number: Index of the node, or release number, int64 scalar.
        """


class Noise(Protocol):
    """A kind of server noise, as a function of the release."""

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec, /) -> tf.Tensor:
        """Returns the noise of a release.

        Args:
            release: Release number, int64 scalar, from 0.
            spec: Spec of the noise that `draw` returns.
        """


class Release(NamedTuple):
    """Position of a noisy sum (a release) in a run, with the secret key of its noise.

    Attributes:
        key: Secret key, int64, as long as the generator requires.
        exchange: Index of the communication step in its round.
        number: Number of earlier releases, int64 scalar.
    """

    key: tf.Tensor
    exchange: int
    number: tf.Tensor


class NoisedGroup(NamedTuple):
    """Values that get noise of the same standard deviation, z_g C_g.

    Attributes:
        positions: Positions of the values in the flattened release.
        multiplier: Noise multiplier z_g, float64 scalar.
        limit: C_g, the bound of their joint l2 norm, float64 scalar.
    """

    positions: Sequence[int]
    multiplier: tf.Tensor
    limit: tf.Tensor


def gaussian(draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns noise that is independent of the noise of all other releases."""
    del spec
    return draw(tf.constant(0, tf.int64), release)


@dataclasses.dataclass(frozen=True)
class TreeResidual:
    """Tree aggregation: a prefix sum's noise, less the noise of the previous prefix sum.

    Let t = m 2^j with m odd. The nodes that cover 1 to t are the nodes that cover 1 to t - 1,
    except that one node of level j replaces j nodes.

    Attributes:
        restart_every: Number of releases per tree, after which a new tree starts; None for a single
            tree.
    """

    restart_every: Optional[int] = None

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """See `Noise`."""
        tree, t = tf.constant(0, tf.int64), release + 1
        if self.restart_every is not None:
            tree, t = release // self.restart_every, release % self.restart_every + 1

        def node(level: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            # The node of this level that contains the release.
            index = tf.bitwise.right_shift(end, level)
            return draw(level, index + tree * _TREE)

        def is_covered(level: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
            del noise
            return tf.equal(tf.bitwise.right_shift(t, level) % 2, 0)

        def replaced(level: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return level + 1, noise - node(level, t - 1)

        start = (tf.constant(0, tf.int64), tf.zeros(spec.shape, spec.dtype))
        level, without_replaced = tf.while_loop(is_covered, replaced, start)
        return without_replaced + node(level, t)


class SkellamTable(NamedTuple):
    """An alias table of a symmetric Skellam distribution, in 2^b columns.

    Attributes:
        entries: Alias table, int64 [2^b]. The last b bits of a random word select the column c. The
            other bits, as a signed number, are compared with the other bits of entries[c]: if they
            are less, the value is c - 2^(b - 1). Otherwise it is the last b bits of entries[c],
            less 2^(b - 1).
        bits: Number b of bits of a column's index.
    """

    entries: np.ndarray
    bits: int


def skellam(
    words: tf.Tensor,
    variances: Sequence[float],
    size: int,
    which: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Returns symmetric Skellam noise, int64 [size].

    Args:
        words: Random 64-bit words, int64 [`skellam_words` of the first variance].
        variances: Variances to choose from, in ascending order. If there are several, the last one
            must fit a table.
        which: Index of the noise's variance, an integer scalar; None if there is a single variance.
    """
    table = skellam_table(variances[-1])
    if table is not None:
        entries = table.entries
        if which is not None:
            other_tables = [alias_table(variance, table.bits) for variance in variances[:-1]]
            entries = np.concatenate([*other_tables, entries])
        return _looked_up(words, entries, table.bits, which)
    (variance,) = variances
    # Sums of independent Skellam numbers are Skellam numbers.
    parts = num_parts(variance)
    part_table = skellam_table(variance / parts)
    assert part_table is not None
    numbers = _looked_up(words, *part_table)
    return tf.reduce_sum(tf.reshape(numbers, [parts, size]), axis=0)


def skellam_words(variance: float, size: int) -> int:
    """Returns the number of random words that `skellam` needs for this variance and size."""
    return size * num_parts(variance)


def beyond_sums(variance: float, num_clients: int) -> float:
    """Bounds the probability that an exact noise sum exceeds every sum that tables can yield.

    This is the Chernoff bound of the Skellam distribution, for both signs of the sum.

    Args:
        variance: Variance of the noise of one client.
        num_clients: Number of clients whose noise is summed.
    """
    if variance == 0:
        return 0.0
    parts = num_parts(variance)
    part_variance = variance / parts
    largest = _largest_number(part_variance)
    root = math.hypot(largest, part_variance)
    exponent = largest * math.asinh(largest / part_variance) - (root - part_variance)
    return min(1.0, 2 * math.exp(-num_clients * parts * exponent))


@functools.lru_cache(maxsize=64)
def _largest_number(variance: float) -> int:
    """Returns the largest number that the table of a variance yields."""
    counts = _counts(variance, 2 ** (_table_bits(variance) - 1) - 1)
    return max(k for k, count in enumerate(counts) if count)


def num_parts(variance: float) -> int:
    """Returns the minimum number of equal parts of a variance, so that each part fits a table."""
    largest = 2 ** (_MAX_TABLE_BITS - 1) - 1
    # The variance for which `_table_bits` is `_MAX_TABLE_BITS`.
    widest = (largest**2 - 2 * largest * _LOG_INVERSE / 3) / (2 * _LOG_INVERSE)
    return max(1, math.ceil(variance / widest))


def _looked_up(
    words: tf.Tensor, entries: np.ndarray, bits: int, which: Optional[tf.Tensor] = None
) -> tf.Tensor:
    """Looks up a number for each word; `which` selects one of several concatenated tables."""
    last_bits = tf.constant(2**bits - 1, tf.int64)
    columns = tf.bitwise.bitwise_and(words, last_bits)
    places = columns if which is None else columns + tf.cast(which, tf.int64) * 2**bits
    columns_entries = tf.gather(tf.constant(entries), places)
    others = tf.bitwise.bitwise_and(columns_entries, last_bits)
    # Set the word's last bits: only the leading bits count, and a word with equal ones is not less.
    is_first = tf.bitwise.bitwise_or(words, last_bits) < columns_entries
    return tf.where(is_first, columns, others) - 2 ** (bits - 1)


def max_clients_per_table(variance: float, num_clients: int) -> int:
    """Returns the maximum number of clients, a power of two, whose joint noise one table can hold.

    Args:
        variance: Variance of the noise of one client.
        num_clients: Maximum number to return, at least 1.
    """
    clients = 1
    while 2 * clients <= num_clients and _table_bits(2 * clients * variance) <= _MAX_TABLE_BITS:
        clients *= 2
    return clients


@functools.lru_cache(maxsize=64)
def skellam_table(variance: float) -> Optional[SkellamTable]:
    """Returns the alias table of a variance; None if it needs more than 2^16 columns.

    Each value's fraction of words is its probability, rounded to a multiple of 2^-64; the value 0
    gets all remaining words. Values with a probability below 2^-65 get no word; see `beyond_sums`.
    """
    bits = _table_bits(variance)
    return None if bits > _MAX_TABLE_BITS else SkellamTable(alias_table(variance, bits), bits)


@functools.lru_cache(maxsize=64)
def alias_table(variance: float, bits: int) -> np.ndarray:
    """Returns the entries of a variance's table with 2^bits columns; see `SkellamTable`."""
    counts = _counts(variance, 2 ** (bits - 1) - 1)
    return _alias_table([0, *counts[:0:-1], *counts], bits)


def _table_bits(variance: float) -> int:
    # The tail beyond t is below 2 exp(-t^2 / (2 (variance + t / 3))).
    third = _LOG_INVERSE / 3
    largest = math.ceil(third + math.sqrt(third**2 + 2 * variance * _LOG_INVERSE))
    return max(1, (2 * largest).bit_length())


def _counts(variance: float, largest: int) -> list[int]:
    """Returns the number of the 2^64 words that yield each value from 0 to `largest`.

    As many words yield -k as yield k. The probability of k is exp(-v) I_k(v) for the variance v,
    with the modified Bessel function I_k. Ratios follow from I_{k-1} = I_{k+1} + (2 k / v) I_k. The
    recursion starts far above `largest`, where the initial values hardly matter (Miller's
    algorithm), and the probabilities are normalised.
    """
    if variance == 0:
        return [2**_WORD_BITS] + [0] * largest
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        step = 2 / Decimal(variance)
        above, here = Decimal(0), Decimal(1)
        ratios = []
        for k in range(2 * largest + _DIGITS, 0, -1):
            above, here = here, above + k * step * here
            ratios.append(here)
        ratios.reverse()
        total = ratios[0] + 2 * sum(ratios[1:], Decimal(0))
        words = 2**_WORD_BITS / total
        counts = [int((ratio * words).to_integral_value()) for ratio in ratios[: largest + 1]]
    # The value 0 gets the words that rounding leaves over.
    counts[0] += 2**_WORD_BITS - counts[0] - 2 * sum(counts[1:])
    return counts


def _alias_table(counts: list[int], bits: int) -> np.ndarray:
    """Returns a table's entries; `counts` are the numbers of words that yield each value."""
    in_column = 2 ** (_WORD_BITS - bits)
    firsts, others = alias_columns(counts, in_column)
    # A column without a second value contains its own value twice.
    thresholds = [first % in_column - in_column // 2 for first in firsts]
    return np.array([(t << bits) | other for t, other in zip(thresholds, others)], np.int64)


def alias_columns(counts: list[int], in_column: int) -> tuple[list[int], list[int]]:
    """Distributes equally probable choices of values over columns of equal size (Vose 1991).

    Args:
        counts: Number of equally probable choices of each value; together they fill all columns.
        in_column: Number of choices per column. Each value has one column.

    Returns:
        Two lists with an entry per column: the number of choices that have the column's own value,
        and the value of the remaining choices. If none remain, the second is the column's own value
        as well.
    """
    remaining = list(counts)
    others = list(range(len(remaining)))
    small = [i for i, count in enumerate(remaining) if count < in_column]
    large = [i for i, count in enumerate(remaining) if count >= in_column]
    while small:
        i, j = small.pop(), large[-1]
        others[i] = j
        remaining[j] -= in_column - remaining[i]
        if remaining[j] < in_column:
            small.append(large.pop())
    return remaining, others
