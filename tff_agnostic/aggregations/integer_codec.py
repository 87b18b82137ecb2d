"""Encodes the values of a group as noised integers, and decodes their sum.

Encoding scales a vector to a norm of c steps, rotates it if it is an update, rounds it, adds noise,
and reduces it modulo a power of two. Decoding inverts these steps for the sum over clients.
Rounding keeps norms bounded.

The rotation is a randomised Hadamard transform, y = H D x / sqrt(p). H is the Hadamard matrix with
p rows, a power of two. D is a diagonal matrix with random, public signs. The rotation preserves
norms and spreads a vector evenly over its coordinates: each coordinate of y is sub-Gaussian with
the variance |x|^2 / p (Kairouz, Liu, Steinke 2021, section 4), so that integers need fewer bits.
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

# Margin for the error of a norm in a float32 rotation.
_ROOM = 1.0 - 2.0**-14
# Maximum number of bits of a sum over all clients, as simulations sum in int64.
_MAX_BITS = 62
# Maximum number of random words for the noise of one value.
_MAX_WORDS = 1024
# First number of the seeds from which signs are drawn; no other seed starts with this number.
_ROTATION = 1
# Maximum probability that a coordinate of a group's vector wraps around in a round.
WRAP_PROBABILITY = 1e-9
# Maximum size of a factor of the Hadamard matrix: larger factors need more multiplications, smaller
# factors more passes over the vector.
_MAX_FACTOR = 32


class ClientNoise(NamedTuple):
    """Random numbers of a client for a group of d values; see `noise_generators`.

    Attributes:
        uniforms: Uniform numbers for rounding, in [0, 1), float32 [d].
        words: Random 64-bit words for noise, int64 [`IntegerCodec.num_words`]; None for no noise.
    """

    uniforms: tf.Tensor
    words: Optional[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class IntegerCodec:
    """Converts the values of a group to integers, and their sum back.

    Attributes:
        is_rotated: Whether to rotate the values, as for updates, so that all coordinates are small.
        steps: c, number of integer steps in the bound of the group.
        deviation: z_g c, standard deviation of all clients' joint noise, in steps.
        expected_clients: Expected number of clients with values in a sum.
        noise_clients: n, number of clients with noise in the sum, at least `expected_clients`.
        bundle: Maximum number of silent clients that one entry of a simulated cohort represents.
        place: Number that identifies the group and its communication step.
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
        """Number of integers: a power of two if the values are rotated."""
        return padded_size(self.num_values) if self.is_rotated else self.num_values

    @property
    def num_words(self) -> int:
        """Number of random words for one client's noise."""
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
        """Number of bits of the modular sum."""
        bits = sum_bits(
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
        """On a client: returns the residues of its values, int64 [`size`].

        Args:
            values: The group's values, with a joint norm of at most `limit`.
            limit: The bound of the group, float64 scalar.
            draws: The client's random numbers.
            release: Release number, int64 scalar.
            silent: Number of silent clients that the residues represent, 1 or `bundle`, int32
                scalar; 0 if they represent one training client.
        """
        # Groups that are not rotated may contain integers beyond the precision of float32.
        dtype = tf.float32 if self.is_rotated else tf.float64
        vector = joined([tf.cast(value, dtype) for value in values])
        scale = tf.math.divide_no_nan(tf.constant(self._limit_steps, tf.float64), limit)
        vector *= tf.cast(scale, dtype)
        if self.is_rotated:
            vector = rotated(vector, self._signs(release))
        max_norm = rounded_sensitivity(self.steps, self.size, ROUNDING_BETA).l2
        integers = rounded(vector, max_norm, draws.uniforms)
        if draws.words is None:
            return residues(integers, self.bits)
        variances, which = [self.variance], None
        if self.bundle > 1:
            # The sum of several clients' Skellam noise is Skellam noise with the summed variance.
            variances.append(self.bundle * self.variance)
            which = tf.cast(silent > 1, tf.int64)
        noise = skellam(draws.words, variances, self.size, which)
        return residues(integers + noise, self.bits)

    def decode(self, summed: tf.Tensor, limit: tf.Tensor, release: tf.Tensor) -> tf.Tensor:
        """On the server: returns the sum of the values, float64 [`num_values`].

        Args:
            summed: Sum of the clients' residues, int64 [`size`].
            limit: The bound of the group, float64 scalar.
            release: Release number, int64 scalar.
        """
        vector = tf.cast(centred(summed, self.bits), tf.float64)
        if self.is_rotated:
            vector = rotated_back(vector, self._signs(release))
        return vector[: self.num_values] * (limit / self._limit_steps)

    @property
    def _limit_steps(self) -> float:
        return self.steps * (_ROOM if self.is_rotated else 1.0)

    def _signs(self, release: tf.Tensor) -> tf.Tensor:
        place = tf.constant(self.place, tf.int64)
        seed = fold_in(fold_in(tf.constant(_ROTATION, tf.int64), release), place)
        return random_signs(seed, self.size)


def joined(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns all entries of the values as one vector."""
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def split_vector(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Splits a vector into pieces of given shapes, and one more piece if entries remain."""
    sizes = [shape.num_elements() for shape in shapes]
    num_left = vector.shape[0] - sum(sizes)
    pieces = tf.split(vector, [*sizes, num_left] if num_left else sizes)
    shaped = [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes)]
    return [*shaped, *pieces[len(sizes) :]]


def rounded(vector: tf.Tensor, max_norm: float, uniforms: tf.Tensor) -> tf.Tensor:
    """Rounds a vector randomly to integers, int64 [d], with a norm of at most `max_norm`.

    Each coordinate is rounded up with the probability of its fraction. In the improbable case that
    the result exceeds `max_norm` (Kairouz, Liu, Steinke 2021, proposition 22), coordinates are
    rounded toward zero, which never increases the norm. The paper instead draws again.

    Args:
        vector: float32 or float64 [d], with a norm of at most `max_norm`.
        max_norm: Bound of the norm after rounding; see `distributed.rounded_sensitivity`.
        uniforms: Uniform numbers in [0, 1), float32 [d].
    """
    randomly_rounded = tf.floor(vector + tf.cast(uniforms, vector.dtype))
    square = tf.reduce_sum(tf.square(tf.cast(randomly_rounded, tf.float64)))
    # A cast rounds toward zero.
    return tf.cast(tf.where(square <= max_norm**2, randomly_rounded, vector), tf.int64)


def sum_bits(
    max_norm: float, size: int, is_rotated: bool, deviation: float, expected_clients: float
) -> int:
    """Returns the number of bits that the modular sum of a group's vectors needs.

    With this number of bits, a coordinate wraps around with a probability of at most
    `WRAP_PROBABILITY`. This probability is divided equally between three events: more than M
    clients in a Poisson cohort, a noiseless sum beyond its bound, and noise beyond its bound. The
    noiseless bound is M times the norm, or a sub-Gaussian bound for a rotated vector. Tails of
    Poisson and Skellam numbers of variance v are bounded by exp(-t^2 / (2 (v + t / 3))).

    Args:
        max_norm: Norm of a client's vector before rounding.
        size: d, number of coordinates.
        deviation: Standard deviation of the noise of the expected clients.
    """
    third = WRAP_PROBABILITY / 3
    max_clients = expected_clients + _beyond(expected_clients, math.log(1 / third))
    deviations = math.log(2 * size / third)
    share = min(1.0, math.sqrt(2 * deviations / size)) if is_rotated else 1.0
    noise = _beyond(max_clients / expected_clients * deviation**2, deviations)
    # Add 1, as rounding changes a client's coordinate by less than 1.
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
    """Returns the smallest power of two of at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def random_signs(seed: tf.Tensor, size: int) -> tf.Tensor:
    """Returns random signs, 1 or -1, float64 [size], from an int64 scalar."""
    bits = tf.bitwise.bitwise_and(fold_in(seed, tf.range(size)), tf.constant(1, tf.int64))
    return tf.cast(1 - 2 * bits, tf.float64)


def rotated(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns H D x / sqrt(p), [p], where x [d] is padded with zeros to p.

    Args:
        vector: x, float32 or float64 [d], d at most p.
        signs: The diagonal of D, float64 [p]; p is a power of two.
    """
    padding = signs.shape[0] - vector.shape[0]
    return _hadamard(tf.pad(vector, [[0, padding]]) * tf.cast(signs, vector.dtype))


def rotated_back(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns D H y / sqrt(p), the inverse of `rotated`, float64 [p]."""
    return _hadamard(vector) * signs


def _hadamard(vector: tf.Tensor) -> tf.Tensor:
    # H is a Kronecker product of smaller matrices. Each pass multiplies by one factor, and moves
    # the transformed digits of the index to the front.
    size = num_left = vector.shape[0]
    while num_left > 1:
        factor = min(num_left, _MAX_FACTOR)
        matrix = tf.constant(_matrix(factor) / np.sqrt(factor), vector.dtype)
        vector = tf.transpose(tf.matmul(tf.reshape(vector, [size // factor, factor]), matrix))
        num_left //= factor
    return tf.reshape(vector, [size])


def _matrix(size: int) -> np.ndarray:
    """Returns the Hadamard matrix by Sylvester's construction."""
    matrix = np.ones([1, 1])
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
