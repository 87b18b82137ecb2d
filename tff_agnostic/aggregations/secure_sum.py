"""Sums of bounded integers, in the form that secure-sum protocols support."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from tff_agnostic.aggregations.aggregation import (
    Aggregation,
    Bound,
    ClientFacts,
    ClientLimits,
    FederatedSums,
    LimitedOptions,
    SecurityProperty,
)
from tff_agnostic.aggregations.clipping import whole_factor
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Within
from tff_agnostic.base.report_fields import ReportField, ReportFields, Unit

# TFF computes secure sums in int64: this limit allows sums over 2^22 clients.
_MAX_BITS = 40
_COUNT_BITS = 32
# Key of the count of examples beyond the limit, among the fields of a client's output.
_EXAMPLES = "examples"


@dataclasses.dataclass(frozen=True)
class SecureSumOptions(LimitedOptions):
    """Options of secure sums.

    Attributes:
        secure_bits: Bits of one quantised value.
        secure_min_clients: Minimum number of clients of a round or an evaluation; sums over fewer
            clients are rejected.
    """

    secure_bits: Annotated[int, Within(least=2, most=_MAX_BITS)] = 32
    secure_min_clients: Annotated[int, Within(least=1)] = 2


class SecureSummand(NamedTuple):
    """A client's submission to the secure sum; all fields are int64.

    Attributes:
        values: The client's output, quantised; every value in [0, 2^bits).
        clipped: Number of each field's values beyond their bound; under "examples", the number of
            the client's examples beyond the limit.
        num_clients: 1 for each client; the sum is the number of clients.
    """

    values: Any
    clipped: OrderedDict[str, tf.Tensor]
    num_clients: tf.Tensor


@dataclasses.dataclass(frozen=True)
class SecureSum(Aggregation):
    """The sum by `tff.federated_secure_sum_bitwidth`: the server only sees sums of integers.

    A real value x in [-limit, limit] becomes round(x / step) + offset, with step = limit /
    (2^(bits-1) - 1), so that 0 is exact. A value in [0, limit] has no offset, and twice the
    resolution. A sum over c clients has an error of at most c * step / 2, plus a relative error of
    2^-24 from rounding the total to float32. Integers are exact. A value beyond its bound is scaled
    down together with the other values of its ratio, or clipped if it has no ratio; see
    `aggregation.Bound`.

    Attributes:
        real_type: Dtype of the sums of real values.
    """

    options: SecureSumOptions = SecureSumOptions()
    name: str = "secure"
    real_type: str = "float32"

    guarantees = frozenset({SecurityProperty.SECURE_SUMS})
    cuts_clients = True

    @property
    def limits(self) -> ClientLimits:
        """Limits of one client's values."""
        return self.options.limit

    @property
    def min_clients(self) -> int:
        """Minimum number of clients of a sum."""
        return self.options.secure_min_clients

    def exact(self) -> SecureSum:
        """Returns the aggregation with real sums in float64."""
        return dataclasses.replace(self, real_type="float64")

    def rounding(self, bound: Bound) -> float:
        """Returns half a quantisation step; 0 for integers."""
        return 0.0 if bound.integer else self.step(bound) / 2

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> SecureSummand:
        """Scales `output` to its bounds, and quantises it; see the class."""
        del params
        clipped = OrderedDict(
            (field, _count_exceeding(getattr(output, field), getattr(bounds, field)))
            for field in _sent_fields(bounds)
        )
        clipped[_EXAMPLES] = client.examples_cut
        scaled = scaled_to_bounds(output, bounds)
        return SecureSummand(
            values=tf.nest.map_structure(self._quantize, scaled, bounds),
            clipped=clipped,
            num_clients=tf.constant(1, tf.int64),
        )

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Returns the secure sum of a `SecureSummand` in one intrinsic."""
        bit_widths = SecureSummand(
            values=tf.nest.map_structure(self.bit_width, bounds),
            clipped=OrderedDict((field, _COUNT_BITS) for field in _counted_fields(bounds)),
            num_clients=1,
        )
        return sums.secure(encoded, bit_widths)

    def decode(
        self, state: Any, summed: SecureSummand, bounds: Any
    ) -> tuple[Any, Any, Mapping[str, Any]]:
        """Converts integers to values, and reports the number of clipped values by field."""
        output = tf.nest.map_structure(
            lambda value, bound: self._dequantize(value, bound, summed.num_clients),
            summed.values,
            bounds,
        )
        return state, output, OrderedDict(clipped=summed.clipped)

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Returns descriptions of the values that `decode` reports."""

        def clipped(field: str) -> ReportField:
            label = f"values of {field} beyond their bound"
            if field == _EXAMPLES:
                label = "clients' examples beyond their limit"
            return ReportField(f"{prefix}clipped/{field}", label, unit=Unit.VALUES)

        return OrderedDict(
            clipped=OrderedDict((field, clipped(field)) for field in _counted_fields(bounds))
        )

    def bit_width(self, bound: Bound) -> int:
        """Returns the number of bits of one client's value."""
        return int(bound.limit).bit_length() if bound.integer else self.options.secure_bits

    def step(self, bound: Bound) -> float:
        """Returns the distance between neighbouring quantised values."""
        return bound.limit / self._levels(bound)

    def _levels(self, bound: Bound) -> int:
        return (
            2 ** (self.options.secure_bits - 1) - 1
            if bound.signed
            else 2**self.options.secure_bits - 1
        )

    def _quantize(self, value: tf.Tensor, bound: Bound) -> tf.Tensor:
        if bound.integer:
            return tf.clip_by_value(value, 0, int(bound.limit))
        levels = self._levels(bound)
        lowest = -bound.limit if bound.signed else 0.0
        clipped = tf.clip_by_value(tf.cast(value, tf.float64), lowest, bound.limit)
        quantized = tf.cast(tf.round(clipped / bound.limit * levels), tf.int64)
        return quantized + (levels if bound.signed else 0)

    def _dequantize(self, summed: tf.Tensor, bound: Bound, num_clients: tf.Tensor) -> tf.Tensor:
        if bound.integer:
            return summed
        levels = self._levels(bound)
        centred = summed - num_clients * (levels if bound.signed else 0)
        return tf.cast(tf.cast(centred, tf.float64) / levels * bound.limit, self.real_type)


def scaled_to_bounds(output: Any, bounds: Any) -> Any:
    """Scales a client's values that form a ratio so that none of them exceeds its bound.

    Values without a ratio do not change. For a factor f, an integer n becomes floor(f n), and the
    other values of its ratio are scaled by floor(f n) / n: the ratio is exact up to float64's last
    bit.

    Returns:
        The output in the same structure; scaled values are float64 or int64.
    """
    values, flat_bounds = tf.nest.flatten(output), tf.nest.flatten(bounds)
    by_ratio: dict[str, list[int]] = {}
    for i, bound in enumerate(flat_bounds):
        if bound.ratio is not None:
            by_ratio.setdefault(bound.ratio, []).append(i)
    for positions in by_ratio.values():
        factor = _common_factor(values, flat_bounds, positions)
        for i in positions:
            scaled = tf.cast(values[i], tf.float64) * factor
            # Round, as floor(f n) / n times n may be slightly less than the integer.
            is_integer = flat_bounds[i].integer
            values[i] = tf.cast(tf.round(scaled), tf.int64) if is_integer else scaled
    return tf.nest.pack_sequence_as(output, values)


def _common_factor(
    values: Sequence[tf.Tensor], bounds: Sequence[Bound], positions: Sequence[int]
) -> tf.Tensor:
    """Returns the factor in [0, 1] that scales values of one ratio: a scalar, or one per entry."""
    factor = tf.constant(1.0, tf.float64)
    for i in positions:
        size = tf.abs(tf.cast(values[i], tf.float64))
        largest = size if bounds[i].entrywise else tf.reduce_max(size)
        factor = tf.minimum(factor, bounds[i].limit / tf.maximum(largest, bounds[i].limit))
    return whole_factor(factor, values, bounds, positions)


def _sent_fields(bounds: Any) -> list[str]:
    """Returns the fields of an output; absent fields, which are (), are omitted."""
    return [field for field in bounds._fields if getattr(bounds, field) != ()]


def _counted_fields(bounds: Any) -> list[str]:
    """Returns the keys of clipping counts: the fields, and the examples beyond the limit."""
    return [*_sent_fields(bounds), _EXAMPLES]


def _count_exceeding(values: Any, bounds: Any) -> tf.Tensor:
    count = tf.constant(0, tf.int64)
    for value, bound in zip(tf.nest.flatten(values), tf.nest.flatten(bounds)):
        limit = tf.cast(bound.limit, value.dtype)
        lowest = -limit if bound.signed else tf.zeros_like(limit)
        count += tf.math.count_nonzero((value > limit) | (value < lowest), dtype=tf.int64)
    return count
