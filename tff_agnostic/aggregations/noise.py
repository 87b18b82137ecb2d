"""Kinds of noise: the server's, functions of the release's number, and the clients' Skellam noise.

On the server, `gaussian` is fresh noise for each release. `TreeResidual` is the noise of tree
aggregation (DP-FTRL, Kairouz et al. 2021): after t releases the noises add up to those of the nodes
of a binary tree which cover 1 to t, so that all prefix sums together cost a logarithm of the
rounds. `noise_generators` draws the numbers themselves.

Clients add symmetric Skellam noise, the difference of two Poisson numbers of equal means. A sum
over clients is Skellam noise too, with the sum of the variances. Numbers are looked up in a table
of the distribution, with one random number of 64 bits for each (Walker 1977, Vose 1991: columns of
equal probability, which two values share). Noise too wide for a table is the sum of several numbers
of one.
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

# Distance between the numbers of different trees' nodes.
_TREE = 2**40
_WORD_BITS = 64
# Bits of the largest table, which has half a megabyte.
_MAX_TABLE_BITS = 16
# -log of the probability of all values beyond a table.
_LOG_INVERSE = (_WORD_BITS + 1) * math.log(2)
_DIGITS = 40


class Draw(Protocol):
    """Draws the noise of all values of a release, or of one of them."""

    def __call__(self, level: tf.Tensor, number: tf.Tensor, /) -> tf.Tensor:
        """Returns noise that no other level or number has.

        Args:
            level: Level of a node of a tree, int64 scalar below 64; 0 for other noise.
            number: Number of the node, or of the release, int64 scalar.
        """


class Noise(Protocol):
    """A kind of noise."""

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec, /) -> tf.Tensor:
        """Returns the noise of a release.

        Args:
            release: Number of the release, int64 scalar, from 0.
            spec: Spec of the numbers that `draw` returns.
        """


class Release(NamedTuple):
    """A release, and the secret key of its noise.

    Attributes:
        key: The secret, int64, as long as the generator's keys.
        exchange: Number of the communication step in its round.
        number: Number of earlier releases, int64 scalar.
    """

    key: tf.Tensor
    exchange: int
    number: tf.Tensor


class NoisedGroup(NamedTuple):
    """Values that get noise of one standard deviation, z_g C_g.

    Attributes:
        positions: Positions of the values in the release.
        multiplier: z_g, float64 scalar.
        limit: C_g, the bound of their joint l2 norm, float64 scalar.
    """

    positions: Sequence[int]
    multiplier: tf.Tensor
    limit: tf.Tensor


def gaussian(draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns noise that is independent of all other releases'."""
    del spec
    return draw(tf.constant(0, tf.int64), release)


@dataclasses.dataclass(frozen=True)
class TreeResidual:
    """Tree aggregation: the noise of the prefix sum up to a release, less that of the one before.

    With t = m 2^j, m odd, the nodes that cover 1 to t are those that cover 1 to t - 1 with j of
    them replaced by one, of level j.

    Attributes:
        restart_every: Releases of one tree, after which a new one begins; None for a single tree.
    """

    restart_every: Optional[int] = None

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Returns the noise; see `Noise`."""
        tree, t = tf.constant(0, tf.int64), release + 1
        if self.restart_every is not None:
            tree, t = release // self.restart_every, release % self.restart_every + 1

        def node(level: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            # The node of this level that ends with a release, or holds it.
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
        entries: int64 [2^b]. A random word belongs to the column c of its last b bits. If its
            other bits are less, as a signed number, than those of entries[c], it stands for c,
            otherwise for the last b bits of entries[c]; in both cases less 2^(b - 1).
        bits: b.
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
        words: Numbers of 64 random bits, int64 [`skellam_words` of the first variance].
        variances: The variances to choose from, ascending; of several the last has a table.
        which: Index of the noise's variance, an integer scalar; None if there is one.
    """
    table = skellam_table(variances[-1])
    if table is not None:
        entries = table.entries
        if which is not None:
            # Tables of equal size, one after the other.
            others_too = [alias_table(variance, table.bits) for variance in variances[:-1]]
            entries = np.concatenate([*others_too, entries])
        return _looked_up(words, entries, table.bits, which)
    (variance,) = variances
    # Sums of Skellam numbers are Skellam numbers.
    parts = num_parts(variance)
    of_part = skellam_table(variance / parts)
    assert of_part is not None
    numbers = _looked_up(words, *of_part)
    return tf.reduce_sum(tf.reshape(numbers, [parts, size]), axis=0)


def skellam_words(variance: float, size: int) -> int:
    """Returns the number of random words that noise takes; arguments are those of `skellam`."""
    return size * num_parts(variance)


def beyond_sums(variance: float, num_clients: int) -> float:
    """Returns a bound on the probability that a sum of noise is larger than any sum of tables.

    It is Chernoff's bound of the Skellam distribution, for the sums of both signs.

    Args:
        variance: Variance of the noise of one client.
        num_clients: Number of clients whose noise is summed.
    """
    if variance == 0:
        return 0.0
    parts = num_parts(variance)
    of_part = variance / parts
    largest = _largest_number(of_part)
    root = math.hypot(largest, of_part)
    exponent = largest * math.asinh(largest / of_part) - (root - of_part)
    return min(1.0, 2 * math.exp(-num_clients * parts * exponent))


@functools.lru_cache(maxsize=64)
def _largest_number(variance: float) -> int:
    """Returns the largest number of a variance's table: larger ones have no word."""
    counts = _counts(variance, 2 ** (_table_bits(variance) - 1) - 1)
    return max(k for k, count in enumerate(counts) if count)


def num_parts(variance: float) -> int:
    """Returns the least number of equal parts of a variance that are small enough for a table."""
    largest = 2 ** (_MAX_TABLE_BITS - 1) - 1
    # The variance at which `_table_bits` is largest, solved for it.
    widest = (largest**2 - 2 * largest * _LOG_INVERSE / 3) / (2 * _LOG_INVERSE)
    return max(1, math.ceil(variance / widest))


def _looked_up(
    words: tf.Tensor, entries: np.ndarray, bits: int, which: Optional[tf.Tensor] = None
) -> tf.Tensor:
    """Returns a number of a table for each word; `which` of several tables in one array."""
    last_bits = tf.constant(2**bits - 1, tf.int64)
    columns = tf.bitwise.bitwise_and(words, last_bits)
    places = columns if which is None else columns + tf.cast(which, tf.int64) * 2**bits
    found = tf.gather(tf.constant(entries), places)
    others = tf.bitwise.bitwise_and(found, last_bits)
    # If both are equal before their last bits, the word is then not less.
    is_first = tf.bitwise.bitwise_or(words, last_bits) < found
    return tf.where(is_first, columns, others) - 2 ** (bits - 1)


def clients_of_a_table(variance: float, num_clients: int) -> int:
    """Returns how many clients' joint noise fits into a table: a power of two, at least 1.

    Args:
        variance: Variance of the noise of one client.
        num_clients: Largest number to return, from 1.
    """
    found = 1
    while 2 * found <= num_clients and _table_bits(2 * found * variance) <= _MAX_TABLE_BITS:
        found *= 2
    return found


@functools.lru_cache(maxsize=64)
def skellam_table(variance: float) -> Optional[SkellamTable]:
    """Returns the table of a variance; None if it has more than 2^16 columns.

    Each value but 0 has a share of the words that is its probability, rounded to a multiple of
    2^-64; 0 has the rest. Values whose probability is below 2^-65 have no word; see `beyond_sums`.
    """
    bits = _table_bits(variance)
    return None if bits > _MAX_TABLE_BITS else SkellamTable(alias_table(variance, bits), bits)


@functools.lru_cache(maxsize=64)
def alias_table(variance: float, bits: int) -> np.ndarray:
    """Returns the entries of the table of a variance with 2^bits columns; see `SkellamTable`."""
    counts = _counts(variance, 2 ** (bits - 1) - 1)
    return _alias_table([0, *counts[:0:-1], *counts], bits)


def _table_bits(variance: float) -> int:
    # Beyond t a tail has less than 2 exp(-t^2 / (2 (variance + t / 3))).
    third = _LOG_INVERSE / 3
    largest = math.ceil(third + math.sqrt(third**2 + 2 * variance * _LOG_INVERSE))
    return max(1, (2 * largest).bit_length())


def _counts(variance: float, largest: int) -> list[int]:
    """Returns how many of 2^64 words are 0, 1 and so on up to `largest`; -k has as many as k.

    The probability of k is exp(-v) I_k(v), of the modified Bessel function, v the variance. Ratios
    follow from I_{k-1} = I_{k+1} + (2 k / v) I_k, from far above, where it hardly matters what one
    begins with (Miller), and their sum is known.
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
    # The remainder of rounding.
    counts[0] += 2**_WORD_BITS - counts[0] - 2 * sum(counts[1:])
    return counts


def _alias_table(counts: list[int], bits: int) -> np.ndarray:
    """Returns the entries of a table, of how many of 2^64 words each of its 2^b values has."""
    in_column = 2 ** (_WORD_BITS - bits)
    firsts, others = alias_columns(counts, in_column)
    # A column without another value has it twice.
    thresholds = [first % in_column - in_column // 2 for first in firsts]
    return np.array([(t << bits) | other for t, other in zip(thresholds, others)], np.int64)


def alias_columns(counts: list[int], in_column: int) -> tuple[list[int], list[int]]:
    """Returns columns of equal size that hold all choices of some values (Vose 1991).

    Args:
        counts: How many choices each value has, as many together as all columns.
        in_column: Choices of a column. Each value has one column.

    Returns:
        How many choices of each column are its own value's, and to which value the others belong;
        its own value if there are no others.
    """
    left = list(counts)
    others = list(range(len(left)))
    small = [i for i, count in enumerate(left) if count < in_column]
    large = [i for i, count in enumerate(left) if count >= in_column]
    while small:
        i, j = small.pop(), large[-1]
        others[i] = j
        left[j] -= in_column - left[i]
        if left[j] < in_column:
            small.append(large.pop())
    return left, others
