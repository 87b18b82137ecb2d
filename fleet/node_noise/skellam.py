"""Exact sampling of symmetric Skellam noise, with integer arithmetic on random 64-bit words.

The symmetric Skellam distribution with rational variance v has P(X = k) = exp(-v) I_k(v) for
integers k, with the modified Bessel function I_k (Skellam 1946). A sum of independent Skellam
variables is Skellam again, and the variances add up. So the total noise of several clients has a
known distribution, without an approximation (Agarwal, Kairouz, Liu 2021).

One bit of a word is the sign of X. The other 63 bits are the first binary digits of a uniform u in
[0, 1), and |X| is the smallest m with u < P(|X| <= m). A table contains floor(2^63 P(|X| <= m)). If
an entry equals the digits of u, about once in 2^48 samples, further words and more digits of the
probabilities decide. So samples are exact. Floating-point numbers are not used, because their gaps
would reveal the value below the noise (Mironov 2012).
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

# Called with a count; returns this many random words, uint64.
Words = Callable[[int], np.ndarray]
# Called with a variance and a number of values; returns noise, int64.
Draw = Callable[[Fraction, int], np.ndarray]

# Number of binary digits of u in a random word; the word's last bit is the sign of the noise.
_DIGITS = 63
_WORD = 64
# -log of half the probability that a value is beyond the table; further words determine such a
# value.
_LOG_INVERSE = (_WORD + 2) * math.log(2)
# Largest absolute value in a table, and variance of the widest noise that such a table allows.
_FAR = (1 << 15) - 3
_WIDEST = Fraction((_FAR**2 - 2 * _FAR * _LOG_INVERSE / 3) / (2 * _LOG_INVERSE))
# Maximum number of samples to add up for one value of wide noise.
MAX_PARTS = 2048
_PIECE = 1 << 16
# Extra decimal digits in computations, and how many of them may be lost to rounding and truncation.
_FIRST_PRECISION, _LOST = 60, 14


def skellam(variance: Fraction, size: int) -> np.ndarray:
    """Returns secret noise, int64 [size].

    The random words are from AES-256-CTR with a random key, which is not stored.

    Raises:
        PlanError: The variance is negative, or needs more than `MAX_PARTS` samples per value.
    """
    return drawn(variance, size, fresh_words())


def fresh_words() -> Words:
    """Returns a generator of random words with a new secret key."""
    stream = KeyStream(random_bytes(KEY_BYTES), bytes(16))
    return lambda count: stream.words(count).copy()


def drawn(variance: Fraction, size: int, words: Words) -> np.ndarray:
    """Returns noise from given random words; see `skellam`.

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
    """Raises PlanError if `skellam` does not support the variance."""
    if variance < 0 or _parts(variance) > MAX_PARTS:
        raise PlanError(
            f"{where}: expected a variance from 0 to {float(MAX_PARTS * _WIDEST):.3g}, found "
            f"{float(variance):.6g}"
        )


def _parts(variance: Fraction) -> int:
    return max(1, math.ceil(variance / _WIDEST))


def _from_words(variance: Fraction, first: np.ndarray, words: Words) -> np.ndarray:
    """Returns one noise value per word of `first`, int64."""
    table, digits = thresholds(variance), first >> np.uint64(1)
    # The number of entries up to u's digits is |X|, unless the last of these entries equals the
    # digits: then further words decide.
    sizes = np.searchsorted(table, digits, side="right").astype(np.int64)
    equal = table[np.maximum(sizes - 1, 0)] == digits
    for i in np.flatnonzero(equal):
        sizes[i] = _refine(variance, int(digits[i]), words)
    is_negative = (first & np.uint64(1)).astype(bool)
    np.negative(sizes, out=sizes, where=is_negative)
    return sizes


def _refine(variance: Fraction, digits: int, words: Words) -> int:
    """Returns the absolute value of a sample whose first digits do not determine it."""
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
    """Returns floor(2^63 P(|X| <= m)) for m = 0, ..., M with P(|X| > M) < 2^-64, uint64."""
    most = (1 << _DIGITS) - 1
    # A probability is below 1, but its upper bound may exceed 1.
    bounds = [(least, min(above, most)) for least, above in _bounds(variance, _DIGITS)]
    # Bounds differ only if a probability is very close to a multiple of 2^-63.
    if any(least != above for least, above in bounds):
        raise ArithmeticError(f"a variance of {variance} needs more than {_FIRST_PRECISION} digits")
    return np.array([least for least, _ in bounds[: _reach(variance, _LOG_INVERSE) + 1]], np.uint64)


def _probabilities(variance: Fraction, precision: int) -> list[Decimal]:
    """Returns P(X = k) for k = 0, 1, ..., until it is below 10^-precision.

    Miller's algorithm: a_{k-1} = a_{k+1} + (2 k / v) a_k, from a_{K+1} = 0 downwards. All terms are
    positive, so each step's relative rounding error is at most 10^-precision. Truncation at K makes
    a_k / I_k deviate from a constant by (I_{K+1} K_k) / (K_{K+1} I_k), about (I_{K+1} / I_k)^2. The
    constant follows from the probabilities' sum, 1. Rounding and truncation together cost less than
    `_LOST` digits.
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
    """Returns a t with P(|X| > t) < 2 exp(-log_inverse).

    The bound is P(X > t) <= exp(-t^2 / (2 (v + t / 3))).
    """
    third = log_inverse / 3
    return math.ceil(third + math.sqrt(third**2 + 2 * float(variance) * log_inverse)) + 1
