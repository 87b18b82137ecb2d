"""Noise of servers and of simulated clients, from a secret key and the place of the noise.

- **A server's noise** is made of ChaCha20's key stream, in whole steps of a grid, see below.
- **Noise of simulated clients** is looked up in tables, with the random words of one of two
  generators: **philox** is TensorFlow's, fast, statistically good, and not made to withstand
  prediction; **secure** is ChaCha20.

No two releases, communication steps, clients and uses of a run share random bits, whatever examples
clients hold: copies of a client have different noise. A round that is run again has the same noise.

**Why a grid.** A normal number of floating point leaves gaps: given a sum, noise can turn it into
certain values that it can make of no other sum, so low bits distinguish sums that epsilon treats
equally (Mironov 2012). It also ends early: a float32 Box-Muller transform has no number beyond 5.68
standard deviations. Here only a whole number of steps is ever released:

- The sum is rounded to the grid: a number x becomes r = round(x / g), g the step.
- The noise is whole, a normal number of standard deviation s = `DEVIATION` rounded to a whole
  number. r plus it is released, and everything else is computed from that.
- The account is the Gaussian mechanism's: rounding noise that is added to a whole number rounds
  their sum, and post-processing costs nothing. For that, a client may change r by at most s / z
  steps; see `_stretch`.

**The noise is drawn as digits.** x_0 + m x_1 + m^2 x_2 has, for independent discrete Gaussians x_k
of standard deviation t, a distribution whose every probability is that of one discrete Gaussian of
s = t sqrt(1 + m^2 + m^4) to within a factor 1 +- 2^-180: m steps are t / 2.54, and the sums over
shifted grids that distinguish the two differ by 4 exp(-2 pi^2 (t / m)^2) (Poisson's summation
formula; Micciancio and Walter 2017 have the general case). A discrete Gaussian differs from a
rounded one by a factor 1 +- 2^-54, out to 11.5 standard deviations: that changes no digit of
epsilon. Each digit is looked up in an alias table (Walker 1977, Vose 1991) with 15 bits for the
column, and 64 for the choice in it. Where a choice is a tie, once in 2^64 digits, the 19 other bits
of the columns' word decide. So probabilities are right to 2^-99, and a number is drawn with a total
variation of at most `VARIATION` from the noise that accounts are of.
"""

from __future__ import annotations

import abc
import dataclasses
import decimal
import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.integer_codec import ClientNoise, IntegerCodec, pieces_of
from tff_agnostic.aggregations.noise import Noise, NoisedGroup, Release, alias_columns
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry

_DIGITS = 3
# t and m. The largest digit is 11.5 t: those beyond have a probability of 2^-99.
_DIGIT_DEVIATION, _BASE = 1424, 560
_COLUMN_BITS, _CHOICE_BITS = 15, 64
_TIE_BITS = 64 - _DIGITS * _COLUMN_BITS
# s, the standard deviation of `whole_gaussian`: about 2^28.7.
DEVIATION = _DIGIT_DEVIATION * math.sqrt(sum(_BASE ** (2 * k) for k in range(_DIGITS)))
# Bound of the total variation of a drawn number from the accounted noise. In each of three digits,
# 2^15 probabilities are rounded to multiples of 2^-98, and the value 0 takes up the sum of errors.
VARIATION = 2.0**-82
# Largest number of values of a release: more do not fit into a tensor of TensorFlow.
MAX_VALUES = 2.0**31
# Random words of 64 bits for each number: one for the columns of all digits, and one for each.
WORDS = 1 + _DIGITS
# The largest noise multiplier of a group for which `_stretch` is at most 2 with `MAX_VALUES`.
MAX_MULTIPLIER = 4096.0
# A value is cut to so many times its group's bound: more than any sum over clients.
_MAX_CLIENTS = 2.0**24
# Rounding error of float64 in two values of that size, as a multiple of the bound: sums of integers
# are converted, divided and multiplied, and divided by the step, each to within 2^-53 of the value.
_FLOAT64 = _MAX_CLIENTS * 8 * 2.0**-53
# Largest number of steps, so that noise can be added in int64.
_LARGEST = 2.0**62
_PRECISION = 50
_WORD_BYTES = 8
# The nonce of a stream is three little-endian words. The first has, from its last bit on,
#
#     8 bits    level of the node of a tree that the noise is for, otherwise 0
#     16 bits   number of the communication step in its round
#     8 bits    use: noise of the server, or a client's draws
#
# and the other two are a number of 64 bits: of the release, or of the tree's node, for the server's
# noise; 2^32 times that of the release plus the client's place in its cohort for a client's. So no
# two draws of a key share a nonce. All values of a step are in one stream, whose block counter
# begins at 0 and ends below 2^32. Evaluations and cohorts have keys of their own.
_USE_SHIFT, _EXCHANGE_SHIFT, _MAX_EXCHANGES = 24, 8, 2**16
_OF_SERVER, _OF_CLIENT = 1, 2
# Number of values drawn at a time, with about 300 bytes for each: whole blocks.
_PIECE = 2**18


class _Table(NamedTuple):
    """An alias table of a digit.

    Column c has the value c if the word of its choice is less than `firsts[c]`, or if both are
    equal and the bits for ties are less than the first bits of `others[c]`.

    Attributes:
        firsts: int64 [2^15].
        others: The bits for ties, followed by the 15 bits of the column's other value, int64
            [2^15].
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
    size = 2**_COLUMN_BITS
    ties = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(of_columns, tf.constant(_DIGITS * _COLUMN_BITS, tf.int64)),
        tf.constant(2**_TIE_BITS - 1, tf.int64),
    )
    total = tf.zeros_like(of_columns)
    for k, choice in enumerate(choices):
        shifted = tf.bitwise.right_shift(of_columns, tf.constant(k * _COLUMN_BITS, tf.int64))
        column = tf.bitwise.bitwise_and(shifted, tf.constant(size - 1, tf.int64))
        first, other = tf.gather(firsts, column), tf.gather(others, column)
        is_less = ties < tf.bitwise.right_shift(other, tf.constant(_COLUMN_BITS, tf.int64))
        is_first = (choice < first) | ((choice == first) & is_less)
        other = tf.bitwise.bitwise_and(other, tf.constant(size - 1, tf.int64))
        total += _BASE**k * (tf.where(is_first, column, other) - size // 2)
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


def beyond_tail(releases: int) -> float:
    """Returns a bound on the probability that any number of releases is not the accounted noise.

    Args:
        releases: Number of releases with independent noise; the nodes of a tree are releases.
    """
    return releases * MAX_VALUES * VARIATION


def values_of(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> int:
    """Returns how many numbers get noise."""
    return sum(values[i].shape.num_elements() for group in groups for i in group.positions)


def _stretch(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> tf.Tensor:
    """Returns the factor of the noise's deviation over z C that makes z hold after rounding.

    Rounding to the grid moves each of a group's d values by at most half a step, with the client
    and without it. The client's sensitivity grows from C to at most C (1 + e), where
    e = sqrt(d) (g / C + `_FLOAT64`) and g = z C (1 + e) / s. With the largest
    h = sqrt(d) (z / s + `_FLOAT64`) of any group, 1 + e = 1 / (1 - h) is enough for every group.
    The factor is the same for all groups, so it is also enough if they are clipped as one vector.
    """
    shares = []
    for group in groups:
        size = sum(values[i].shape.num_elements() for i in group.positions)
        shares.append(math.sqrt(size) * (group.multiplier / DEVIATION + _FLOAT64))
    return 1.0 / (1.0 - tf.reduce_max(tf.stack(shares)))


@functools.cache
def _table() -> _Table:
    in_column = 2 ** (_CHOICE_BITS + _TIE_BITS)
    columns = zip(*alias_columns(_counts(), in_column))
    firsts, others = [], []
    for count, other in columns:
        # A column without another value has it twice.
        first, tie = divmod(min(count, in_column - 1), 2**_TIE_BITS)
        # Words are signed numbers.
        firsts.append(first - 2 ** (_CHOICE_BITS - 1))
        others.append((tie << _COLUMN_BITS) + other)
    return _Table(np.array(firsts, np.int64), np.array(others, np.int64))


def _counts() -> list[int]:
    """Returns the number of 2^98 choices of each digit, in ascending order; the first has none.

    The probability of k is proportional to exp(-k^2 / (2 t^2)); 0 has the remainder of rounding.
    """
    half = 2 ** (_COLUMN_BITS - 1)
    all_choices = 2 ** (_COLUMN_BITS + _CHOICE_BITS + _TIE_BITS)
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


def check_multipliers(multipliers: Sequence[float]) -> None:
    """Raises a `UserError` for a server's noise so wide that rounding to its grid would count.

    Args:
        multipliers: Noise multiplier of each group of a sum.
    """
    if max(multipliers) > MAX_MULTIPLIER:
        expected = f"at most {MAX_MULTIPLIER:g} a group of values"
        raise OptionError("noise_multiplier", expected, Verbatim(f"{max(multipliers):g}"))


def add_noise(
    noise: Noise, release: Release, values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """On the server: returns sums with noise, and the standard deviation of each sum's noise.

    Args:
        noise: Kind of noise.
        values: Sums, float64.
        groups: Groups of sums that get noise.
    """
    size = values_of(values, groups)

    def draw(level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        nonce = _nonce(_OF_SERVER, release.exchange, level, number)
        return _whole_gaussian(release.key, nonce, size)

    spec = tf.TensorSpec([size], tf.int64)
    return with_noise(values, groups, noise(draw, release.number, spec))


class NoiseGenerator(abc.ABC):
    """A generator of random words for noise.

    Attributes:
        title: Name and use, for reports.
        key_bytes: Number of random bytes of a key.
    """

    title: str
    key_bytes: int

    @abc.abstractmethod
    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns a key, numbers of an int64 tensor, from `key_bytes` random bytes."""

    def client_draws(
        self, release: Release, place: tf.Tensor, codecs: Sequence[IntegerCodec]
    ) -> list[ClientNoise]:
        """On a client: returns its random numbers for a communication step, for each group.

        Args:
            place: Number of the client in its cohort, int32 scalar.
        """
        number = release.number * 2**32 + tf.cast(place, tf.int64)
        sizes = [codec.size for codec in codecs]
        num_words = [codec.num_words for codec in codecs]
        # One draw for all groups: starting one costs a small group's many times over.
        uniforms, words = self._client_stream(release, number, sum(sizes), sum(num_words))
        return [
            ClientNoise(*pair)
            for pair in zip(tf.split(uniforms, sizes), tf.split(words, num_words))
        ]

    @abc.abstractmethod
    def _client_stream(
        self, release: Release, number: tf.Tensor, num_values: int, num_words: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the uniforms and the words of all groups; see `ClientNoise`.

        Args:
            number: A number of its own of each client in each release, int64 scalar.
        """


@dataclasses.dataclass(frozen=True)
class Philox(NoiseGenerator):
    """TensorFlow's stateless random numbers, whose seed is the key xor the place."""

    title = "Philox with a key of 126 bits, a generator for simulations"
    key_bytes = 2 * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns two numbers of 63 bits."""
        return tuple(int(word >> np.uint64(1)) for word in np.frombuffer(content, np.uint64))

    def _client_stream(
        self, release: Release, number: tf.Tensor, num_values: int, num_words: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # A stream for rounding, and one for noise.
        def seed(use: int) -> tf.Tensor:
            of_use = tf.constant((release.exchange << 1) + use, tf.int64)
            return tf.bitwise.bitwise_xor(release.key, tf.stack([number, of_use]))

        uniforms = tf.random.stateless_uniform([num_values], seed(0), alg="philox")
        words = tf.random.stateless_uniform(
            [num_words], seed(1), None, None, tf.int64, alg="philox"
        )
        return uniforms, words


@dataclasses.dataclass(frozen=True)
class ChaCha20(NoiseGenerator):
    """ChaCha20: every bit of noise is of its key stream."""

    title = "ChaCha20 with a key of 256 bits, a cryptographic generator"
    key_bytes = chacha20.KEY_NUMBERS * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns four numbers of 64 bits."""
        return tuple(map(int, np.frombuffer(content, np.int64)))

    def _client_stream(
        self, release: Release, number: tf.Tensor, num_values: int, num_words: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # One stream: 32 bits for each rounding, then the words of the noise.
        nonce = _nonce(_OF_CLIENT, release.exchange, tf.constant(0, tf.int64), number)
        bits = chacha20.keystream(release.key, nonce, num_values + 2 * num_words)
        # 24 bits of each, as many as float32 has room for.
        of_rounding = tf.bitwise.right_shift(bits[:num_values], tf.constant(8, tf.uint32))
        uniforms = tf.cast(of_rounding, tf.float32) / 2.0**24
        return uniforms, chacha20.joined_halves(bits[num_values:])


def _whole_gaussian(key: tf.Tensor, nonce: tf.Tensor, size: int) -> tf.Tensor:
    """Returns noise of a stream, int64 [size]: of large models piece by piece, to save memory."""
    of_piece = min(size, _PIECE)
    words = 2 * WORDS * of_piece

    def piece(k: tf.Tensor) -> tf.Tensor:
        first_block = tf.cast(k * (words // chacha20.BLOCK_WORDS), tf.uint32)
        bits = chacha20.keystream(key, nonce, words, first_block)
        return whole_gaussian(chacha20.joined_halves(bits))

    if size <= _PIECE:
        return piece(tf.constant(0))
    pieces = tf.map_fn(
        piece,
        tf.range(-(-size // _PIECE)),
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec([_PIECE], tf.int64),
    )
    return tf.reshape(pieces, [-1])[:size]


def _nonce(use: int, exchange: int, level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the nonce of a stream, uint32 [3]."""
    if exchange >= _MAX_EXCHANGES:
        raise ValueError(f"expected fewer than {_MAX_EXCHANGES} exchanges")
    first = tf.constant((use << _USE_SHIFT) + (exchange << _EXCHANGE_SHIFT), tf.int64) + level
    return tf.stack([tf.cast(first, tf.uint32), *chacha20.halves(number)])


# The generator of a server's noise.
SECURE = ChaCha20()
NOISE_GENERATORS: Registry[NoiseGenerator] = Registry(
    "noise generator", {"philox": Philox(), "secure": SECURE}
)
