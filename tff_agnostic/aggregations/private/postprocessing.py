"""What becomes of noisy sums before anybody divides by them; costs no privacy."""

from collections.abc import Sequence

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound


def without_noise_below(
    values: Sequence[tf.Tensor],
    deviations: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    absent_below: float,
) -> list[tf.Tensor]:
    """Returns sums in which what is lost in noise is absent, and ratios are within their limits.

    A denominator below `absent_below` standard deviations of its noise is zero, and so are the
    values that are divided by it; others lie between 0 and their largest ratio to it. Public sums
    take the place of what nobody sent. Counts of clients of which each has one are not negative.

    Args:
        values: The flattened sum, float64.
        deviations: Standard deviation of the noise of each value.
        bounds: The bound of each value.
        absent_below: Standard deviations.
    """
    result = list(values)
    for i, bound in enumerate(bounds):
        if bound.public_sum is not None:
            result[i] = tf.fill(values[i].shape, tf.constant(bound.public_sum, tf.float64))
        elif bound.denominator:
            is_there = (values[i] > 0) & (values[i] >= absent_below * deviations[i])
            result[i] = tf.where(is_there, values[i], tf.zeros_like(values[i]))
        elif bound.one_of is not None:
            result[i] = tf.maximum(values[i], 0.0)
    for i, bound in enumerate(bounds):
        if bound.ratio is None or bound.denominator:
            continue
        below = next(
            (
                k
                for k, other in enumerate(bounds)
                if other.denominator and other.ratio == bound.ratio
            ),
            None,
        )
        if below is None:
            continue
        denominator = result[below]
        if not bound.signed:
            largest = denominator * (bound.limit / bounds[below].limit)
            result[i] = tf.minimum(tf.maximum(result[i], 0.0), largest)
        else:
            result[i] = tf.where(denominator > 0, result[i], tf.zeros_like(result[i]))
    return result
