"""Symmetric Skellam noise, drawn exactly, from random words of 64 bits and integers alone.

The symmetric Skellam distribution of variance v has the probability exp(-v) I_k(v) at the integer
k, where I is the modified Bessel function (Skellam 1946) and v a rational number. A sum of
independent draws is Skellam, too, with the sum of the variances: the distribution of several
clients' noise is known without an approximation (Agarwal, Kairouz, Liu 2021).

One bit of a word is the sign, the other 63 are the first digits of a number u in [0, 1). The size
is the smallest m with u < P(|X| <= m). A table has floor(2^63 P(|X| <= m)); if the digits of u
equal those of an entry, further words decide, against probabilities of more digits. So the draws
are exact, and a further word is needed once in 2^48 numbers. Floating point, whose gaps reveal the
value that noise was added to (Mironov 2012), has no part in it.
"""

from __future__ import annotations

import decimal
import functools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Callable

import numpy as np

from fleet.secure_aggregation.primitives import KEY_BYTES, KeyStream, random_bytes
from plan_runner.errors import PlanError

# Returns a number of random words, uint64.
Words = Callable[[int], np.ndarray]
# Returns noise, int64, given a variance and a number of values.
Draw = Callable[[Fraction, int], np.ndarray]

# Digits of u in a word; the last bit is the sign.
_DIGITS = 63
_WORD = 64
# -log of half the probability beyond a table, where further words decide.
_LOG_INVERSE = (_WORD + 2) * math.log(2)
# Reach and variance of the widest noise whose table has sizes below 2^15.
_FAR = (1 << 15) - 3
_WIDEST = Fraction((_FAR**2 - 2 * _FAR * _LOG_INVERSE / 3) / (2 * _LOG_INVERSE))
# Maximum number of draws to add for each value, for wide noise.
MAX_PARTS = 2048
_PIECE = 1 << 16
# Decimal digits beyond those of the bits, and how many of them rounding and truncation may cost.
_FIRST_PRECISION, _LOST = 60, 14


def skellam(variance: Fraction, size: int) -> np.ndarray:
    """Returns secret noise, int64 [size].

    It derives from AES-256-CTR with a random key, which is not kept.

    Raises:
        PlanError: The variance is so large that a value would take more than `MAX_PARTS` numbers.
    """
    return drawn(variance, size, fresh_words())


def fresh_words() -> Words:
    """Returns random words of a new secret key."""
    stream = KeyStream(random_bytes(KEY_BYTES), bytes(16))
    return lambda count: stream.words(count).copy()


def drawn(variance: Fraction, size: int, words: Words) -> np.ndarray:
    """Returns noise from given words; see `skellam`.

    Args:
        words: Called for at most 2^16 words at a time.
    """
    total = np.zeros(size, np.int64)
    if variance == 0:
        return total
    check_variance(variance, "noise")
    parts = _parts(variance)
    part_variance = variance / parts
    for start in range(0, size, _PIECE):
        piece = total[start : start + _PIECE]
        for _ in range(parts):
            piece += _from_words(part_variance, words(piece.size), words)
    return total


def check_variance(variance: Fraction, where: str) -> None:
    """Raises a `PlanError` unless there is noise of that variance."""
    if variance < 0 or _parts(variance) > MAX_PARTS:
        raise PlanError(
            f"{where}: expected a variance from 0 to {float(MAX_PARTS * _WIDEST):.3g}, found "
            f"{float(variance):.6g}"
        )


def _parts(variance: Fraction) -> int:
    return max(1, math.ceil(variance / _WIDEST))


def _from_words(variance: Fraction, first: np.ndarray, words: Words) -> np.ndarray:
    """Returns a number for each of the first words, int64."""
    table, digits = thresholds(variance), first >> np.uint64(1)
    # Number of entries that are at most u's digits; if the last one equals them, further words
    # decide.
    sizes = np.searchsorted(table, digits, side="right").astype(np.int64)
    equal = table[np.maximum(sizes - 1, 0)] == digits
    for i in np.flatnonzero(equal):
        sizes[i] = _refine(variance, int(digits[i]), words)
    is_negative = (first & np.uint64(1)).astype(bool)
    np.negative(sizes, out=sizes, where=is_negative)
    return sizes


def _refine(variance: Fraction, digits: int, words: Words) -> int:
    """Returns the size of a number that its first digits do not determine."""
    bits = _DIGITS
    while True:
        bits += _WORD
        digits = (digits << _WORD) | int(words(1)[0])
        for m, (least, most) in enumerate(_bounds(variance, bits)):
            if digits < least:
                return m
            if digits <= most:
                break


def _bounds(variance: Fraction, bits: int) -> list[tuple[int, int]]:
    """Returns, for each m, lower and upper bounds of 2^bits P(|X| <= m), rounded down."""
    precision = _FIRST_PRECISION + math.ceil(bits * math.log10(2))
    bounds = []
    with decimal.localcontext() as context:
        probabilities = _probabilities(variance, precision)
        context.prec = precision
        unit, off = Decimal(2) ** bits, Decimal(10) ** (_LOST - precision)
        # Rounding and truncation change a total by less than `off`.
        total = -probabilities[0]
        for probability in probabilities:
            total += 2 * probability
            bounds.append((math.floor((total - off) * unit), math.floor((total + off) * unit)))
    return bounds


@functools.lru_cache(maxsize=64)
def thresholds(variance: Fraction) -> np.ndarray:
    """Returns floor(2^63 P(|X| <= m)) for m = 0, 1, ... with less than 2^-64 beyond, uint64."""
    most = (1 << _DIGITS) - 1
    # A probability is below 1, but its upper bound may not be.
    bounds = [(least, min(above, most)) for least, above in _bounds(variance, _DIGITS)]
    # The precision decides all probabilities except those next to a multiple of 2^-63.
    if any(least != above for least, above in bounds):
        raise ArithmeticError(f"a variance of {variance} needs more than {_FIRST_PRECISION} digits")
    return np.array([least for least, _ in bounds[: _reach(variance, _LOG_INVERSE) + 1]], np.uint64)


def _probabilities(variance: Fraction, precision: int) -> list[Decimal]:
    """Returns the probabilities of 0, 1, ... up to one below 10^-precision.

    In a_{k-1} = a_{k+1} + (2 k / v) a_k, from a_{K+1} = 0, all terms are positive, so that rounding
    costs a relative 10^-precision a step; and a_k / I_k differs from a constant by
    (I_{K+1} K_k) / (K_{K+1} I_k), of the order of the square of I_{K+1} / I_k (Miller). The
    constant follows from the sum, which is 1. Both cost less than `_LOST` digits together.
    """
    beyond = precision * math.log(10)
    with decimal.localcontext() as context:
        context.prec = precision
        context.Emin, context.Emax = decimal.MIN_EMIN, decimal.MAX_EMAX
        step = 2 * Decimal(variance.denominator) / Decimal(variance.numerator)
        above, here = Decimal(0), Decimal(1)
        ratios = [here]
        for k in range(_reach(variance, beyond), 0, -1):
            above, here = here, above + k * step * here
            ratios.append(here)
        ratios.reverse()
        total = ratios[0] + 2 * sum(ratios[1:], Decimal(0))
        return [ratio / total for ratio in ratios]


def _reach(variance: Fraction, log_inverse: float) -> int:
    """Returns t so that both tails beyond it have less than 2 exp(-log_inverse) together.

    A tail of t has at most exp(-t^2 / (2 (v + t / 3))).
    """
    third = log_inverse / 3
    return math.ceil(third + math.sqrt(third**2 + 2 * float(variance) * log_inverse)) + 1
