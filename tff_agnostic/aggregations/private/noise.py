"""Kinds of a server's noise: functions of the number of the release, without a state.

`gaussian` is fresh noise for each release. `TreeResidual` is that of tree aggregation (DP-FTRL,
Kairouz et al. 2021): after t releases the noises add up to that of the nodes of a binary tree which
cover 1 to t, so that all prefix sums together cost a logarithm of the rounds.

What single numbers are drawn with, and of which type they are, is a generator's; see `generators`.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Optional, Protocol

import tensorflow as tf


class Draw(Protocol):
    """Draws the noise of all values of a release, or of one of them."""

    def __call__(self, level: tf.Tensor, number: tf.Tensor, /) -> tf.Tensor:
        """Returns noise that no other level or number has.

        Args:
            level: Of a node of a tree, int64 scalar below 64; 0 for other noise.
            number: Of the node, or of the release, int64 scalar.
        """


class Noise(Protocol):
    """A kind of noise."""

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec, /) -> tf.Tensor:
        """Returns the noise of a release.

        Args:
            draw: Draws it.
            release: Number of the release, int64 scalar, from 0.
            spec: What `draw` returns.
        """


class Release(NamedTuple):
    """Which release noise is for, and the secret that it is made of.

    Attributes:
        key: The secret, int64, as long as the generator's keys.
        exchange: Number of the exchange in its round.
        number: How many releases there were before, int64 scalar.
    """

    key: tf.Tensor
    exchange: int
    number: tf.Tensor


class NoisedGroup(NamedTuple):
    """Values that get noise of one standard deviation, z_g C_g.

    Attributes:
        positions: Which values of a release.
        multiplier: z_g, float64 scalar.
        limit: C_g, the bound of their joint l2 norm, float64 scalar.
    """

    positions: Sequence[int]
    multiplier: tf.Tensor
    limit: tf.Tensor


# By which the numbers of different trees' nodes are apart.
_TREE = 2**40


def gaussian(draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns noise that is independent of all other releases'."""
    del spec
    return draw(tf.constant(0, tf.int64), release)


@dataclasses.dataclass(frozen=True)
class TreeResidual:
    """Tree aggregation: the noise of the prefix sum up to a release, less that of the one before.

    With t = m 2^j, m odd, the nodes that cover 1 to t are those that cover 1 to t - 1 with j of
    them replaced by one, of level j.

    Attributes:
        restart_every: Releases of one tree, after which a new one begins; None for a single tree.
    """

    restart_every: Optional[int] = None

    def __call__(self, draw: Draw, release: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Returns the noise; see `Noise`."""
        tree, t = tf.constant(0, tf.int64), release + 1
        if self.restart_every is not None:
            tree, t = release // self.restart_every, release % self.restart_every + 1

        def node(level: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            # The node of this level that ends with a release, or holds it.
            index = tf.bitwise.right_shift(end, level)
            return draw(level, index + tree * _TREE)

        def is_covered(level: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
            del noise
            return tf.equal(tf.bitwise.right_shift(t, level) % 2, 0)

        def replaced(level: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return level + 1, noise - node(level, t - 1)

        start = (tf.constant(0, tf.int64), tf.zeros(spec.shape, spec.dtype))
        level, without_replaced = tf.while_loop(is_covered, replaced, start)
        return without_replaced + node(level, t)
