"""Encodes the values of a group as noised integers, and decodes their sum.

A vector is scaled to a norm of c steps, rotated if it is an update, rounded, noised, and reduced
modulo a power of two. The sum over clients takes the way back. Rounding keeps norms bounded.

The rotation is a randomised Hadamard transform, which spreads a vector evenly over its coordinates:
y = H D x / sqrt(p), with H the Hadamard matrix of p rows, a power of two, and random signs D. Norms
stay, and each coordinate of y is sub-Gaussian with the variance |x|^2 / p (Kairouz, Liu, Steinke
2021, section 4), so that integers of fewer bits hold it. Signs are public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.noise import skellam, skellam_words
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.stateless_random import fold_in
from tff_agnostic.privacy.distributed import ROUNDING_BETA, rounded_sensitivity

# Room for what float32 adds to a norm when a vector is rotated.
_ROOM = 1.0 - 2.0**-14
# int64 sums in a simulation: bits of a residue and of the number of clients together.
_MAX_BITS = 62
# Largest number of random words for the noise of one value.
_MAX_WORDS = 1024
# First number of the seeds of signs, which no other seed begins with.
_ROTATION = 1
# Largest probability that a coordinate of a group's vector wraps around in a round.
WRAP_PROBABILITY = 1e-9
# Larger factors take more multiplications, smaller ones more passes over the vector.
_MAX_FACTOR = 32


class ClientNoise(NamedTuple):
    """Random numbers of a client for a group of d values; see `noise_generators`.

    Attributes:
        uniforms: For rounding, in [0, 1), float32 [d].
        words: For noise, of 64 random bits, int64 [`IntegerCodec.num_words`]; None for no noise.
    """

    uniforms: tf.Tensor
    words: Optional[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class IntegerCodec:
    """Turns the values of a group into integers, and their sum back.

    Attributes:
        is_rotated: Whether they are rotated, as an update is, so that each becomes small.
        num_values: Number of values.
        steps: c, steps of the integers in the bound of the group.
        deviation: z_g c, standard deviation in steps of the noise of all clients that add it.
        expected_clients: Expected number of clients whose values are in a sum.
        noise_clients: n, number of clients whose noise is in it, at least as many.
        bundle: How many silent clients one entry of a simulated cohort may stand for.
        place: A number that no other group and communication step has.
    """

    is_rotated: bool
    num_values: int
    steps: float
    deviation: float
    expected_clients: float
    noise_clients: float
    bundle: int
    place: int

    @property
    def size(self) -> int:
        """Number of integers: a power of two if they are rotated."""
        return padded_size(self.num_values) if self.is_rotated else self.num_values

    @property
    def num_words(self) -> int:
        """Number of random words of one client's noise."""
        num_words = skellam_words(self.variance, self.size)
        if num_words > _MAX_WORDS * self.size:
            raise OptionError(
                "noise_multiplier",
                f"noise that takes a client at most {_MAX_WORDS} random numbers for each value",
                Verbatim(
                    f"{num_words / self.size:.4g}: with {self.noise_clients:g} clients and "
                    f"{self.steps:g} steps it deviates by {math.sqrt(self.variance):.4g} steps"
                ),
            )
        return num_words

    @property
    def bits(self) -> int:
        """Bits of the modular sum."""
        bits = bits_of_sum(
            self.steps, self.size, self.is_rotated, self.deviation, self.expected_clients
        )
        total = bits + math.log2(self.noise_clients)
        if total > _MAX_BITS:
            raise OptionError(
                "noise_multiplier",
                f"sums of at most {_MAX_BITS} bits",
                Verbatim(
                    f"{math.ceil(total)}, with {self.noise_clients:g} clients, {self.steps:g} steps"
                    " and this noise"
                ),
            )
        return bits

    @property
    def variance(self) -> float:
        """The variance of one client's noise: (z_g c)^2 / n."""
        return float(self.deviation**2 / self.noise_clients)

    def encode(
        self,
        values: Sequence[tf.Tensor],
        limit: tf.Tensor,
        draws: ClientNoise,
        release: tf.Tensor,
        silent: tf.Tensor,
    ) -> tf.Tensor:
        """On a client: returns its residues, int64 [`size`].

        Args:
            values: The group's values, with a joint norm of at most `limit`.
            limit: The bound of the group, float64 scalar.
            draws: The client's random numbers.
            release: Number of the release, int64 scalar.
            silent: Number of silent clients that the residues are for, 1 or `bundle`, int32 scalar;
                0 for one client that takes part.
        """
        # Few values may be whole numbers beyond float32.
        dtype = tf.float32 if self.is_rotated else tf.float64
        vector = joined([tf.cast(value, dtype) for value in values])
        scale = tf.math.divide_no_nan(tf.constant(self._steps_of_limit, tf.float64), limit)
        vector *= tf.cast(scale, dtype)
        if self.is_rotated:
            vector = rotated(vector, self._signs(release))
        max_norm = rounded_sensitivity(self.steps, self.size, ROUNDING_BETA).l2
        integers = rounded(vector, max_norm, draws.uniforms)
        if draws.words is None:
            return residues(integers, self.bits)
        variances, which = [self.variance], None
        if self.bundle > 1:
            # Skellam noise of a sum is Skellam noise of the sum of the variances.
            variances.append(self.bundle * self.variance)
            which = tf.cast(silent > 1, tf.int64)
        noise = skellam(draws.words, variances, self.size, which)
        return residues(integers + noise, self.bits)

    def decode(self, summed: tf.Tensor, limit: tf.Tensor, release: tf.Tensor) -> tf.Tensor:
        """On the server: returns the sum of the values, float64 [`num_values`].

        Args:
            summed: Sum of the clients' residues, int64 [`size`].
            limit: The bound of the group, float64 scalar.
            release: Number of the release, int64 scalar.
        """
        vector = tf.cast(centred(summed, self.bits), tf.float64)
        if self.is_rotated:
            vector = rotated_back(vector, self._signs(release))
        return vector[: self.num_values] * (limit / self._steps_of_limit)

    @property
    def _steps_of_limit(self) -> float:
        return self.steps * (_ROOM if self.is_rotated else 1.0)

    def _signs(self, release: tf.Tensor) -> tf.Tensor:
        place = tf.constant(self.place, tf.int64)
        seed = fold_in(fold_in(tf.constant(_ROTATION, tf.int64), release), place)
        return random_signs(seed, self.size)


def joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the entries of values one after the other."""
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def pieces_of(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns the first entries of a vector in shapes, then its other entries, if there are any."""
    sizes = [shape.num_elements() for shape in shapes]
    left = vector.shape[0] - sum(sizes)
    pieces = tf.split(vector, [*sizes, left] if left else sizes)
    shaped = [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes)]
    return [*shaped, *pieces[len(sizes) :]]


def rounded(vector: tf.Tensor, max_norm: float, uniforms: tf.Tensor) -> tf.Tensor:
    """Returns whole numbers near a vector, int64 [d], of a norm of at most `max_norm`.

    Each coordinate is rounded up with the probability of its fraction. If that makes the vector too
    long, which is improbable (Kairouz, Liu, Steinke 2021, proposition 22), coordinates are rounded
    toward zero, which never lengthens the vector. The paper draws again instead.

    Args:
        vector: float32 or float64 [d], of a norm of at most `max_norm`.
        max_norm: Bound of the norm after rounding; see `distributed.rounded_sensitivity`.
        uniforms: Numbers in [0, 1), float32 [d].
    """
    by_chance = tf.floor(vector + tf.cast(uniforms, vector.dtype))
    square = tf.reduce_sum(tf.square(tf.cast(by_chance, tf.float64)))
    # A cast rounds toward zero.
    return tf.cast(tf.where(square <= max_norm**2, by_chance, vector), tf.int64)


def bits_of_sum(
    max_norm: float, size: int, is_rotated: bool, deviation: float, expected_clients: float
) -> int:
    """Returns how many bits the modular sum of a group's vectors needs.

    A coordinate then wraps around with a probability of at most `WRAP_PROBABILITY`, a third for
    each of: a Poisson cohort of more than M clients; a sum without noise beyond its bound, which is
    M times the norm, or a sub-Gaussian bound for a rotated vector; and noise beyond its bound.
    Tails of Poisson and Skellam numbers of variance v are bounded by exp(-t^2 / (2 (v + t / 3))).

    Args:
        max_norm: Norm of a client's vector before rounding.
        size: d, its coordinates.
        is_rotated: Whether it is.
        deviation: Standard deviation of the noise of the expected clients.
    """
    third = WRAP_PROBABILITY / 3
    max_clients = expected_clients + _beyond(expected_clients, math.log(1 / third))
    of_any = math.log(2 * size / third)
    share = min(1.0, math.sqrt(2 * of_any / size)) if is_rotated else 1.0
    noise = _beyond(max_clients / expected_clients * deviation**2, of_any)
    # Rounding changes each client's coordinate by less than 1.
    largest = max_clients * (max_norm * share + 1) + noise
    return math.floor(math.log2(largest)) + 2


def _beyond(variance: float, log_inverse: float) -> float:
    """Returns t with exp(-t^2 / (2 (variance + t / 3))) = exp(-log_inverse)."""
    return log_inverse / 3 + math.sqrt(log_inverse**2 / 9 + 2 * variance * log_inverse)


def residues(integers: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns int64 numbers modulo 2^bits."""
    return tf.bitwise.bitwise_and(integers, tf.constant(2**bits - 1, tf.int64))


def centred(summed: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns the numbers nearest 0 that equal the given sums modulo 2^bits, int64."""
    half = 2 ** (bits - 1)
    return residues(summed + half, bits) - half


def padded_size(size: int) -> int:
    """Returns the least power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


def random_signs(seed: tf.Tensor, size: int) -> tf.Tensor:
    """Returns 1 or -1 by chance, float64 [size], from an int64 scalar."""
    bits = tf.bitwise.bitwise_and(fold_in(seed, tf.range(size)), tf.constant(1, tf.int64))
    return tf.cast(1 - 2 * bits, tf.float64)


def rotated(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns H D x / sqrt(p), [p], of x [d] with zeros up to p.

    Args:
        vector: x, float32 or float64 [d], d at most p.
        signs: The diagonal of D, float64 [p]; p is a power of two.
    """
    padding = signs.shape[0] - vector.shape[0]
    return _hadamard(tf.pad(vector, [[0, padding]]) * tf.cast(signs, vector.dtype))


def rotated_back(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns D H y / sqrt(p), the inverse, float64 [p]."""
    return _hadamard(vector) * signs


def _hadamard(vector: tf.Tensor) -> tf.Tensor:
    # H of p rows is a Kronecker product of smaller ones: each factor works on the last digits of
    # the index, which then become its first ones.
    size = left = vector.shape[0]
    while left > 1:
        factor = min(left, _MAX_FACTOR)
        matrix = tf.constant(_matrix(factor) / np.sqrt(factor), vector.dtype)
        vector = tf.transpose(tf.matmul(tf.reshape(vector, [size // factor, factor]), matrix))
        left //= factor
    return tf.reshape(vector, [size])


def _matrix(size: int) -> np.ndarray:
    """Returns the Hadamard matrix (Sylvester)."""
    matrix = np.ones([1, 1])
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
