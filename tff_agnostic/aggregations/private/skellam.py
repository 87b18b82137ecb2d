"""Symmetric Skellam noise: the difference of two Poisson numbers of equal means.

A sum over clients is Skellam noise too, of the sum of the variances. Where the variance allows,
numbers are looked up in a table of the distribution that takes one random number of 64 bits for
each (Walker 1977, Vose 1991: columns of equal probability, which two values share). Wider noise is
drawn as it is defined, by TensorFlow's Poisson numbers, which are computed in float64.
"""

import decimal
import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

_WORD_BITS = 64
# Of the largest table: half a megabyte.
_MAX_TABLE_BITS = 16
_DIGITS = 40


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
    words: tf.Tensor, variances: Sequence[float], size: int, which: Optional[tf.Tensor] = None
) -> tf.Tensor:
    """Returns symmetric Skellam noise, int64 [size].

    Args:
        words: Numbers of 64 random bits, int64: as many as `size`, and no fewer than 2.
        variances: The variances to choose from, ascending; of several the last has a table.
        size: How many.
        which: Which of the variances the noise has, an integer scalar; None if there is one.
    """
    table = skellam_table(variances[-1])
    if table is None:
        (variance,) = variances
        means = tf.constant(variance / 2, tf.float64)
        counts = tf.random.stateless_poisson([2, size], words[:2], means, tf.int64)
        return counts[0] - counts[1]
    words = words if words.shape[0] == size else words[:size]
    last_bits = tf.constant(2**table.bits - 1, tf.int64)
    columns = tf.bitwise.bitwise_and(words, last_bits)
    if which is None:
        entries = tf.gather(tf.constant(table.entries), columns)
    else:
        # Tables of equal size, one after the other.
        others_too = [alias_table(variance, table.bits) for variance in variances[:-1]]
        tables = tf.constant(np.concatenate([*others_too, table.entries]))
        entries = tf.gather(tables, columns + tf.cast(which, tf.int64) * 2**table.bits)
    others = tf.bitwise.bitwise_and(entries, last_bits)
    # Of equal numbers before their last bits, the word is then not less.
    is_first = tf.bitwise.bitwise_or(words, last_bits) < entries
    return tf.where(is_first, columns, others) - 2 ** (table.bits - 1)


def clients_of_a_table(variance: float, num_clients: int) -> int:
    """Returns how many clients' noise together a table has room for: a power of two, at least 1.

    Args:
        variance: Of the noise of one client.
        num_clients: What the number is not to exceed, from 1.
    """
    found = 1
    while 2 * found <= num_clients and _table_bits(2 * found * variance) <= _MAX_TABLE_BITS:
        found *= 2
    return found


@functools.lru_cache(maxsize=64)
def skellam_table(variance: float) -> Optional[SkellamTable]:
    """Returns the table of a variance; None if it has more than 2^16 columns.

    Of every value but 0 the share of words is its probability, rounded to a multiple of 2^-64; 0
    has what is left. Values that the table leaves out have a probability of 2^-64 together.
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
    log_inverse = (_WORD_BITS + 1) * math.log(2)
    third = log_inverse / 3
    largest = math.ceil(third + math.sqrt(third**2 + 2 * variance * log_inverse))
    return max(1, (2 * largest).bit_length())


def _counts(variance: float, largest: int) -> list[int]:
    """Returns of 2^64 words how many are 0, 1 and so on up to `largest`; negative ones as many.

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
    # What rounding leaves over.
    counts[0] += 2**_WORD_BITS - counts[0] - 2 * sum(counts[1:])
    return counts


def _alias_table(counts: list[int], bits: int) -> np.ndarray:
    """Returns the entries of a table, of how many of 2^64 words each of its 2^b values has."""
    in_column = 2 ** (_WORD_BITS - bits)
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
    # A column without another value has it twice.
    thresholds = [count % in_column - in_column // 2 for count in left]
    return np.array([(t << bits) | other for t, other in zip(thresholds, others)], np.int64)
