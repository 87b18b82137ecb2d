"""Mixtures within bounds per domain: lower <= lambda <= upper.

Both projections clip a family of points that grows with one number, until the sum is 1: v + nu for
the Euclidean one, c y for the entropy. As a function of that number the sum is piecewise linear,
and it bends only where a coordinate reaches a bound, so that the piece that holds 1 is found by
trying all bends, and solved exactly.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tff_agnostic.errors import UserError

_TOLERANCE = 1e-6
# More than the whole of a coordinate's range.
_WIDE_GAP = 2.0


@dataclasses.dataclass(frozen=True)
class Box:
    """A box within the simplex.

    Attributes:
        lower: Least weight of each domain; they sum to at most 1.
        upper: Largest weight of each domain; they sum to at least 1.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda."""
        return coordinates

    def slopes(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns L."""
        return losses

    def nearest(self, point: tf.Tensor) -> tf.Tensor:
        """Returns clip(v + nu, lower, upper) of sum 1."""
        lower, upper = self._bounds()
        v = _without_gaps(tf.cast(point, tf.float64))
        bends = tf.concat([lower - v, upper - v], axis=0)
        shift = _solve(bends, lower, upper, offset=v, slope=tf.ones_like(v))
        return tf.cast(tf.clip_by_value(v + shift, lower, upper), point.dtype)

    def nearest_in_entropy(self, point: tf.Tensor) -> tf.Tensor:
        """Returns clip(c y, lower, upper) of sum 1."""
        lower, upper = self._bounds()
        y = tf.cast(point, tf.float64)
        bends = tf.math.divide_no_nan(tf.concat([lower, upper], axis=0), tf.concat([y, y], axis=0))
        scale = _solve(bends, lower, upper, offset=tf.zeros_like(y), slope=y)
        return tf.cast(tf.clip_by_value(scale * y, lower, upper), point.dtype)

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns lambda_0.

        Raises:
            UserError: If lambda_0 is outside of the box.
        """
        lower, upper = np.array(self.lower), np.array(self.upper)
        if np.any(initial < lower - _TOLERANCE) or np.any(initial > upper + _TOLERANCE):
            raise UserError(
                "--initial_domain_weights: expected a lambda_0 between --lambda_lower="
                f"{lower.tolist()} and --lambda_upper={upper.tolist()}, found {initial.tolist()}"
            )
        return initial

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns lower, with what is left of 1 given to the largest losses first."""
        lambda_ = np.array(self.lower, np.float64)
        left = 1.0 - lambda_.sum()
        for i in np.argsort(-losses, kind="stable"):
            gain = min(left, self.upper[i] - self.lower[i])
            lambda_[i] += gain
            left -= gain
        return lambda_

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet`."""
        return {
            "set": "box",
            "lower": dict(zip(domain_names, self.lower)),
            "upper": dict(zip(domain_names, self.upper)),
        }

    def _bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(self.lower, tf.float64), tf.constant(self.upper, tf.float64)


def _without_gaps(point: tf.Tensor) -> tf.Tensor:
    """Returns a point with the same projection whose coordinates are near each other.

    A coordinate that is more than 1 above another one is at its upper bound before the other one
    leaves its lower bound, however far above it is; and a constant added to all changes nothing.
    """
    order = tf.argsort(point, direction="DESCENDING")
    descending = tf.gather(point, order)
    gaps = tf.minimum(descending[:-1] - descending[1:], _WIDE_GAP)
    closer = -tf.concat([tf.zeros([1], point.dtype), tf.cumsum(gaps)], axis=0)
    return tf.gather(closer, tf.argsort(order))


def _solve(
    bends: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, offset: tf.Tensor, slope: tf.Tensor
) -> tf.Tensor:
    """Returns a t with sum(clip(offset + slope t, lower, upper)) = 1."""
    bends = tf.sort(bends)
    clipped = tf.clip_by_value(offset + slope * bends[:, tf.newaxis], lower, upper)
    sums = tf.reduce_sum(clipped, axis=1)
    # The last bend at which the sum is not beyond 1 starts the piece.
    k = tf.maximum(tf.reduce_sum(tf.cast(sums <= 1.0, tf.int32)) - 1, 0)
    next_bend = bends[tf.minimum(k + 1, tf.size(bends) - 1)]
    within = offset + slope * (bends[k] + next_bend) / 2
    free = tf.cast((within > lower) & (within < upper), slope.dtype)
    of_free = tf.reduce_sum(slope * free)
    fixed = tf.reduce_sum(clipped[k] * (1.0 - free)) + tf.reduce_sum(offset * free)
    return tf.where(of_free > 0, tf.math.divide_no_nan(1.0 - fixed, of_free), bends[k])
