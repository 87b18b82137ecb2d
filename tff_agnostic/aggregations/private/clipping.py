"""What clipping leaves of a client's answer: every group within its bound, ratios as they were.

Pure functions of one client's values. Whatever a client answers, be it huge or not a number, the
sum of a group changes by no more than its bound when the client joins or leaves.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.aggregations.private.groups import Group

# Results are rounded to float32; what is scaled to its bound stays a hair below.
_ROOM = 1.0 - 1e-6


def l2_norm(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm of some values, float64 scalar."""
    squares = [tf.reduce_sum(tf.square(tf.cast(value, tf.float64))) for value in values]
    return tf.sqrt(tf.add_n(squares))


def finite(value: tf.Tensor) -> tf.Tensor:
    """Returns a value with zeros in place of entries that are no finite numbers."""
    if not value.dtype.is_floating:
        return value
    return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))


def scaled_ratios(values: Sequence[tf.Tensor], bounds: Sequence[Bound]) -> list[tf.Tensor]:
    """Scales values that form a ratio so that the norm of none of them exceeds its bound.

    Updates are scaled with their weights here, and do not count: they are clipped afterwards, to a
    norm of their own. An integer n becomes floor(f n), and entries of the values beside it are
    scaled by floor(f n) / n, as in secure sums.

    Args:
        values: The flattened answer.
        bounds: The bound of each value.
    """
    scaled = list(values)
    ratios = dict.fromkeys(bound.ratio for bound in bounds if bound.ratio is not None)
    for ratio in ratios:
        members = [i for i, bound in enumerate(bounds) if bound.ratio == ratio]
        factor = _factor(scaled, bounds, members)
        for i in members:
            value = tf.cast(scaled[i], tf.float64) * factor
            if bounds[i].integer:
                value = tf.round(value)
            scaled[i] = tf.cast(value, values[i].dtype)
    return scaled


def _factor(
    values: Sequence[tf.Tensor], bounds: Sequence[Bound], members: Sequence[int]
) -> tf.Tensor:
    factor = tf.constant(1.0, tf.float64)
    for i in members:
        if bounds[i].signed or bounds[i].public_sum is not None:
            continue
        limit = tf.constant(bounds[i].limit, tf.float64)
        factor = tf.minimum(factor, limit / tf.maximum(l2_norm([values[i]]), limit))
    factor = tf.where(factor < 1.0, factor * _ROOM, factor)
    for i in members:
        if bounds[i].integer:
            count = tf.cast(values[i], tf.float64)
            factor = tf.math.divide_no_nan(tf.floor(count * factor + 1e-9), count)
    return factor


def clipped_group(values: Sequence[tf.Tensor], limit: tf.Tensor) -> list[tf.Tensor]:
    """Scales values so that their joint l2 norm is at most `limit`; integers are rounded down."""
    norm = l2_norm(values)
    limit = tf.cast(limit, tf.float64)
    factor = tf.where(norm > limit, tf.math.divide_no_nan(limit, norm) * _ROOM, 1.0)

    def scaled(value: tf.Tensor) -> tf.Tensor:
        result = tf.cast(value, tf.float64) * factor
        # Toward 0: rounding must not lengthen what is scaled.
        whole = tf.sign(result) * tf.floor(tf.abs(result))
        return tf.cast(result if value.dtype.is_floating else whole, value.dtype)

    return [scaled(value) for value in values]


def clip(
    values: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    groups: Sequence[Group],
    clip_norms: Sequence[tf.Tensor],
    rounding: Sequence[float] = (),
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Bounds a client's answer.

    Args:
        values: The flattened answer.
        bounds: The bound of each value.
        groups: All groups of the answer.
        clip_norms: The clip norm of each update among them, float32 scalars.
        rounding: By how much each value may change when it is sent, such as half a step of secure
            sums; nothing if empty. The bounds hold for what is sent.

    Returns:
        (values, whether each update was within its clip norm, float32 scalars). Values that belong
        to no group are zeros: they are not sent.
    """
    found = scaled_ratios([finite(value) for value in values], bounds)
    sent = [tf.zeros_like(value) for value in found]
    norms, within = iter(clip_norms), []
    for group in groups:
        members = [found[i] for i in group.positions]
        limit = tf.constant(group.limit, tf.float64)
        if group.is_update:
            limit *= tf.cast(next(norms), tf.float64)
            within.append(tf.cast(l2_norm(members) <= limit, tf.float32))
        if rounding:
            sizes = [rounding[i] ** 2 * values[i].shape.num_elements() for i in group.positions]
            limit = tf.maximum(limit - math.sqrt(sum(sizes)), 0.0)
        for i, value in zip(group.positions, clipped_group(members, limit)):
            sent[i] = value
    return sent, within
