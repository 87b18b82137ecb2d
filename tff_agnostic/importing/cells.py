"""Cells of a table: images, vectors, missing values, labels, categories."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import pyarrow.compute as pc

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import SortedExamples
from tff_agnostic.data.store_format import NO_CATEGORY, TRAIN
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import RecordError
from tff_agnostic.importing.text import WordCounts

_MAX_BYTE = 255
_JPEG_MARK = 0xFF
# Start markers of frames 0 to 15, without the tables and reserved markers between them.
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Marks that nothing belongs to.
_JPEG_ALONE = {0x01, *range(0xD0, 0xD8)}
_GIF_EXTENSION = 0x21
_GIF_BLOCKS = (_GIF_EXTENSION, 0x2C)
PIXELS = "pixels"
VECTOR = "x"
# Stores hold them as int64, models count them as int32.
_MAX_LABEL = 2**31 - 1
# A larger number is infinite as float32.
_MOST = "at most 3.4e38"


def image_of(value: Any, column: str, place: str, max_pixels: int) -> np.ndarray:
    """Returns an image, float32 in [0, 1]; 255 is 1.

    Args:
        value: Bytes of a PNG, JPEG, GIF or BMP file, a mapping with them under "bytes", or pixels
            from 0 to 255 as lists of rows.
        column: Its column, for messages.
        place: Its record, for messages.
        max_pixels: How many pixels a file may say that it has.

    Returns:
        [height, width, channels] of a file; the shape of lists.

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
            # The first picture of an animation.
            image = tf.io.decode_image(content, expand_animations=False).numpy()
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.ResourceExhaustedError,
        tf.errors.UnimplementedError,
    ):
        raise _no_image(place, column, f"{len(content)} bytes that are none") from None
    return np.asarray(image)


def claimed_pixels(content: bytes) -> Optional[int]:
    """Returns the number of pixels that an image file claims; None if it is no image.

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
    columns: Sequence[str] = (),
    hint: Callable[[Any], str] = lambda value: "",
) -> np.ndarray:
    """Returns numbers, or texts of numbers, as float32 of a shape; a vector if the shape is ().

    Args:
        place: Their record, for messages.
        columns: The column of each value, for messages; without, its number is named.
        hint: From a value that is no number to the end of the message about it.

    Raises:
        RecordError: If one is no finite number, or the shape does not fit.
    """
    try:
        vector = to_float32(np.asarray([float(value) for value in values]))
    except (TypeError, ValueError, OverflowError):
        at = next(i for i, value in enumerate(values) if number_in(value) is None)
        raise RecordError(
            place,
            "feature that is no number",
            f"expected numbers as features, found {values[at]!r} {_at(at, columns)}"
            f"{hint(values[at])}",
        ) from None
    return check_finite(_shaped(vector, shape, place), place, columns)


def _at(position: int, columns: Sequence[str]) -> str:
    return f"in {columns[position]}" if position < len(columns) else f"as number {position + 1}"


def check_finite(features: np.ndarray, place: str, columns: Sequence[str] = ()) -> np.ndarray:
    """Returns the features.

    Args:
        features: Numbers, of any shape.
        place: Their record, for messages.
        columns: The column of each number; without, its position is named.

    Raises:
        RecordError: If one is NaN or infinite.
    """
    if not np.isfinite(features).all():
        at = int(np.flatnonzero(~np.isfinite(features.ravel()))[0])
        raise RecordError(
            place,
            "feature that is not finite",
            f"expected features that are finite as float32 ({_MOST}), found "
            f"{features.ravel()[at]} {_at(at, columns)}",
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
            f"expected {math.prod(shape)} features (--feature_shape), found {len(vector)}",
        )
    return vector.reshape(shape)


class MissingValues:
    """The rule of --missing_values.

    Attributes:
        are_refused: Whether a missing value makes a bad record.
        are_marked: Whether the store marks the values that were missing.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._marks = frozenset({"", *options.missing_marks})
        self._numbers = frozenset(map(number_in, options.missing_marks)) - {None}
        self.are_refused = options.missing_values == "fail"
        self.are_marked = options.missing_values == "mark"

    def has_no_value(self, value: Any) -> bool:
        """Returns whether a cell is null, NaN, empty, or the text of one of the marks.

        A label that is a number is none of them: 0 may be a mark of features, and is a class.
        """
        if isinstance(value, str):
            return value.strip() in self._marks
        return value is None or (isinstance(value, float) and math.isnan(value))

    def is_missing(self, value: Any) -> bool:
        """Returns whether a cell of features has no value, or a number that is one of the marks."""
        if self.has_no_value(value):
            return True
        # JSON and Parquet have numbers, and CSV -999.0 for -999.
        is_plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        return bool(self._numbers) and is_plain and number_in(value) in self._numbers


class Labels:
    """Labels of records as numbers.

    Args:
        options: Options of the import. Classes without names are all whole numbers from 0.
    """

    def __init__(self, options: ImportOptions) -> None:
        names = options.class_names
        if names and not options.are_classes:
            raise UserError(f"--class_names has no effect with --label_kind={options.label_kind}")
        if len(set(names)) < len(names):
            raise UserError(f"--class_names: expected different names, found {','.join(names)}")
        self._are_classes = options.are_classes
        self._names: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        self._missing = MissingValues(options)

    def number_of(self, value: Any, place: str) -> Union[int, float]:
        """Returns the number of a class, an int, or a label that is a number itself, a float.

        Raises:
            RecordError: If there is no such class, or the value is no finite number, or is missing.
        """
        if self._missing.has_no_value(value) and value not in self._names:
            raise RecordError(
                place,
                "missing label",
                f"expected a label, found {value!r} (--bad_records=skip leaves out records without "
                "one)",
            )
        return self.class_of(value, place) if self._are_classes else _real_number(value, place)

    def class_of(self, value: Any, place: str) -> int:
        """Returns the class that a value stands for: its name, or its number.

        Raises:
            RecordError: If there is no such class.
        """
        if isinstance(value, str) and value in self._names:
            return self._names[value]
        number = _whole_number(value)
        if number is None:
            expected = f"one of {', '.join(self._names)}" if self._names else "a whole number"
            hint = "" if self._names else _hint(value)
            raise RecordError(
                place,
                "label that is no class",
                f"expected {expected} as label, found {value!r}{hint}",
            )
        limit = len(self._names) or _MAX_LABEL
        if not 0 <= number < limit:
            raise RecordError(
                place,
                "label out of range",
                f"expected a label from 0 to {limit - 1}, found {number}",
            )
        return number


def _hint(value: Any) -> str:
    if number_in(value) is None:
        return " (--class_names makes numbers of names)"
    return " (--label_kind=number is for labels that are real numbers)"


def _real_number(value: Any, place: str) -> float:
    number = number_in(value)
    if number is None:
        raise RecordError(
            place, "label that is no number", f"expected a number as label, found {value!r}"
        )
    # Stores hold them as float32.
    if not np.isfinite(to_float32(np.asarray(number))):
        raise RecordError(
            place,
            "label that is not finite",
            f"expected a label that is finite as float32 ({_MOST}), found {value!r}",
        )
    return number


def name_in(value: Any, place: str) -> Optional[str]:
    """Returns the name of a client, a domain or a group that a value is; None if it is none.

    A whole number has one name, in columns of real numbers too: 17.0 is "17".
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as e:
            found = f"expected UTF-8, found byte 0x{value[e.start]:02x}"
            raise RecordError(place, "text that is not UTF-8", found) from None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None if math.isnan(value) else value
    if value is None or isinstance(value, (dict, list)) or not str(value).strip():
        return None
    return str(value)


def number_in(value: Any) -> Optional[float]:
    """Returns the number that a value is, or that its text says; None if it is none."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return None


def _whole_number(value: Any) -> Optional[int]:
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    try:
        if isinstance(value, str):
            return int(value) if value.strip().lstrip("+-").isdecimal() else int(_whole(value))
        return int(_whole(value))
    except (ValueError, TypeError, OverflowError):
        return None


def _whole(value: Any) -> float:
    """Returns a number without fraction, such as 3.0 in a column of floats."""
    number = float(value)
    if not number.is_integer():
        raise ValueError(value)
    return number


@dataclasses.dataclass(frozen=True)
class CategorySummary:
    """The values of one categorical column, kept and left out.

    Attributes:
        size: Values that are known.
        different: Different values of the training clients.
        coverage: Share of the training examples with a value that have a known one.
        unknown: Examples with a value that is not known, by split, where there are any.
    """

    size: int
    different: int
    coverage: float
    unknown: Mapping[str, int]

    def text(self, column: str) -> str:
        """Returns a line for people."""
        line = f"{column}: {self.size} known values"
        if self.size < self.different:
            line += (
                f" of {self.different} (--max_categories), in {self.coverage:.1%} of the training "
                "examples"
            )
        if self.unknown:
            counts = ", ".join(f"{count} of {split}" for split, count in self.unknown.items())
            line += f"; examples with another value: {counts}"
        return f"{line}."


class CategoryCounts:
    """Counts the values of categorical columns in bounded memory; see `WordCounts`.

    Args:
        examples: The examples of a store.
        columns: Names of the columns, which are features of the examples.
    """

    def __init__(self, examples: SortedExamples, columns: Sequence[str]) -> None:
        self._counts: dict[str, dict[str, WordCounts]] = {column: {} for column in columns}
        self._examples: dict[str, Counter[str]] = {column: Counter() for column in columns}
        for split in examples.rows if columns else ():
            for _, table in examples.batches(split):
                for column in columns:
                    values = table[column].filter(pc.not_equal(table[column], NO_CATEGORY))
                    self._counts[column].setdefault(split, WordCounts()).add(values)
                    self._examples[column][split] += len(values)

    def known(self, size: int) -> dict[str, tuple[str, ...]]:
        """Returns the most frequent values of each column among training clients, sorted.

        Args:
            size: How many of each column at most.
        """
        return {
            column: tuple(sorted(splits.get(TRAIN, WordCounts()).top(size)))
            for column, splits in self._counts.items()
        }

    def summaries(self, known: Mapping[str, Sequence[str]]) -> dict[str, CategorySummary]:
        """Returns what became of each column's values, given those that are known."""
        return {column: self._summary(column, frozenset(known[column])) for column in self._counts}

    def _summary(self, column: str, known: frozenset[str]) -> CategorySummary:
        splits = self._counts[column]
        unknown = {
            split: self._examples[column][split] - counts.total_of(known)
            for split, counts in splits.items()
        }
        train = self._examples[column][TRAIN]
        return CategorySummary(
            size=len(known),
            different=len(splits.get(TRAIN, WordCounts())),
            coverage=1 - unknown.get(TRAIN, 0) / max(1, train),
            unknown={split: count for split, count in sorted(unknown.items()) if count},
        )
