"""Generates noise of servers and simulated clients, from a secret key and the noise's position.

- **A server's noise** derives from ChaCha20's key stream, in integer steps of a grid (see below).
- **Noise of simulated clients** is looked up in tables with random words from one of two
  generators: **philox**, TensorFlow's, is fast and statistically good, but predictable by an
  attacker; **secure** is ChaCha20.

In a run, every combination of release, communication step, client and use has its own random bits,
even for copies of a client. A repeated round has the same noise.

**Why a grid.** Floating-point noise has two flaws. Its numbers have gaps: added to one sum, it can
yield values that it cannot yield for another sum, so that low bits distinguish sums that should be
indistinguishable (Mironov 2012). Its tail is too short: a float32 Box-Muller transform yields no
number beyond 5.68 standard deviations. Here, only whole numbers of steps are released:

- The sum is rounded to the grid: a number x becomes r = round(x / g), where g is the step.
- The noise is an integer: a normal number of standard deviation s = `DEVIATION`, rounded. The sum
  of r and the noise is released; all further values are computed from it.
- The privacy account is the Gaussian mechanism's: adding rounded noise to an integer is the same as
  rounding the noisy sum, which is post-processing. This requires that a client changes r by at most
  s / z steps; see `_stretch`.

**The noise is drawn as digits.** Let x_k be independent discrete Gaussians of standard deviation t.
The sum x_0 + m x_1 + m^2 x_2 has almost the distribution of one discrete Gaussian with the standard
deviation s = t sqrt(1 + m^2 + m^4): all probabilities agree up to a factor 1 +- 2^-180. The error
is 4 exp(-2 pi^2 (t / m)^2) with t / m = 2.54, by Poisson's summation formula (Micciancio and Walter
2017 have the general case). A discrete Gaussian differs from a rounded one by a factor 1 +- 2^-54,
out to 11.5 standard deviations, which changes no digit of epsilon.

Each digit is looked up in an alias table (Walker 1977, Vose 1991) with 15 bits for the column, and
64 bits for the choice in it. In one of 2^64 digits the choice is a tie, which 19 bits decide: those
that remain of the word that selects the columns. Probabilities are thus accurate to 2^-99, and the
total variation distance of a drawn number from the accounted noise is at most `VARIATION`.
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
from tff_agnostic.aggregations.integer_codec import ClientNoise, IntegerCodec, split_vector
from tff_agnostic.aggregations.noise import Noise, NoisedGroup, Release, alias_columns
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import Registry

_DIGITS = 3
# Standard deviation t of a digit, and factor m between digits. The largest digit is 11.5 t; larger
# digits would have a probability of 2^-99.
_DIGIT_DEVIATION, _BASE = 1424, 560
_COLUMN_BITS, _CHOICE_BITS = 15, 64
_TIE_BITS = 64 - _DIGITS * _COLUMN_BITS
# The standard deviation s of `whole_gaussian`: about 2^28.7.
DEVIATION = _DIGIT_DEVIATION * math.sqrt(sum(_BASE ** (2 * k) for k in range(_DIGITS)))
# Bound of the total variation distance between a drawn number and the accounted noise. In each
# of three digits, 2^15 probabilities are rounded to multiples of 2^-98, and the probability of 0
# makes up for the sum of their errors.
VARIATION = 2.0**-82
# Maximum number of values in a release, and in any TensorFlow tensor.
MAX_VALUES = 2.0**31
# Random 64-bit words per number: one for the columns of all digits, and one for each digit.
WORDS = 1 + _DIGITS
# Maximum noise multiplier of a group: `_stretch` is then at most 2, even for `MAX_VALUES`.
MAX_MULTIPLIER = 4096.0
# Values are clipped to this multiple of their group's bound, which no sum over clients attains.
_MAX_CLIENTS = 2.0**24
# Rounding error of two clipped float64 values, as a multiple of their group's bound. Each value is
# rounded four times to within a relative 2^-53: in a conversion, a division, a multiplication, and
# the division by the step.
_FLOAT64 = _MAX_CLIENTS * 8 * 2.0**-53
# Maximum number of steps, so that noise can be added in int64.
_LARGEST = 2.0**62
_PRECISION = 50
_WORD_BYTES = 8
# The nonce of a stream consists of three little-endian words. From its last bit on,
# the first word contains:
#
#     8 bits    level of the noise's node in a tree; 0 for other noise
#     16 bits   number of the communication step in its round
#     8 bits    use: noise of the server, or a client's draws
#
# The other two words are a 64-bit number. For the server's noise it is the index of the release or
# of the tree's node. For a client's draws it is 2^32 times the index of the release, plus the
# client's place in its cohort. So no two draws with the same key have the same nonce. A step draws
# all values from one stream, whose block counter starts at 0 and stays below 2^32. Evaluations and
# cohorts have separate keys.
_USE_SHIFT, _EXCHANGE_SHIFT, _MAX_EXCHANGES = 24, 8, 2**16
_SERVER_USE, _CLIENT_USE = 1, 2
# Number of values to draw at once, which need about 300 bytes each; a multiple of a block.
_PIECE = 2**18


class _Table(NamedTuple):
    """The alias table that maps random bits to a digit.

    Column c yields the value c if its choice word is less than `firsts[c]`. If the two are equal,
    it yields c if the tie bits are less than the leading bits of `others[c]`. Otherwise it yields
    the column's other value.

    Attributes:
        firsts: Thresholds of the choice words, int64 [2^15].
        others: Threshold of the tie bits, followed by the 15 bits of the column's other value,
            int64 [2^15].
    """

    firsts: np.ndarray
    others: np.ndarray


def whole_gaussian(words: tf.Tensor) -> tf.Tensor:
    """Returns normal numbers of standard deviation `DEVIATION`, rounded, int64 [n].

    Args:
        words: Random 64-bit words, int64 [n `WORDS`].
    """
    column_words, *choices = tf.unstack(tf.reshape(words, [WORDS, -1]))
    table = _table()
    firsts, others = tf.constant(table.firsts), tf.constant(table.others)
    size = 2**_COLUMN_BITS
    ties = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(column_words, tf.constant(_DIGITS * _COLUMN_BITS, tf.int64)),
        tf.constant(2**_TIE_BITS - 1, tf.int64),
    )
    total = tf.zeros_like(column_words)
    for k, choice in enumerate(choices):
        shifted = tf.bitwise.right_shift(column_words, tf.constant(k * _COLUMN_BITS, tf.int64))
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
    """Returns noisy sums on the grid, float64, and the standard deviation of each sum's noise.

    Args:
        values: Sums, float64.
        groups: Groups of values that get noise, and their noise levels.
        steps: Noise of standard deviation `DEVIATION` for all values of the groups, concatenated,
            int64.
    """
    stretch = _stretch(values, groups)
    shapes = [values[i].shape for group in groups for i in group.positions]
    noises = iter(split_vector(steps, shapes))
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
            # Without noise, the step is 0, and the value is not rounded to a grid.
            noisy[i] = tf.where(step > 0, on_grid, values[i])
            deviations[i] = deviation
    return noisy, deviations


def beyond_tail(releases: int) -> float:
    """Bounds the probability that the noise of any release differs from the accounted noise.

    Args:
        releases: Number of releases with independent noise; the nodes of a tree count as releases.
    """
    return releases * MAX_VALUES * VARIATION


def count_values(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> int:
    """Returns the number of values with noise."""
    return sum(values[i].shape.num_elements() for group in groups for i in group.positions)


def _stretch(values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]) -> tf.Tensor:
    """Returns the factor by which noise must be wider, so that z stays valid after rounding.

    Rounding to the grid moves each of a group's d values by at most half a step, with the client
    and without the client. The client's sensitivity grows from C to at most C (1 + e), where e =
    sqrt(d) (g / C + `_FLOAT64`) and g = z C (1 + e) / s. Let h be the groups' maximum of sqrt(d) (z
    / s + `_FLOAT64`). Then 1 + e = 1 / (1 - h) suffices for every group. All groups share this
    factor, so it also suffices if they are clipped as one vector.
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
        # A column without a second value has its own value twice.
        first, tie = divmod(min(count, in_column - 1), 2**_TIE_BITS)
        # Subtract half the range, as words are compared as signed numbers.
        firsts.append(first - 2 ** (_CHOICE_BITS - 1))
        others.append((tie << _COLUMN_BITS) + other)
    return _Table(np.array(firsts, np.int64), np.array(others, np.int64))


def _counts() -> list[int]:
    """Returns for each digit, in ascending order, the number of the 2^98 choices that yield it.

    The probability of k is proportional to exp(-k^2 / (2 t^2)); the digit 0 gets the choices that
    rounding leaves over. The lowest digit gets none.
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
    """Raises a `UserError` if server noise is so wide that rounding to its grid matters.

    Args:
        multipliers: Noise multipliers of a sum's groups.
    """
    if max(multipliers) > MAX_MULTIPLIER:
        expected = f"at most {MAX_MULTIPLIER:g} per group of values"
        raise OptionError("noise_multiplier", expected, Verbatim(f"{max(multipliers):g}"))


def add_noise(
    noise: Noise, release: Release, values: Sequence[tf.Tensor], groups: Sequence[NoisedGroup]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """On the server: returns sums with noise, and the standard deviation of each sum's noise.

    Args:
        values: Sums, float64.
        groups: Groups of sums that get noise.
    """
    size = count_values(values, groups)

    def draw(level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        nonce = _nonce(_SERVER_USE, release.exchange, level, number)
        return _whole_gaussian(release.key, nonce, size)

    spec = tf.TensorSpec([size], tf.int64)
    return with_noise(values, groups, noise(draw, release.number, spec))


class NoiseGenerator(abc.ABC):
    """A generator of random words for noise.

    Attributes:
        title: Name and purpose, for reports.
        key_bytes: Number of random bytes from which a key is made.
    """

    title: str
    key_bytes: int

    @abc.abstractmethod
    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns a key, the values of an int64 tensor, from `key_bytes` random bytes."""

    def client_draws(
        self, release: Release, place: tf.Tensor, codecs: Sequence[IntegerCodec]
    ) -> list[ClientNoise]:
        """On a client: returns its random numbers for each group in a communication step.

        Args:
            place: Place of the client in its cohort, int32 scalar.
        """
        number = release.number * 2**32 + tf.cast(place, tf.int64)
        sizes = [codec.size for codec in codecs]
        num_words = [codec.num_words for codec in codecs]
        # Draw for all groups at once: starting a draw takes many times as long as drawing
        # for a small group.
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
            number: Number that identifies the client and the release, int64 scalar.
        """


@dataclasses.dataclass(frozen=True)
class Philox(NoiseGenerator):
    """TensorFlow's stateless random numbers; their seed is the key xor the noise's position."""

    title = "Philox with a key of 126 bits, a generator for simulations"
    key_bytes = 2 * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns two 63-bit numbers."""
        return tuple(int(word >> np.uint64(1)) for word in np.frombuffer(content, np.uint64))

    def _client_stream(
        self, release: Release, number: tf.Tensor, num_values: int, num_words: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def seed(use: int) -> tf.Tensor:
            stream = tf.constant((release.exchange << 1) + use, tf.int64)
            return tf.bitwise.bitwise_xor(release.key, tf.stack([number, stream]))

        uniforms = tf.random.stateless_uniform([num_values], seed(0), alg="philox")
        words = tf.random.stateless_uniform(
            [num_words], seed(1), None, None, tf.int64, alg="philox"
        )
        return uniforms, words


@dataclasses.dataclass(frozen=True)
class ChaCha20(NoiseGenerator):
    """ChaCha20: all bits of the noise come from its key stream."""

    title = "ChaCha20 with a key of 256 bits, a cryptographic generator"
    key_bytes = chacha20.KEY_NUMBERS * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns four 64-bit numbers."""
        return tuple(map(int, np.frombuffer(content, np.int64)))

    def _client_stream(
        self, release: Release, number: tf.Tensor, num_values: int, num_words: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # The stream has 32 bits per rounding, followed by the words of the noise.
        nonce = _nonce(_CLIENT_USE, release.exchange, tf.constant(0, tf.int64), number)
        bits = chacha20.keystream(release.key, nonce, num_values + 2 * num_words)
        # Use 24 of the 32 bits, the precision of float32.
        rounding_bits = tf.bitwise.right_shift(bits[:num_values], tf.constant(8, tf.uint32))
        uniforms = tf.cast(rounding_bits, tf.float32) / 2.0**24
        return uniforms, chacha20.joined_halves(bits[num_values:])


def _whole_gaussian(key: tf.Tensor, nonce: tf.Tensor, size: int) -> tf.Tensor:
    """Returns noise from a stream, int64 [size]; draws many values in pieces, to save memory."""
    piece_size = min(size, _PIECE)
    words = 2 * WORDS * piece_size

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


# The generator of the server's noise.
SECURE = ChaCha20()
NOISE_GENERATORS: Registry[NoiseGenerator] = Registry(
    "noise generator", {"philox": Philox(), "secure": SECURE}
)
