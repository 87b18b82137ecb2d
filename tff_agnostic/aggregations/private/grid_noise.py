"""Gaussian noise in whole steps of a grid, and sums on that grid.

A normal number of floating point leaves gaps: with a known sum, the values that noise can turn it
into are those of no other sum, so that low bits tell sums apart which epsilon calls alike (Mironov
2012). Here nothing but a whole number of steps is ever released:

- **The sum is rounded** to the grid: a number x becomes r = round(x / g), g the step.
- **The noise is whole**, a normal number of standard deviation s = `DEVIATION` rounded to a whole
  number; r plus it is what is released, and everything else is made of that.
- **The account is the Gaussian mechanism's**, whichever it is: rounding noise that is added to a
  whole number rounds their sum, and what is made of a release costs nothing. What a client changes
  in r has to be at most s / z steps long for that; see `_stretch`.

**The noise is drawn as digits.** x_0 + m x_1 + m^2 x_2 has, of independent discrete Gaussians x_k
of standard deviation t, a distribution whose every probability is that of one discrete Gaussian of
s = t sqrt(1 + m^2 + m^4) to within a factor 1 +- 2^-290: m steps are t / 3.25, and the sums over
shifted grids that tell the two apart differ by 4 exp(-2 pi^2 (t / m)^2) (Poisson's summation
formula; Micciancio and Walter 2017 have the general case). Each digit is looked up in an alias
table (Walker 1977, Vose 1991) with 15 bits for the column and 64 for the choice in it, so that
probabilities are right to 2^-80. Together with the 2^-63 by which a discrete Gaussian differs from
a rounded one, a number is drawn with a total variation of at most 2^-62 from the one accounted for.
"""

import decimal
import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_agnostic.aggregations.private.integer_codec import pieces_of
from tff_agnostic.aggregations.private.noise import NoisedGroup
from tff_agnostic.aggregations.private.skellam import alias_columns

_DIGITS = 3
# t and m. The largest digit is 9.8 t: those beyond have a probability of 2^-73.
_DIGIT_DEVIATION, _BASE = 1664, 512
_COLUMN_BITS, _CHOICE_BITS = 15, 64
# s, of what `whole_gaussian` returns: about 2^28.7.
DEVIATION = _DIGIT_DEVIATION * math.sqrt(sum(_BASE ** (2 * k) for k in range(_DIGITS)))
# Random words of 64 bits for each number: one for the columns of all digits, and one for each.
WORDS = 1 + _DIGITS
# The largest noise multiplier of a group for which `_stretch` is at most 2 with 2^31 values.
MAX_MULTIPLIER = 4096.0
# A value is cut to so many times its group's bound, which is more clients than a round has.
_MAX_CLIENTS = 2.0**24
# What float64 changes in two values of that size, as a multiple of the bound: sums of integers are
# converted, divided and multiplied, and divided by the step, each to within 2^-53 of the value.
_FLOAT64 = _MAX_CLIENTS * 8 * 2.0**-53
# Steps, so that noise can be added in int64.
_LARGEST = 2.0**62
_PRECISION = 50


class _Table(NamedTuple):
    """An alias table of a digit: column c stands for c if a word is less than `firsts[c]`.

    Attributes:
        firsts: int64 [2^15].
        others: What it stands for otherwise, int16 [2^15].
    """

    firsts: np.ndarray
    others: np.ndarray


def whole_gaussian(words: tf.Tensor) -> tf.Tensor:
    """Returns normal numbers of standard deviation `DEVIATION`, rounded, int64 [n].

    Args:
        words: Numbers of 64 random bits, int64 [n `WORDS`].
    """
    of_columns, *choices = tf.unstack(tf.reshape(words, [WORDS, -1]))
    table = _table()
    firsts, others = tf.constant(table.firsts), tf.constant(table.others)
    half = 2 ** (_COLUMN_BITS - 1)
    total = tf.zeros_like(of_columns)
    for k, choice in enumerate(choices):
        shifted = tf.bitwise.right_shift(of_columns, tf.constant(k * _COLUMN_BITS, tf.int64))
        column = tf.bitwise.bitwise_and(shifted, tf.constant(2**_COLUMN_BITS - 1, tf.int64))
        is_first = choice < tf.gather(firsts, column)
        other = tf.cast(tf.gather(others, column), tf.int64)
        total += _BASE**k * (tf.where(is_first, column, other) - half)
    return total


def with_noise(
    values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup], steps: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns sums on the grid with noise, float64, and the standard deviation of each.

    Args:
        values: Sums, float64.
        groups: Which of them get noise, and how much.
        steps: Noise of standard deviation `DEVIATION` for all values of the groups, one after the
            other, int64.
    """
    stretch = _stretch(values, groups)
    shapes = [values[i].shape for group in groups for i in group.positions]
    noises = iter(pieces_of(steps, shapes))
    noisy, deviations = list(values), [tf.constant(0.0, tf.float64)] * len(values)
    for group in groups:
        deviation = group.multiplier * group.limit * stretch
        step = deviation / DEVIATION
        largest = _MAX_CLIENTS * group.limit
        for i in group.positions:
            value = tf.clip_by_value(values[i], -largest, largest)
            rounded = tf.round(tf.math.divide_no_nan(value, step))
            whole = tf.cast(tf.clip_by_value(rounded, -_LARGEST, _LARGEST), tf.int64)
            on_grid = step * tf.cast(whole + next(noises), tf.float64)
            # Without noise there is no grid.
            noisy[i] = tf.where(step > 0, on_grid, values[i])
            deviations[i] = deviation
    return noisy, deviations


def values_of(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> int:
    """Returns how many numbers get noise."""
    return sum(values[i].shape.num_elements() for group in groups for i in group.positions)


def _stretch(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> tf.Tensor:
    """Returns by how much more than z C the noise deviates, so that z holds after rounding.

    Rounding to the grid moves each of a group's d values by half a step at most, with the client
    and without it. What the client changes grows from C to at most C (1 + e), where
    e = sqrt(d) (g / C + `_FLOAT64`) and g = z C (1 + e) / s. With the largest
    h = sqrt(d) (z / s + `_FLOAT64`) of any group, 1 + e = 1 / (1 - h) is enough for every group.
    As it is the same for all of them, it is also enough where they are clipped as one vector.
    """
    shares = []
    for group in groups:
        size = sum(values[i].shape.num_elements() for i in group.positions)
        shares.append(math.sqrt(size) * (group.multiplier / DEVIATION + _FLOAT64))
    return 1.0 / (1.0 - tf.reduce_max(tf.stack(shares)))


@functools.cache
def _table() -> _Table:
    firsts, others = alias_columns(_counts(), 2**_CHOICE_BITS)
    # Words are signed numbers; a column that is full has itself as the other.
    signed = [min(first, 2**_CHOICE_BITS - 1) - 2 ** (_CHOICE_BITS - 1) for first in firsts]
    return _Table(np.array(signed, np.int64), np.array(others, np.int16))


def _counts() -> list[int]:
    """Returns how many of 2^79 choices each digit has, from the least one on; the first has none.

    The probability of k is proportional to exp(-k^2 / (2 t^2)); 0 has what rounding leaves over.
    """
    half = 2 ** (_COLUMN_BITS - 1)
    all_choices = 2 ** (_COLUMN_BITS + _CHOICE_BITS)
    with decimal.localcontext() as context:
        context.prec = _PRECISION
        # exp(-(k + 1)^2 q) = exp(-k^2 q) exp(-(2 k + 1) q)
        weight, factor = Decimal(1), (Decimal(-1) / (2 * _DIGIT_DEVIATION**2)).exp()
        square, weights = factor * factor, [Decimal(1)]
        for _ in range(1, half):
            weight *= factor
            factor *= square
            weights.append(weight)
        unit = all_choices / (2 * sum(weights) - 1)
        counts = [int((weight * unit).to_integral_value()) for weight in weights]
    counts[0] += all_choices - counts[0] - 2 * sum(counts[1:])
    return [0, *counts[:0:-1], *counts]
