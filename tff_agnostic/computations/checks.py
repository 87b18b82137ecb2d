"""What is checked of an algorithm's functions while they are traced, whoever wrote them."""

from typing import Any

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound
from tff_agnostic.computations.exchange import AnswerAndKept
from tff_agnostic.errors import UserError

_DTYPES = (tf.float32, tf.int64)


def check_bounds(exchange: str, output: Any, bounds: Any) -> None:
    """Checks that every value of a client's answer has a bound.

    Raises:
        UserError: If the answer is no named tuple of float32 and int64 tensors, or the bounds are
            not in its structure.
    """
    fields = getattr(output, "_fields", None)
    if fields is None:
        raise UserError(
            f"exchange {exchange!r}: expected clients to answer with a named tuple, found "
            f"{type(output).__name__}"
        )
    bound_fields = getattr(bounds, "_fields", ())
    different = sorted(set(fields) ^ set(bound_fields))
    if different:
        raise UserError(
            f"exchange {exchange!r}: expected bounds of {', '.join(fields)}, as clients answer, "
            f"found {', '.join(bound_fields) or type(bounds).__name__}: {', '.join(different)} "
            "is in one of them only"
        )
    for field in fields:
        _check_field(f"exchange {exchange!r}, {field}", getattr(output, field), bounds, field)


def check_keeps(exchange: str, output: Any) -> None:
    """Checks that clients return what they keep beside their answer.

    Raises:
        UserError: Otherwise.
    """
    if not isinstance(output, AnswerAndKept):
        raise UserError(
            f"exchange {exchange!r}: expected clients to return an AnswerAndKept, as keeps=True "
            f"says, found {type(output).__name__}"
        )


def _check_field(where: str, values: Any, bounds: Any, field: str) -> None:
    leaves, limits = tf.nest.flatten(values), tf.nest.flatten(getattr(bounds, field))
    if len(leaves) != len(limits):
        raise UserError(
            f"{where}: expected a bound of each of {len(leaves)} values, found {len(limits)}"
        )
    for value, bound in zip(leaves, limits):
        if not isinstance(bound, Bound):
            raise UserError(f"{where}: expected a Bound, found {type(bound).__name__}")
        if not tf.is_tensor(value) or value.dtype not in _DTYPES:
            found = value.dtype.name if tf.is_tensor(value) else type(value).__name__
            raise UserError(
                f"{where}: expected float32 or int64 tensors, which can be summed, found {found}"
            )
        if bound.integer != value.dtype.is_integer:
            raise UserError(
                f"{where}: expected integer={value.dtype.is_integer} in the bound of "
                f"{value.dtype.name} values, found {bound.integer}"
            )


def check_state(before: Any, after: Any) -> None:
    """Checks that a round leaves a state of the structure, shapes and dtypes that it found.

    Raises:
        UserError: Otherwise; names the first difference.
    """
    try:
        tf.nest.assert_same_structure(before, after, check_types=False)
    except (TypeError, ValueError):
        raise UserError(
            "expected finish to return a state of the structure that initialize returned, found "
            f"another one: {_names(before)} before, {_names(after)} after"
        ) from None
    for i, (old, new) in enumerate(zip(tf.nest.flatten(before), tf.nest.flatten(after))):
        new = tf.convert_to_tensor(new)
        if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
            raise UserError(
                "expected finish to return a state of the shapes and dtypes that initialize "
                f"returned, found another one of value {i}: {old.dtype.name}{old.shape} before, "
                f"{new.dtype.name}{new.shape} after"
            )


def _names(structure: Any) -> str:
    fields = getattr(structure, "_fields", None)
    return f"{type(structure).__name__}({', '.join(fields)})" if fields else repr(type(structure))
