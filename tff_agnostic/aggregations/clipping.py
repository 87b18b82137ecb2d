"""Clips groups of values, each with a share of the privacy budget; post-processes noisy sums.

All values that clients send in a round form one release. Every value belongs to a group with a
bounded l2 norm. If each group g has noise with standard deviation z_g times its bound, the release
is as private as one Gaussian mechanism with the noise multiplier z_eff = (sum_g z_g^-2)^(-1/2). A
group with the share w_g of the budget, sum_g w_g = 1, has z_g = z_eff / sqrt(w_g).

Clipping is a pure function of one client's values. It brings every group within its bound and
preserves ratios. When a client joins or leaves, a group's sum changes by at most the group's bound,
even for infinite values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Bound
from tff_agnostic.base.later import tf

# Scale values to slightly below their bound, as results are rounded to float32.
_ROOM = 1.0 - 1e-6


def l2_norm(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm of the given values, float64 scalar."""
    squares = [tf.reduce_sum(tf.square(tf.cast(value, tf.float64))) for value in values]
    return tf.sqrt(tf.add_n(squares))


def finite(value: tf.Tensor) -> tf.Tensor:
    """Replaces infinite entries and NaNs by zeros."""
    if not value.dtype.is_floating:
        return value
    return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))


def scaled_ratios(values: Sequence[tf.Tensor], bounds: Sequence[Bound]) -> list[tf.Tensor]:
    """Scales values that form a ratio so that the norm of each is within its bound.

    An update is scaled together with its weight, but its own norm is ignored here, as `clip` clips
    it afterwards. For a factor f, an integer n becomes floor(f n), and the matching entries of the
    other values are scaled by floor(f n) / n, as in secure sums.
    """
    scaled = list(values)
    ratios = dict.fromkeys(bound.ratio for bound in bounds if bound.ratio is not None)
    for ratio in ratios:
        members = [i for i, bound in enumerate(bounds) if bound.ratio == ratio]
        factor = whole_factor(_factor(scaled, bounds, members), scaled, bounds, members)
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


def whole_factor(
    factor: tf.Tensor,
    values: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    members: Sequence[int],
) -> tf.Tensor:
    """Lowers a factor, entry by entry, so that integers of a ratio remain integers."""
    for i in members:
        if bounds[i].integer:
            count = tf.cast(values[i], tf.float64)
            # Round toward 0: a client may send negative counts, and must not gain from that. Add a
            # margin, as n (1 / n) may be slightly less than 1.
            whole = tf.sign(count) * tf.floor(tf.abs(count) * factor + 1e-9)
            factor = tf.math.divide_no_nan(whole, count)
    return factor


def _times(factor: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Returns a value times a factor that keeps integers integers."""
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
        # A cast rounds toward 0, so the norm does not grow.
        return tf.cast(tf.cast(value, tf.float64) * factor, value.dtype)

    return [scaled(value) for value in values]


@dataclasses.dataclass(frozen=True)
class Group:
    """Values of a client's output whose joint l2 norm is bounded.

    Attributes:
        name: Human-readable name, such as "domain_losses".
        positions: Positions of the values in the flattened output.
        limit: Bound of the norm; for an update, its bound at a clip norm of 1.
        is_update: Whether the bound is a multiple of a clip norm; otherwise it is fixed.
    """

    name: str
    positions: tuple[int, ...]
    limit: float
    is_update: bool = False


class _Part(NamedTuple):
    """A group, as a component of a vector that is clipped as a whole.

    Attributes:
        positions: Positions of the group's values.
        share: Share w_g of the privacy budget.
        norm: Norm |x_g| of the values, float64 scalar.
        limit: Bound c_g of the norm, float64 scalar.
        rounding: Square of the maximum norm that rounding adds to x_g.
    """

    positions: tuple[int, ...]
    share: float
    norm: tf.Tensor
    limit: tf.Tensor
    rounding: float


def clip(
    values: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    groups: Sequence[Group],
    clip_norms: Sequence[tf.Tensor],
    rounding: Sequence[float] = (),
    joint_shares: Optional[Sequence[float]] = None,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Clips a client's output: each group separately, or all groups as one vector.

    Args:
        clip_norms: The clip norm of each update among the groups, float32 scalars.
        rounding: Maximum change of each value when it is encoded, such as half a step of secure
            sums; empty if encoding changes no value. The bounds hold for the encoded values.
        joint_shares: Shares w_g of all groups, to clip the groups together as one vector; None to
            clip each group separately. Integers without a ratio, such as a count of clients, are
            always clipped separately, as any scaling would make them 0.

    Returns:
        (clipped values, whether each update was within its clip norm, float32 scalars). Values
        outside of any group become zeros, and are not sent.
    """
    scaled = scaled_ratios([finite(value) for value in values], bounds)
    sent = [tf.zeros_like(value) for value in scaled]
    norms, within, parts = iter(clip_norms), [], []
    shares = joint_shares or itertools.repeat(None)
    for group, share in zip(groups, shares):
        members = [scaled[i] for i in group.positions]
        limit = tf.constant(group.limit, tf.float64)
        if group.is_update:
            limit *= tf.cast(next(norms), tf.float64)
            within.append(tf.cast(l2_norm(members) <= limit, tf.float32))
        added = 0.0
        if rounding:
            added = sum(rounding[i] ** 2 * values[i].shape.num_elements() for i in group.positions)
        is_counts = any(bounds[i].integer and bounds[i].ratio is None for i in group.positions)
        if share is not None and not is_counts:
            parts.append(_Part(group.positions, share, l2_norm(members), limit, added))
            continue
        if rounding:
            limit = tf.maximum(limit - math.sqrt(added), 0.0)
        for i, value in zip(group.positions, clipped_group(members, limit)):
            sent[i] = value
    if parts:
        for i, value in _jointly_clipped(scaled, bounds, parts).items():
            sent[i] = value
    return sent, within


def _jointly_clipped(
    values: Sequence[tf.Tensor], bounds: Sequence[Bound], parts: Sequence[_Part]
) -> dict[int, tf.Tensor]:
    """Clips the values of all parts as one vector; returns them by position.

    Group g is the component v_g = sqrt(w_g) x_g / c_g of a vector v, which is scaled to a norm of
    at most sqrt(sum_g w_g). Noise z on v equals noise z c_g / sqrt(w_g) on x_g, as when each group
    is clipped separately. If all groups are within their bounds, nothing changes. A group beyond
    its bound may also stay unchanged if other groups are below their bounds.
    """
    square = rounding = tf.constant(0.0, tf.float64)
    for part in parts:
        square += part.share * tf.square(part.norm / part.limit)
        rounding += part.share * part.rounding / tf.square(part.limit)
    norm = tf.sqrt(square)
    largest = math.sqrt(math.fsum(part.share for part in parts)) - tf.sqrt(rounding)
    largest = tf.maximum(largest, 0.0)
    factor = tf.where(norm > largest, tf.math.divide_no_nan(largest, norm) * _ROOM, 1.0)
    positions = {i for part in parts for i in part.positions}
    clipped = {}
    for ratio in dict.fromkeys(bound.ratio for bound in bounds):
        members = [i for i, bound in enumerate(bounds) if bound.ratio == ratio]
        # Choose the factor so that counts remain integers and the ratio does not change.
        ratio_factor = factor if ratio is None else whole_factor(factor, values, bounds, members)
        for i in positions & {*members}:
            clipped[i] = _times(ratio_factor, values[i])
    return clipped


def bound_groups(bounds: Any, max_delta: float, expected_clients: float) -> tuple[Group, ...]:
    """Returns the groups of an output; values with a public sum belong to no group.

    Signed values of a ratio form an update: a model delta times the client's weight. An update's
    bound is the clip norm times a weight: the mean weight of contributing clients if the sum of
    weights is public, otherwise the maximum weight.

    Args:
        bounds: A named tuple of bounds, in the structure of the output.
        max_delta: Bound of a coordinate of a model delta, from which `bounds` derive.
        expected_clients: Expected number of clients of a round.
    """
    flat = tf.nest.flatten(bounds)
    names = _names(bounds)
    updates: dict[str, list[int]] = {}
    alternatives: dict[str, list[int]] = {}
    groups = []
    for i, bound in enumerate(flat):
        if bound.signed:
            updates.setdefault(bound.ratio or names[i], []).append(i)
        elif bound.exclusive_group is not None:
            alternatives.setdefault(bound.exclusive_group, []).append(i)
        elif bound.public_sum is None:
            groups.append(Group(names[i], (i,), bound.norm))
    means = {
        bound.ratio: bound.public_sum / (expected_clients * bound.contributing)
        for bound in flat
        if bound.ratio and bound.public_sum is not None
    }
    for name, positions in updates.items():
        largest = max(flat[i].limit for i in positions) / max_delta
        limit = float(means.get(name, largest))
        groups.append(Group(name, tuple(positions), limit, is_update=True))
    for name, positions in alternatives.items():
        largest = max(flat[i].norm for i in positions)
        groups.append(Group(name, tuple(positions), largest))
    return tuple(sorted(groups, key=lambda group: group.positions))


def _names(bounds: Any) -> list[str]:
    names = []
    for field, values in zip(bounds._fields, bounds):
        paths = list(_paths(values, field))
        names.extend([field] if len(paths) == 1 else paths)
    return names


def _paths(values: Any, path: str) -> Iterator[str]:
    """Yields the path of each leaf, in the order of `tf.nest.flatten`."""
    if isinstance(values, Bound):
        yield path
        return
    items: Iterable[tuple[Any, Any]] = enumerate(values)
    if isinstance(values, Mapping):
        items = sorted(values.items())
    elif hasattr(values, "_fields"):
        items = zip(values._fields, values)
    for name, value in items:
        yield from _paths(value, f"{path}/{name}")


def budget_shares(groups: Iterable[Group], update_share: float) -> tuple[float, ...]:
    """Returns the share w_g of each group of a round, over all its communication steps.

    Args:
        update_share: Share of all updates together. Updates divide it equally; the other groups
            divide the rest equally. If a round has only updates, or only other groups, these get
            the entire budget.
    """
    kinds = [group.is_update for group in groups]
    num_updates = sum(kinds)
    num_others = len(kinds) - num_updates
    if not num_updates or not num_others:
        return tuple(1.0 / len(kinds) for _ in kinds)
    each = {True: update_share / num_updates, False: (1.0 - update_share) / num_others}
    return tuple(each[kind] for kind in kinds)


def without_noise_below(
    values: Sequence[tf.Tensor],
    deviations: Sequence[tf.Tensor],
    bounds: Sequence[Bound],
    absent_below: float,
) -> list[tf.Tensor]:
    """Sets sums below their noise to zero, limits ratios, and inserts public sums.

    A denominator below `absent_below` standard deviations of its noise becomes zero, as do its
    numerators. Other unsigned numerators are limited to [0, maximum ratio times denominator].
    Values with a public sum, which were not sent, become this sum. Negative counts of clients
    become zero.

    Args:
        values: The flattened sum, float64.
        deviations: Standard deviation of the noise of each value.
        absent_below: Threshold in standard deviations.
    """
    result = list(values)
    for i, bound in enumerate(bounds):
        if bound.public_sum is not None:
            result[i] = tf.fill(values[i].shape, tf.constant(bound.public_sum, tf.float64))
        elif bound.denominator:
            is_present = (values[i] > 0) & (values[i] >= absent_below * deviations[i])
            result[i] = tf.where(is_present, values[i], tf.zeros_like(values[i]))
        elif bound.exclusive_group is not None:
            result[i] = tf.maximum(values[i], 0.0)
    for i, bound in enumerate(bounds):
        if bound.ratio is None or bound.denominator:
            continue
        k_denominator = next(
            (
                k
                for k, other in enumerate(bounds)
                if other.denominator and other.ratio == bound.ratio
            ),
            None,
        )
        if k_denominator is None:
            continue
        denominator = result[k_denominator]
        if not bound.signed:
            largest = denominator * (bound.limit / bounds[k_denominator].limit)
            result[i] = tf.minimum(tf.maximum(result[i], 0.0), largest)
        else:
            result[i] = tf.where(denominator > 0, result[i], tf.zeros_like(result[i]))
    return result
