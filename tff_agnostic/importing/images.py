"""Images in table cells: files that Pillow decodes, or lists of pixels."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_agnostic.importing.cells import CellError

_MAX_BYTE = 255
_FILES = ("PNG", "JPEG", "GIF", "BMP")
# Pillow's image modes that need no conversion.
_PLAIN = ("L", "LA", "RGB", "RGBA")
PIXELS = "pixels"


def image_in(value: Any, column: str, max_pixels: int) -> np.ndarray:
    """Returns the image of a cell, float32 in [0, 1]; a pixel of 255 becomes 1.

    Args:
        value: A PNG, JPEG, GIF or BMP file as bytes, or as a mapping with the key "bytes"; or
            nested lists of pixels from 0 to 255.
        column: Name of the column, for messages.
        max_pixels: Maximum number of pixels of a file.

    Returns:
        An array [height, width, channels] for a file (the first frame of an animation), or an array
        with the shape of the lists.

    Raises:
        CellError: If the cell is not an image, or the image is too large.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return unit_interval(_decoded(value, column, max_pixels))
    if isinstance(value, list):
        return unit_interval(_pixels(value, column))
    raise _no_image(column, "none" if value is None else type(value).__name__)


def _decoded(content: bytes, column: str, max_pixels: int) -> np.ndarray:
    # Import on demand, like every library for a single format.
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Ignore Pillow's warning about large images, as this function checks the size.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(content), formats=_FILES)
            # Check before decoding, as a small file may claim any size.
            pixels_in_file = image.width * image.height
            if pixels_in_file > max_pixels:
                raise _too_large(column, max_pixels, str(pixels_in_file))
            if image.mode not in _PLAIN:
                image = _plain(image)
            pixels = np.asarray(image)
    except CellError:
        raise
    except Image.DecompressionBombError:
        # Omit the number of pixels, for which Pillow's error has no attribute.
        raise _too_large(column, max_pixels, "more") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error):
        raise _no_image(column, f"{len(content)} bytes of another format") from None
    return pixels.reshape(*pixels.shape[:2], -1)


def _plain(image: Any) -> Any:
    """Converts an image to 8 bits per channel."""
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value / 256)
    if image.mode in ("1", "I"):
        return image.convert("L")
    has_alpha = image.mode == "PA" or "transparency" in image.info
    return image.convert("RGBA" if has_alpha and image.format != "GIF" else "RGB")


def _too_large(column: str, max_pixels: int, size: str) -> CellError:
    return CellError(
        "image that is too large",
        f"expected an image of at most {max_pixels} pixels in {column} (max_pixels), found {size}",
    )


def _pixels(rows: list[Any], column: str) -> np.ndarray:
    try:
        pixels = np.asarray(rows)
    except ValueError:
        raise _no_image(column, "lists of different lengths") from None
    if pixels.ndim < 2 or pixels.dtype.kind not in "iu":
        raise _no_image(column, f"lists {list(pixels.shape)} of {pixels.dtype}")
    if pixels.min(initial=0) < 0 or pixels.max(initial=0) > _MAX_BYTE:
        raise _no_image(column, f"pixels from {pixels.min()} to {pixels.max()}")
    return pixels


def _no_image(column: str, result: str) -> CellError:
    return CellError(
        "invalid image",
        f"expected an image in {column}, a PNG, JPEG, GIF or BMP file or rows of pixels from 0 to "
        f"{_MAX_BYTE}, found {result}",
    )


def unit_interval(images: np.ndarray) -> np.ndarray:
    """Scales bytes to float32 in [0, 1]; 255, the ink of MNIST, becomes 1."""
    return images.astype(np.float32) / np.float32(255)
