"""Noise of the server: a function of a secret key and the number of the release, without a state.

`gaussian` is fresh noise for each release. `tree_residual` is that of tree aggregation (DP-FTRL,
Kairouz et al. 2021): after t releases the noises add up to that of the nodes of a binary tree which
cover 1 to t, so that all prefix sums together cost a logarithm of the rounds.

Both are standard normal, float32. The generator is Philox keyed by 128 secret bits; float32 samples
have no defence against attacks on floating-point arithmetic.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Optional, Protocol

import tensorflow as tf


class Place(NamedTuple):
    """Which value of which release noise is for; different places have independent noise.

    Attributes:
        exchange: Number of the exchange in the round.
        value: Number of the value in the answer.
    """

    exchange: int
    value: int


class Noise(Protocol):
    """A kind of noise."""

    def __call__(
        self, key: tf.Tensor, place: Place, release: tf.Tensor, shape: Sequence[int], /
    ) -> tf.Tensor:
        """Returns the noise of a value in one release.

        Args:
            key: The secret, int64 [2].
            place: What it is for.
            release: Number of the release, int64 scalar, from 0.
            shape: Shape of the value.
        """


# Bits of a seed's first number that tell places, and levels of a tree, apart.
_LEVEL_BITS, _VALUE_BITS = 8, 32
# By which the numbers of different trees' nodes are apart.
_TREE = 2**40


def _normal(
    key: tf.Tensor, place: Place, level: tf.Tensor, number: tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
    of_place = (place.exchange << (_LEVEL_BITS + _VALUE_BITS)) + (place.value << _LEVEL_BITS)
    code = tf.stack([tf.constant(of_place, tf.int64) + level, number])
    seed = tf.bitwise.bitwise_xor(key, code)
    return tf.random.stateless_normal(shape, seed, alg="philox")


def gaussian(key: tf.Tensor, place: Place, release: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Returns noise that is independent of all other releases'."""
    return _normal(key, place, tf.constant(0, tf.int64), release, shape)


@dataclasses.dataclass(frozen=True)
class TreeResidual:
    """Tree aggregation: the noise of the prefix sum up to a release, less that of the one before.

    With t = m 2^j, m odd, the nodes that cover 1 to t are those that cover 1 to t - 1 with j of
    them replaced by one, of level j.

    Attributes:
        restart_every: Releases of one tree, after which a new one begins; None for a single tree.
    """

    restart_every: Optional[int] = None

    def __call__(
        self, key: tf.Tensor, place: Place, release: tf.Tensor, shape: Sequence[int]
    ) -> tf.Tensor:
        """Returns the noise; see `Noise`."""
        tree, t = tf.constant(0, tf.int64), release + 1
        if self.restart_every is not None:
            tree, t = release // self.restart_every, release % self.restart_every + 1

        def node(level: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            # The node of this level that ends with a release, or holds it.
            index = tf.bitwise.right_shift(end, level)
            return _normal(key, place, level, index + tree * _TREE, shape)

        def is_covered(level: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
            del noise
            return tf.equal(tf.bitwise.right_shift(t, level) % 2, 0)

        def replaced(level: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return level + 1, noise - node(level, t - 1)

        start = (tf.constant(0, tf.int64), tf.zeros(shape))
        level, without_replaced = tf.while_loop(is_covered, replaced, start)
        return without_replaced + node(level, t)
