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
        factor = _whole(_factor(scaled, bounds, members), scaled, bounds, members)
        for i in members:
            scaled[i] = _times(factor, scaled[i])
    return scaled


def _factor(
    values: Sequence[tf.Tensor], bounds: Sequence[Bound], members: Sequence[int]
) -> tf.Tensor:
    factor = tf.constant(1.0, tf.float64)
    for i in members:
        if bounds[i].signed or bounds[i].public_sum is not None:
            continue
        limit = tf.constant(bounds[i].norm, tf.float64)
        factor = tf.minimum(factor, limit / tf.maximum(l2_norm([values[i]]), limit))
    return tf.where(factor < 1.0, factor * _ROOM, factor)


def _whole(
    factor: tf.Tensor,
    values: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    members: Sequence[int],
) -> tf.Tensor:
    """Returns the largest factor, for each entry, that leaves integers of a ratio whole."""
    for i in members:
        if bounds[i].integer:
            count = tf.cast(values[i], tf.float64)
            # Toward 0: a client may answer with negative counts, and must gain nothing by that.
            whole = tf.sign(count) * tf.floor(tf.abs(count) * factor + 1e-9)
            factor = tf.math.divide_no_nan(whole, count)
    return factor


def _times(factor: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns a value scaled by a factor that leaves it whole if it is an integer."""
    if value.dtype.is_floating:
        return value * tf.cast(factor, value.dtype)
    return tf.cast(tf.round(tf.cast(value, tf.float64) * factor), value.dtype)


def clipped_group(values: Sequence[tf.Tensor], limit: tf.Tensor) -> list[tf.Tensor]:
    """Scales values so that their joint l2 norm is at most `limit`; integers are rounded down."""
    norm = l2_norm(values)
    limit = tf.cast(limit, tf.float64)
    factor = tf.where(norm > limit, tf.math.divide_no_nan(limit, norm) * _ROOM, 1.0)

    def scaled(value: tf.Tensor) -> tf.Tensor:
        if value.dtype.is_floating:
            return value * tf.cast(factor, value.dtype)
        # A cast rounds toward 0: it must not lengthen what is scaled.
        return tf.cast(tf.cast(value, tf.float64) * factor, value.dtype)

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


def clip_jointly(
    values: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    groups: Sequence[Group],
    shares: Sequence[float],
    clip_norms: Sequence[tf.Tensor],
    rounding: Sequence[float] = (),
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Bounds a client's answer as one vector; arguments and results are those of `clip`.

    Group g of bound c_g and share w_g has the part v_g = sqrt(w_g) x_g / c_g of it, and v is
    scaled to a norm of at most sqrt(sum_g w_g). Noise of z on v is noise of z c_g / sqrt(w_g) on
    x_g, as when each group is clipped by itself; and answers whose groups are within their bounds
    stay as they are, as do some that exceed the bound of one and have less of others.

    Whole numbers that are in no ratio, such as a count of clients, would be 0 as soon as they are
    scaled: they are clipped by themselves, and take no part.

    Args:
        values: The flattened answer.
        bounds: The bound of each value.
        groups: All groups of the answer.
        shares: w_g of each of them.
        clip_norms: The clip norm of each update among them, float32 scalars.
        rounding: By how much each value may change when it is sent.
    """
    found = scaled_ratios([finite(value) for value in values], bounds)
    sent = [tf.zeros_like(value) for value in found]
    norms, within, joint = iter(clip_norms), [], []
    square = of_rounding = tf.constant(0.0, tf.float64)
    for group, share in zip(groups, shares):
        limit = tf.constant(group.limit, tf.float64)
        if any(bounds[i].integer and bounds[i].ratio is None for i in group.positions):
            members = [found[i] for i in group.positions]
            for i, value in zip(group.positions, clipped_group(members, limit)):
                sent[i] = value
            continue
        norm = l2_norm([found[i] for i in group.positions])
        if group.is_update:
            limit *= tf.cast(next(norms), tf.float64)
            within.append(tf.cast(norm <= limit, tf.float32))
        square += share * tf.square(norm / limit)
        if rounding:
            sizes = [rounding[i] ** 2 * values[i].shape.num_elements() for i in group.positions]
            of_rounding += share * sum(sizes) / tf.square(limit)
        joint.append((group, share))
    norm = tf.sqrt(square)
    largest = math.sqrt(math.fsum(share for _, share in joint)) - tf.sqrt(of_rounding)
    largest = tf.maximum(largest, 0.0)
    factor = tf.where(norm > largest, tf.math.divide_no_nan(largest, norm) * _ROOM, 1.0)
    positions = {i for group, _ in joint for i in group.positions}
    for ratio in dict.fromkeys(bound.ratio for bound in bounds):
        members = [i for i, bound in enumerate(bounds) if bound.ratio == ratio]
        # What is a ratio with counts stays one, of whole counts.
        of_ratio = factor if ratio is None else _whole(factor, found, bounds, members)
        for i in positions & {*members}:
            sent[i] = _times(of_ratio, found[i])
    return sent, within
