"""How the values of one group travel: as integers with noise, of which only a sum is turned back.

A vector is scaled to a norm of c steps, rotated if it is an update, rounded, noised, and reduced
modulo a power of two. The sum over clients takes the way back.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tff_agnostic.aggregations.private.integers import bits_of_sum, centred, residues, rounded
from tff_agnostic.aggregations.private.rotation import (
    padded_size,
    random_signs,
    rotated,
    rotated_back,
)
from tff_agnostic.aggregations.private.skellam import skellam, skellam_words
from tff_agnostic.computations.seeds import fold_in
from tff_agnostic.errors import UserError
from tff_agnostic.privacy.integer_noise import ROUNDING_BETA, rounded_sensitivity

# Room for what float32 adds to a norm when a vector is rotated.
_ROOM = 1.0 - 2.0**-14
# int64 sums in a simulation: bits of a residue and of the number of clients together.
_MAX_BITS = 62
# Of noise, for one value.
_MAX_WORDS = 1024
# Keeps signs apart from what else is made of small numbers.
_ROTATION = 1


class Draws(NamedTuple):
    """Random numbers of a client for a group of d values; see `generators`.

    Attributes:
        uniforms: For rounding, in [0, 1), float32 [d].
        words: For noise, of 64 random bits, int64 [`IntegerCodec.num_words`].
    """

    uniforms: tf.Tensor
    words: tf.Tensor


@dataclasses.dataclass(frozen=True)
class IntegerCodec:
    """Turns the values of a group into integers, and their sum back.

    Attributes:
        is_rotated: Whether they are rotated: the many values of an update, which that makes small.
        num_values: How many there are.
        steps: c, steps of the integers in the bound of the group.
        deviation: z_g c, standard deviation in steps of the noise of all clients that add it.
        expected_clients: Clients whose values a sum is expected to hold.
        noise_clients: n, clients whose noise it holds; no fewer.
        bundle: How many silent clients one entry of a simulated cohort may stand for.
        place: A number of its own of each exchange and group.
        by_tables: Whether noise is looked up however wide it is.
    """

    is_rotated: bool
    num_values: int
    steps: float
    deviation: float
    expected_clients: float
    noise_clients: float
    bundle: int
    place: int
    by_tables: bool = False

    @property
    def size(self) -> int:
        """How many integers there are: a power of two if they are rotated."""
        return padded_size(self.num_values) if self.is_rotated else self.num_values

    @property
    def num_words(self) -> int:
        """How many random words one client's noise takes.

        Raises:
            UserError: If it is so wide that it would take too many.
        """
        num_words = skellam_words(self.variance, self.size, self.by_tables)
        if num_words > _MAX_WORDS * self.size:
            raise UserError(
                f"--integer_clip: expected fewer than {self.steps:g} steps with "
                f"--noise_generator=secure, {self.noise_clients:g} clients and this noise: each "
                f"client's noise deviates by {math.sqrt(self.variance):.4g} steps, and takes "
                f"{num_words // self.size} random numbers for each value, more than {_MAX_WORDS}"
            )
        return num_words

    @property
    def bits(self) -> int:
        """Bits of the modular sum.

        Raises:
            UserError: If integers are too fine to be summed.
        """
        bits = bits_of_sum(
            self.steps, self.size, self.is_rotated, self.deviation, self.expected_clients
        )
        total = bits + math.log2(self.noise_clients)
        if total > _MAX_BITS:
            raise UserError(
                f"--integer_clip: expected so few steps that sums of them have {_MAX_BITS} bits, "
                f"found {self.steps:g}, which with this noise and {self.noise_clients:g} clients"
                f" takes {math.ceil(total)}"
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
        draws: Draws,
        release: tf.Tensor,
        silent: tf.Tensor,
    ) -> tf.Tensor:
        """On a client: returns what it submits, int64 [`size`].

        Args:
            values: Of a joint norm of at most `limit`.
            limit: The bound of the group, float64 scalar.
            draws: The client's random numbers.
            release: Number of the release, int64 scalar.
            silent: 1 or `bundle` if it is what so many silent clients submit together, int32
                scalar; 0 or 1 for one client.
        """
        # Few values may be whole numbers beyond float32.
        dtype = tf.float32 if self.is_rotated else tf.float64
        vector = joined([tf.cast(value, dtype) for value in values])
        scale = tf.math.divide_no_nan(tf.constant(self._steps_of_limit, tf.float64), limit)
        vector *= tf.cast(scale, dtype)
        if self.is_rotated:
            vector = rotated(vector, self._signs(release))
        max_norm = rounded_sensitivity(self.steps, self.size, ROUNDING_BETA).l2
        variances, which = [self.variance], None
        if self.bundle > 1:
            # Skellam noise of a sum is Skellam noise of the sum of the variances.
            variances.append(self.bundle * self.variance)
            which = tf.cast(silent > 1, tf.int64)
        noise = skellam(draws.words, variances, self.size, which, self.by_tables)
        return residues(rounded(vector, max_norm, draws.uniforms) + noise, self.bits)

    def decode(self, summed: tf.Tensor, limit: tf.Tensor, release: tf.Tensor) -> tf.Tensor:
        """On the server: returns the sum of the values, float64 [`num_values`].

        Args:
            summed: What clients submitted, int64 [`size`].
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
    """Returns the first entries of a vector in shapes; what is left, if anything, comes last."""
    sizes = [shape.num_elements() for shape in shapes]
    left = vector.shape[0] - sum(sizes)
    pieces = tf.split(vector, [*sizes, left] if left else sizes)
    shaped = [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes)]
    return [*shaped, *pieces[len(sizes) :]]
