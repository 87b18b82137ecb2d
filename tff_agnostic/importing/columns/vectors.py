"""Numbers of records as arrays of features."""

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.importing.records.reading import RecordError

PIXELS = "pixels"
VECTOR = "x"


def is_images(dtype: np.dtype, shape: Sequence[int]) -> bool:
    """Returns whether examples of a type and shape are images of bytes."""
    return dtype == np.uint8 and len(shape) >= 2


def unit_interval(images: np.ndarray) -> np.ndarray:
    """Returns bytes as float32 in [0, 1]; 255, ink in MNIST, is 1."""
    return images.astype(np.float32) / np.float32(255)


def to_float32(features: np.ndarray) -> np.ndarray:
    """Returns numbers as float32; those that are too large for it become infinite."""
    with np.errstate(over="ignore"):
        return features.astype(np.float32)


def vector_of(
    values: Sequence[Any],
    shape: tuple[int, ...],
    place: str,
    hint: Callable[[Any], str] = lambda value: "",
) -> np.ndarray:
    """Returns numbers, or texts of numbers, as float32 of a shape; a vector if the shape is ().

    Args:
        values: The numbers.
        shape: The shape.
        place: Their record, for messages.
        hint: From a value that is no number to the end of the message about it.

    Raises:
        RecordError: If one is no finite number, or the shape does not fit.
    """
    try:
        vector = to_float32(np.asarray([float(value) for value in values]))
    except (TypeError, ValueError, OverflowError):
        at = next(i for i, value in enumerate(values) if not _is_number(value))
        raise RecordError(
            place,
            "feature that is no number",
            f"expected numbers as features, found {values[at]!r} as number {at + 1}"
            f"{hint(values[at])}",
        ) from None
    return check_finite(_shaped(vector, shape, place), place)


def check_finite(features: np.ndarray, place: str) -> np.ndarray:
    """Returns the features.

    Raises:
        RecordError: If one is NaN or infinite.
    """
    if not np.isfinite(features).all():
        at = int(np.flatnonzero(~np.isfinite(features.ravel()))[0])
        raise RecordError(
            place,
            "feature that is not finite",
            f"expected finite features, found {features.ravel()[at]} as number {at + 1}",
        )
    return features


def check_shape(shape: Sequence[int]) -> None:
    """Raises a `UserError` if --feature_shape is none."""
    if any(size < 1 for size in shape):
        raise UserError(f"--feature_shape: expected positive sizes, found {list(shape)}")


def _shaped(vector: np.ndarray, shape: tuple[int, ...], place: str) -> np.ndarray:
    if not shape:
        return vector
    if len(vector) != math.prod(shape):
        raise RecordError(
            place,
            "wrong number of features",
            f"expected {math.prod(shape)} features, as --feature_shape says, found {len(vector)}",
        )
    return vector.reshape(shape)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
