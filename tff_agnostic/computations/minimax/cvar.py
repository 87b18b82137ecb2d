"""CVaR over domains: lambda is the worst mixture of a conformity level, in closed form.

Source: Laguel et al. 2021, "A Superquantile Approach to Federated Learning with Heterogeneous
Devices", equation (2), with the p domains in the place of devices: a level theta in (0, 1] allows
the mixtures pi with pi_i <= alpha_i / theta, where alpha is the training mixture. The largest
sum_i pi_i L_i over them is the mean loss of the worst theta of the examples, where those of a
domain count alike: the (1 - theta)-superquantile, or conditional value at risk. theta = 1 allows
alpha alone; a theta of at most every alpha_i allows all mixtures, and the worst domain counts.

Pure functions on vectors of one entry per domain, usable with NumPy arrays.
"""

from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

# Of the total: what sums of bounds that should fill it exactly may leave.
_ROUNDING = 1e-12


def worst_within(losses: tf.Tensor, largest: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Returns the pi with the largest sum_i pi_i L_i among those of 0 <= pi_i <= b_i, sum = total.

    It is b_i for losses above a cut and 0 below; equal losses share what is left at the cut in
    proportion to b. Where sum_i b_i is less than the total, all of b is scaled up to it.

    Args:
        losses: L, float [p]; they are compared as they are, and equal ones are ties.
        largest: b, float64 [p], at least 0.
        total: What is shared, float64 scalar, at least 0.

    Returns:
        pi, float64 [p].
    """
    room = tf.reduce_sum(largest)
    largest = largest * tf.maximum(tf.math.divide_no_nan(total, room), 1.0)
    p = tf.size(losses)
    order = tf.argsort(losses, direction="DESCENDING", stable=True)
    descending = tf.gather(losses, order)
    is_new = tf.concat([[0], tf.cast(descending[1:] < descending[:-1], tf.int32)], axis=0)
    # The rank of each loss; all that is equal has one rank.
    ranks = tf.scatter_nd(order[:, tf.newaxis], tf.cumsum(is_new), [p])
    of_rank = tf.math.unsorted_segment_sum(largest, ranks, p)
    above = tf.cumsum(of_rank, exclusive=True)
    left = total - above
    left = tf.where(left > _ROUNDING * total, left, 0.0)
    share = tf.minimum(tf.math.divide_no_nan(left, of_rank), 1.0)
    return largest * tf.gather(share, ranks)


def cvar_step(
    lambda_: tf.Tensor,
    losses: tf.Tensor,
    training_mixture: Sequence[float],
    conformity: float,
    rate: float = 1.0,
    is_free: Optional[tf.Tensor] = None,
) -> tf.Tensor:
    """Returns (1 - rate) lambda + rate pi, where pi is the worst mixture of the level.

    Weights that are not free stay as they are, and pi is the worst of the mixtures that have them:
    the others share the rest within their own bounds alpha_i / theta or, where the rest is more
    than these allow, in proportion to alpha.

    Args:
        lambda_: A point of the simplex, float32 [p].
        losses: L, float32 [p].
        training_mixture: alpha, p positive numbers that sum to 1.
        conformity: theta, in (0, 1].
        rate: How far lambda goes to pi, in (0, 1].
        is_free: Which weights may change, bool [p]; all if None.
    """
    # float32 would lose the shares of rare domains in sums of all.
    before = tf.cast(lambda_, tf.float64)
    free = tf.ones_like(before) if is_free is None else tf.cast(is_free, tf.float64)
    kept = before * (1.0 - free)
    largest = tf.constant(training_mixture, tf.float64) / conformity * free
    total = tf.ones([], tf.float64) if is_free is None else tf.reduce_sum(before * free)
    worst = worst_within(losses, largest, total) + kept
    return tf.cast((1.0 - rate) * before + rate * worst, tf.float32)
