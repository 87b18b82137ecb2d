"""Images in the cells of a table."""

import contextlib
import struct
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.importing.columns.vectors import unit_interval
from tff_agnostic.importing.records.reading import RecordError

_MAX_BYTE = 255
_JPEG_MARK = 0xFF
# Starts of frames 0 to 15, without what is between them: tables, and what is reserved.
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Marks that nothing belongs to.
_JPEG_ALONE = {0x01, *range(0xD0, 0xD8)}
_GIF_EXTENSION = 0x21
_GIF_BLOCKS = (_GIF_EXTENSION, 0x2C)


def image_of(value: Any, column: str, place: str, max_pixels: int) -> np.ndarray:
    """Returns an image, float32 in [0, 1]; 255 is 1.

    Args:
        value: Bytes of a PNG, JPEG, GIF or BMP file, a mapping with them under "bytes", or pixels
            from 0 to 255 as lists of rows.
        column: Its column, for messages.
        place: Its record, for messages.
        max_pixels: How many pixels a file may say that it has.

    Returns:
        [height, width, channels] of a file; the shape of lists as it is.

    Raises:
        RecordError: If it is no image, or too large.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return unit_interval(_decoded(value, column, place, max_pixels))
    if isinstance(value, list):
        return unit_interval(_pixels(value, column, place))
    raise _no_image(place, column, "none" if value is None else type(value).__name__)


def _decoded(content: bytes, column: str, place: str, max_pixels: int) -> np.ndarray:
    # Before it is decoded: a file of some bytes may claim any size, and a decoder reserves that.
    pixels = claimed_pixels(content)
    if pixels is None:
        raise _no_image(place, column, f"{len(content)} bytes that are none")
    if pixels > max_pixels:
        raise RecordError(
            place,
            "image that is too large",
            f"expected an image of at most {max_pixels} pixels in {column} (--max_pixels), found "
            f"{pixels}",
        )
    # Imported here: no other input needs it before the store is written.
    import tensorflow as tf

    try:
        with tf.device("CPU:0"):
            # Of an animation the first picture.
            image = tf.io.decode_image(content, expand_animations=False).numpy()
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.ResourceExhaustedError,
        tf.errors.UnimplementedError,
    ):
        raise _no_image(place, column, f"{len(content)} bytes that are none") from None
    return np.asarray(image)


def claimed_pixels(content: bytes) -> Optional[int]:
    """Returns how many pixels an image file says that it has; None if it is none.

    Args:
        content: A PNG, JPEG, GIF or BMP file. Of a GIF all pictures count, as all are unpacked, and
            each is as large as the largest.
    """
    found = next((read for start, read in _READERS.items() if content.startswith(start)), None)
    try:
        return None if found is None else found(content)
    except (IndexError, struct.error):
        return None


def _png_pixels(content: bytes) -> int:
    width, height = struct.unpack_from(">II", content, 16)
    return int(width * height)


def _bmp_pixels(content: bytes) -> int:
    width, height = struct.unpack_from("<ii", content, 18)
    # Rows are from the bottom up, or with a negative height from the top down.
    return int(abs(width * height))


def _jpeg_pixels(content: bytes) -> Optional[int]:
    at = 2
    while content[at] == _JPEG_MARK:
        marker = content[at + 1]
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", content, at + 5)
            return int(width * height)
        if marker == _JPEG_MARK:
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", content, at + 2)
            at += 2 + length
    return None


def _gif_pixels(content: bytes) -> int:
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at, count = 13 + _palette_bytes(flags), 0
    # One that is cut off has the pictures before.
    with contextlib.suppress(IndexError, struct.error):
        while content[at] in _GIF_BLOCKS:
            if content[at] == _GIF_EXTENSION:
                at += 2
            else:
                own_width, own_height, flags = struct.unpack_from("<HHB", content, at + 5)
                count, width, height = count + 1, max(width, own_width), max(height, own_height)
                at += 11 + _palette_bytes(flags)
            # Blocks of at most 255 bytes, the last of them empty.
            while content[at]:
                at += 1 + content[at]
            at += 1
    return int(max(1, count) * width * height)


def _palette_bytes(flags: int) -> int:
    return 3 * 2 ** (flags % 8 + 1) if flags & 0x80 else 0


# How a file begins -> its reader.
_READERS: dict[bytes, Callable[[bytes], Optional[int]]] = {
    b"\x89PNG": _png_pixels,
    b"\xff\xd8\xff": _jpeg_pixels,
    b"GIF8": _gif_pixels,
    b"BM": _bmp_pixels,
}


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
