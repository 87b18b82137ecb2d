"""Generators of noise, by name, from a secret key and the place of the noise.

- **philox** is TensorFlow's generator: fast, statistically good, and not made to withstand
  prediction. A server's noise is float32. Clients' noise is looked up, or drawn by TensorFlow's
  Poisson.
- **secure** is ChaCha20. A server's noise is in whole steps of a grid, see below, and clients'
  noise is looked up. Floating point reveals nothing.

No two releases, communication steps, clients and uses of a run share random bits, whatever examples
clients hold: copies of a client have noise of their own. A round that is run again has the same
noise.

**Why a grid.** A normal number of floating point leaves gaps: given a sum, noise can turn it into
certain values that it can make of no other sum, so low bits tell sums apart which epsilon treats
alike (Mironov 2012). Here only a whole number of steps is ever released:

- The sum is rounded to the grid: a number x becomes r = round(x / g), g the step.
- The noise is whole, a normal number of standard deviation s = `DEVIATION` rounded to a whole
  number. r plus it is released, and everything else is computed from that.
- The account is the Gaussian mechanism's: rounding noise that is added to a whole number rounds
  their sum, and post-processing costs nothing. For that, a client may change r by at most s / z
  steps; see `_stretch`.

**The noise is drawn as digits.** x_0 + m x_1 + m^2 x_2 has, of independent discrete Gaussians x_k
of standard deviation t, a distribution whose every probability is that of one discrete Gaussian of
s = t sqrt(1 + m^2 + m^4) to within a factor 1 +- 2^-290: m steps are t / 3.25, and the sums over
shifted grids that tell the two apart differ by 4 exp(-2 pi^2 (t / m)^2) (Poisson's summation
formula; Micciancio and Walter 2017 have the general case). Each digit is looked up in an alias
table (Walker 1977, Vose 1991) with 15 bits for the column and 64 for the choice in it, so that
probabilities are right to 2^-80. A discrete Gaussian differs from a rounded one by 2^-63. Together
a number is drawn with a total variation of at most 2^-62 from the one accounted for.
"""

from __future__ import annotations

import abc
import dataclasses
import decimal
import functools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.integer_codec import ClientNoise, IntegerCodec, pieces_of
from tff_agnostic.aggregations.noise import Noise, NoisedGroup, Release, alias_columns
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry

_DIGITS = 3
# t and m. The largest digit is 9.8 t: those beyond have a probability of 2^-73.
_DIGIT_DEVIATION, _BASE = 1664, 512
_COLUMN_BITS, _CHOICE_BITS = 15, 64
# s, the standard deviation of `whole_gaussian`: about 2^28.7.
DEVIATION = _DIGIT_DEVIATION * math.sqrt(sum(_BASE ** (2 * k) for k in range(_DIGITS)))
# Random words of 64 bits for each number: one for the columns of all digits, and one for each.
WORDS = 1 + _DIGITS
# The largest noise multiplier of a group for which `_stretch` is at most 2 with 2^31 values.
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
# Bits of a seed's first number for levels of a tree, and for values.
_LEVEL_BITS, _VALUE_BITS = 8, 32
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
    """An alias table of a digit: column c stands for c if a word is less than `firsts[c]`.

    Attributes:
        firsts: int64 [2^15].
        others: The value that it stands for otherwise, int16 [2^15].
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
    firsts, others = alias_columns(_counts(), 2**_CHOICE_BITS)
    # Words are signed numbers; a column that is full has itself as the other.
    signed = [min(first, 2**_CHOICE_BITS - 1) - 2 ** (_CHOICE_BITS - 1) for first in firsts]
    return _Table(np.array(signed, np.int64), np.array(others, np.int16))


def _counts() -> list[int]:
    """Returns how many of 2^79 choices each digit has, in ascending order; the first has none.

    The probability of k is proportional to exp(-k^2 / (2 t^2)); 0 has the remainder of rounding.
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


class NoiseGenerator(abc.ABC):
    """A generator of noise.

    Attributes:
        title: A name and what it is good for, for people.
        is_exact: Whether floating point reveals nothing about a sum with noise.
        key_bytes: How many random bytes a key takes.
    """

    title: str
    is_exact: bool
    key_bytes: int

    @abc.abstractmethod
    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns a key, numbers of an int64 tensor, from as many random bytes as it takes."""

    def check(self, multipliers: Sequence[float]) -> None:
        """Raises a `UserError` for noise that the generator cannot make; by default it makes any.

        Args:
            multipliers: The noise multiplier of each group of a server's sum.
        """
        del multipliers

    @abc.abstractmethod
    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """On the server: returns sums with noise, and the standard deviation of each one's noise.

        Args:
            values: The sums, float64.
            groups: Which of them get noise, and how much.
        """

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
    is_exact = False
    key_bytes = 2 * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns two numbers of 63 bits."""
        return tuple(int(word >> np.uint64(1)) for word in np.frombuffer(content, np.uint64))

    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Adds float32 noise; see `NoiseGenerator`."""
        noisy, deviations = list(values), [tf.constant(0.0, tf.float64)] * len(values)
        for group in groups:
            deviation = group.multiplier * group.limit
            for i in group.positions:
                spec = tf.TensorSpec(values[i].shape, tf.float32)
                draw = functools.partial(_philox_normal, release, i, spec.shape)
                added = noise(draw, release.number, spec)
                noisy[i] += deviation * tf.cast(added, tf.float64)
                deviations[i] = deviation
        return noisy, deviations

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


def _philox_normal(
    release: Release, value: int, shape: tf.TensorShape, level: tf.Tensor, number: tf.Tensor
) -> tf.Tensor:
    of_place = (release.exchange << (_LEVEL_BITS + _VALUE_BITS)) + (value << _LEVEL_BITS)
    code = tf.stack([tf.constant(of_place, tf.int64) + level, number])
    seed = tf.bitwise.bitwise_xor(release.key, code)
    return tf.random.stateless_normal(shape, seed, alg="philox")


@dataclasses.dataclass(frozen=True)
class ChaCha20(NoiseGenerator):
    """ChaCha20: every bit of noise is of its key stream."""

    title = "ChaCha20 with a key of 256 bits, a cryptographic generator"
    is_exact = True
    key_bytes = chacha20.KEY_NUMBERS * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns four numbers of 64 bits."""
        return tuple(map(int, np.frombuffer(content, np.int64)))

    def check(self, multipliers: Sequence[float]) -> None:
        """Refuses noise so wide that rounding to its grid would count; see `NoiseGenerator`."""
        if max(multipliers) > MAX_MULTIPLIER:
            raise UserError(
                f"--noise_multiplier: expected at most {MAX_MULTIPLIER:g} a group "
                f"of values with --noise_generator=secure, found {max(multipliers):g}"
            )

    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Adds whole steps to sums on a grid; see `NoiseGenerator`."""
        size = values_of(values, groups)

        def draw(level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            nonce = _nonce(_OF_SERVER, release.exchange, level, number)
            return _whole_gaussian(release.key, nonce, size)

        spec = tf.TensorSpec([size], tf.int64)
        return with_noise(values, groups, noise(draw, release.number, spec))

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


def key_like(noise_key: Any, content: bytes) -> tuple[int, ...]:
    """Returns a key of the same generator as another one.

    Args:
        content: Random bytes; the key is made of the first ones.
    """
    num_bytes = len(noise_key) * _WORD_BYTES
    generator = next(g for g in NOISE_GENERATORS.values() if g.key_bytes == num_bytes)
    return generator.key(content[:num_bytes])


NOISE_GENERATORS: Registry[NoiseGenerator] = Registry(
    "noise generator", {"philox": Philox(), "secure": ChaCha20()}
)
