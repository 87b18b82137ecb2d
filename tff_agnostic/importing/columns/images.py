"""Images in the cells of a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_agnostic.importing.columns.vectors import unit_interval
from tff_agnostic.importing.records.reading import RecordError

_MAX_BYTE = 255


def image_of(value: Any, column: str, place: str) -> np.ndarray:
    """Returns an image, float32 in [0, 1]; 255 is 1.

    Args:
        value: Bytes of a PNG, JPEG, GIF or BMP file, a mapping with them under "bytes", or pixels
            from 0 to 255 as lists of rows.
        column: Its column, for messages.
        place: Its record, for messages.

    Returns:
        [height, width, channels] of a file; the shape of lists as it is.

    Raises:
        RecordError: If it is no image.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return unit_interval(_decoded(value, column, place))
    if isinstance(value, list):
        return unit_interval(_pixels(value, column, place))
    raise _no_image(place, column, "none" if value is None else type(value).__name__)


def _decoded(content: bytes, column: str, place: str) -> np.ndarray:
    # Imported here: no other input needs it before the store is written.
    import tensorflow as tf

    try:
        with tf.device("CPU:0"):
            # Of an animation the first picture.
            image = tf.io.decode_image(content, expand_animations=False).numpy()
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        raise _no_image(place, column, f"{len(content)} bytes that are none") from None
    return np.asarray(image)


def _pixels(rows: list, column: str, place: str) -> np.ndarray:
    try:
        pixels = np.asarray(rows)
    except ValueError:
        raise _no_image(place, column, "lists of different lengths") from None
    if pixels.ndim < 2 or pixels.dtype.kind not in "iu":
        raise _no_image(place, column, f"lists {list(pixels.shape)} of {pixels.dtype}")
    if pixels.min(initial=0) < 0 or pixels.max(initial=0) > _MAX_BYTE:
        raise _no_image(place, column, f"pixels from {pixels.min()} to {pixels.max()}")
    return pixels


def _no_image(place: str, column: str, found: str) -> RecordError:
    return RecordError(
        place,
        "image that is none",
        f"expected an image in {column}, a PNG, JPEG, GIF or BMP file or rows of pixels from 0 to "
        f"{_MAX_BYTE}, found {found}",
    )
