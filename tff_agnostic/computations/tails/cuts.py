"""Where the tail of the clients' losses begins, from a histogram in sums.

A level theta of Delta-FL (Laguel et al. 2021) keeps the clients with the largest losses, theta of
their weight. The server sees no loss: each client adds its weight to the bin of its loss, and
the server answers with a bin. Clients above it count in full, those in it with the share that is
left of theta, and those below it not at all. Losses of one bin are taken for equal: a bin of the
grid is 2.7% wide, so that a threshold is off by 1.36% at most. (Where the tail is a few clients,
bins of twice that width cost 1.7% of the objective, and these 0.3%: see the tests.)
"""

from typing import NamedTuple

import tensorflow as tf

from tff_agnostic.computations.histogram import LogGrid

GRID = LogGrid(num_bins=1025)
_ROUNDING = 1e-12


class Cut(NamedTuple):
    """Where the tail begins.

    Attributes:
        bin: Index of a bin of `GRID`, int32 scalar.
        share: How much of its weight a client in this bin counts, in [0, 1], float32 scalar.
    """

    bin: tf.Tensor
    share: tf.Tensor


def everyone() -> Cut:
    """Returns the cut below which there is nobody."""
    return Cut(tf.constant(0), tf.constant(1.0))


def share_of(cut: Cut, loss: tf.Tensor) -> tf.Tensor:
    """Returns how much of its weight a client counts, float32.

    Args:
        cut: Where the tail begins.
        loss: F_k, float32 of any shape; the server's histogram has it in the same bin.
    """
    bin_ = GRID.bin_of(loss)
    in_bin = tf.where(tf.equal(bin_, cut.bin), cut.share, 0.0)
    return tf.where(bin_ > cut.bin, 1.0, in_bin)


def histogram_of(loss: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the histogram of one client, int64 [bins]: its weight in the bin of its loss.

    Args:
        loss: F_k, float32 scalar.
        weight: alpha_k, a whole number, int64 scalar.
    """
    # A comparison, and no write at an index: that is what TensorFlow vectorises over clients.
    is_here = tf.equal(tf.range(GRID.num_bins), GRID.bin_of(loss))
    return tf.where(is_here, weight, tf.zeros_like(weight))


def exact_cut(histogram: tf.Tensor, theta: float) -> Cut:
    """Returns the cut with which exactly theta of the weight counts.

    It is the maximiser pi of sum_k pi_k F_k among those with pi_k <= alpha_k / theta: alpha_k /
    theta above the cut, and in it what is left.

    Args:
        histogram: The clients' weights by bins, int64 [bins], with a positive sum.
        theta: Conformity level, in (0, 1].
    """
    found = _quantile(histogram, theta)
    left = tf.where(found.left > found.rounding, found.left, 0.0)
    share = tf.cast(tf.minimum(left / found.inside, 1.0), tf.float32)
    # An empty bin is the quantile where all clients count.
    return Cut(found.bin, tf.where(found.inside > 0, share, 1.0))


def paper_cut(histogram: tf.Tensor, theta: float) -> Cut:
    """Returns the cut of Algorithm 2, line 6: F_k >= Quantile(1 - theta) counts in full.

    More than theta of the weight counts: 51 of 100 equal clients at theta = 0.5.
    """
    return Cut(_quantile(histogram, theta).bin, tf.constant(1.0))


class _Quantile(NamedTuple):
    """The bin of the (1 - theta)-quantile, the smallest with at most theta of the weight above it.

    Attributes:
        bin: Its index, int32.
        inside: Weight in it, float64.
        left: What is left of theta of the weight, float64.
        rounding: What may be left of it by rounding: 0.29 * 100 is less than 29 in floating point.
    """

    bin: tf.Tensor
    inside: tf.Tensor
    left: tf.Tensor
    rounding: tf.Tensor


def _quantile(histogram: tf.Tensor, theta: float) -> _Quantile:
    weights = tf.cast(histogram, tf.float64)
    # Whole numbers: sums are exact.
    above = tf.cumsum(weights, exclusive=True, reverse=True)
    total = tf.reduce_sum(weights)
    rounding = _ROUNDING * total
    is_tail = above <= theta * total + rounding
    bin_ = tf.argmax(tf.cast(is_tail, tf.int32), output_type=tf.int32)
    return _Quantile(bin_, weights[bin_], theta * total - above[bin_], rounding)
