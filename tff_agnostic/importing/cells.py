"""Cells of a table: numbers, names, missing values, labels."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tff_agnostic.data.store_format import MISSING, NO_CATEGORY
from tff_agnostic.importing.options import ImportOptions

# Largest label that models can use: stores have int64 labels, but models use int32.
_MAX_LABEL = 2**31 - 1
_REAL_LABELS = " (label_kind=number is for labels that are real numbers)"
# Larger numbers become infinite in float32.
MOST = "at most 3.4e38"
# Blanks at the ends of a name, including zero-width spaces, word joiners and byte-order marks.
_BLANK = re.compile(r"^[\s\u200b\u2060\ufeff]+|[\s\u200b\u2060\ufeff]+$")
_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_PLAIN = r"\d+([.,]\d+)?"
_NO_VALUE = r"(?i)n/?a|n\.a\.|none|null|missing|-+|\?+|\."
_SKIPPED = " (bad_records=skip leaves out records without one)"
# Advice for each pattern of an invalid number. If several match, as for 1,400, the first counts.
_HINTS = {
    r"[+-]?\d{1,3}([,.' ]\d{3})+([,.]\d*)?": "write numbers without signs between thousands",
    r"[+-]?\d+(_\d+)+": "write numbers without underscores",
    r"[+-]?\d*,\d+": "decimal=comma reads decimals with a comma",
    rf"[^\w\s.+-]\s*{_PLAIN}(,\d{{3}})*(\.\d+)?|[+-]?{_PLAIN}\s*([^\W\d_]{{2,5}}|[^\w\s.])": (
        "write no units"
    ),
    _NO_VALUE: "missing_values=mark and missing_marks={value} are for cells without a value",
}


class CellError(ValueError):
    """An invalid cell or record, which does not become an example.

    Attributes:
        reason: Kind of the error, by which the report counts skipped records.
        detail: Message with the expected and the actual value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def number_in(value: Any) -> Optional[float]:
    """Returns a cell's value as a number; None if it is not a number.

    Underscores and digits of other scripts are rejected, although Python accepts them.
    """
    if isinstance(value, str) and ("_" in value or not value.strip().isascii()):
        return None
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return None


def plain_name(text: str) -> str:
    """Returns a name in Unicode's composed form (NFC), without blanks at its ends."""
    return _BLANK.sub("", unicodedata.normalize("NFC", text))


def to_float32(numbers: np.ndarray) -> np.ndarray:
    """Returns numbers as float32; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


class MissingValues:
    """The rules of the options `missing_values` and `missing_marks`.

    Attributes:
        are_refused: Whether a record with a missing value is invalid.
        are_marked: Whether the store records which values were missing.
        marks: Strings that represent a missing value, including the empty string.
        numbers: The numbers among `marks`.
    """

    def __init__(self, options: ImportOptions) -> None:
        self.marks = ("", *map(str.strip, options.missing_marks))
        numbers = map(number_in, options.missing_marks)
        self.numbers = frozenset(n for n in numbers if n is not None and not math.isnan(n))
        self.are_refused = options.missing_values == "fail"
        self.are_marked = options.missing_values == "mark"

    def has_no_value(self, value: Any) -> bool:
        """Whether a cell is null, NaN, empty, or a string in `marks`.

        Numbers are not compared with `marks`: 0 may represent a missing feature, but may also be a
        class.
        """
        if isinstance(value, str):
            text = value.strip()
            return text in self.marks or text.casefold() == "nan"
        return value is None or (isinstance(value, float) and math.isnan(value))

    def is_missing(self, value: Any) -> bool:
        """Whether a feature's cell has no value, or a number in `numbers`."""
        if self.has_no_value(value):
            return True
        # Compare by value: Parquet has numbers, and CSV may have -999.0 for the mark -999.
        is_plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        return bool(self.numbers) and is_plain and number_in(value) in self.numbers

    def number(self, value: Any, where: str) -> float:
        """Returns the number of a cell; NaN if it is missing.

        Args:
            where: Position of the cell for messages, such as "in age".
        """
        if self.is_missing(value):
            if self.are_refused:
                raise not_a_number(value, where, "set missing_values to accept missing ones")
            return math.nan
        number = number_in(value)
        if number is None:
            raise not_a_number(value, where, value_hint(value))
        return number

    def category(self, value: Any, column: str) -> str:
        """Returns the category of a cell."""
        if self.is_missing(value):
            if self.are_refused:
                raise CellError(
                    f"missing {column}",
                    f"expected a category in {column}, found {value!r} (set missing_values to "
                    "accept missing ones)",
                )
            return MISSING if self.are_marked else NO_CATEGORY
        if isinstance(value, (dict, list, bytes)):
            raise CellError(
                "invalid category",
                f"expected a name or number in {column}, found {type(value).__name__}",
            )
        # Name 3.0 like 3: a column of integers with a missing value is read as real numbers.
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if is_whole else plain_name(str(value))

    def name(self, value: Any, column: str) -> str:
        """Returns the name of a client, a domain, a split or a group.

        Real numbers without a fraction are named like integers: 17.0 is "17".
        """
        if isinstance(value, bytes):
            value = decoded_text(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if self.has_no_value(value) or isinstance(value, (dict, list)):
            raise _no_name(column, value)
        name = plain_name(str(value))
        whole = _WHOLE.fullmatch(name)
        name = whole[1] if whole else name
        if not name:
            raise _no_name(column, value)
        if any(unicodedata.category(character) == "Cc" for character in name):
            raise CellError(
                f"control character in {column}",
                f"expected a name without control characters in {column}, found {value!r:.60}",
            )
        return name


def _no_name(column: str, value: Any) -> CellError:
    return CellError(
        f"empty {column}",
        f"expected a name or number in {column}, found {value!r}{_SKIPPED}",
    )


def decoded_text(content: bytes) -> str:
    """Decodes UTF-8; raises a `CellError` if the bytes are invalid."""
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        result = f"expected UTF-8, found byte 0x{content[e.start]:02x}"
        raise CellError("text that is not UTF-8", result) from None


def not_a_number(value: Any, where: str, hint: str = "") -> CellError:
    """Returns the error for a feature that is not a number."""
    return CellError(
        "feature that is not a number",
        f"expected numbers as features, found {value!r} {where}" + (f" ({hint})" if hint else ""),
    )


def not_finite(value: Any, where: str) -> CellError:
    """Returns the error for a feature that is not finite as float32."""
    return CellError(
        "feature that is not finite",
        f"expected features that are finite as float32 ({MOST}), found {value} {where}",
    )


def value_hint(value: Any) -> str:
    """Returns advice on a value that is not a number, for its error message."""
    text = value.strip() if isinstance(value, str) else None
    for pattern, hint in _HINTS.items():
        if text is not None and re.fullmatch(pattern, text):
            return hint.replace("{value}", text)
    return "categorical_columns is for names"


def vector_in(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Returns numbers or numeric strings as float32 [*shape]; a vector if `shape` is ().

    Raises:
        CellError: If a value is not a finite number, or the count of values does not fit the shape.
    """
    numbers = [number_in(value) for value in values]
    if None in numbers:
        at = numbers.index(None)
        raise not_a_number(values[at], f"as number {at + 1}")
    vector = to_float32(np.array(numbers, np.float64))
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise not_finite(vector[at], f"as number {at + 1}")
    check_size(len(vector), shape)
    return vector.reshape(shape or -1)


def check_size(size: int, shape: Sequence[int]) -> None:
    """Raises a `CellError` if a vector of this size does not fill the shape; () fits any size."""
    if shape and size != math.prod(shape):
        raise CellError(
            "wrong number of features",
            f"expected {math.prod(shape)} features (feature_shape), found {size}",
        )


class Labels:
    """A converter of records' labels to numbers.

    Args:
        options: Options of the import. Without `class_names`, any integer from 0 is a class.
    """

    def __init__(self, options: ImportOptions) -> None:
        names = tuple(map(plain_name, options.class_names))
        if names and not options.are_classes:
            raise options.error("class_names", f"no names with label_kind={options.label_kind}")
        if len(set(names)) < len(names):
            raise options.error("class_names", "different names")
        self._are_classes = options.are_classes
        self._names: Mapping[str, int] = {name: i for i, name in enumerate(names)}
        self._missing = MissingValues(options)

    def parse_number(self, value: Any) -> Union[int, float]:
        """Returns a label as a number: an int for a class, otherwise a float.

        Raises:
            CellError: If the class is unknown, or the value is missing or not a finite number.
        """
        value = decoded_text(value) if isinstance(value, bytes) else value
        value = plain_name(value) if isinstance(value, str) else value
        if self._missing.has_no_value(value) and value not in self._names:
            raise CellError("missing label", f"expected a label, found {value!r}{_SKIPPED}")
        return self.class_number(value) if self._are_classes else _real_number(value)

    def class_number(self, value: Any) -> int:
        """Converts the name or number of a class to its number.

        Raises:
            CellError: If the class is unknown.
        """
        if isinstance(value, str) and value in self._names:
            return self._names[value]
        number = _whole_number(value)
        if number is None:
            expected = f"one of {', '.join(self._names)}" if self._names else "a whole number"
            named = " (class_names=NAME,... makes numbers of names)"
            hint = named if number_in(value) is None else _REAL_LABELS
            hint = _skip_hint(value) or ("" if self._names else hint)
            raise CellError(
                "label that is not a class",
                f"expected {expected} as label, found {value!r}{hint}",
            )
        limit = len(self._names) or _MAX_LABEL
        if not 0 <= number < limit:
            hint = "" if self._names else _REAL_LABELS
            raise CellError(
                "label out of range",
                f"expected a label from 0 to {limit - 1}, found {number}{hint}",
            )
        return number


def _skip_hint(value: Any) -> str:
    is_none = isinstance(value, str) and re.fullmatch(_NO_VALUE, value) is not None
    return _SKIPPED if is_none else ""


def _real_number(value: Any) -> float:
    number = number_in(value)
    if number is None:
        raise CellError(
            "label that is not a number",
            f"expected a number as label, found {value!r}{_skip_hint(value)}",
        )
    # Check the label as float32, which is its type in stores.
    if not np.isfinite(to_float32(np.asarray(number))):
        raise CellError(
            "label that is not finite",
            f"expected a label that is finite as float32 ({MOST}), found {value!r}",
        )
    return number


def _whole_number(value: Any) -> Optional[int]:
    if isinstance(value, (bool, int, np.bool_)):
        return int(value)
    # Parse integers directly, as float64 cannot represent all of them.
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value.strip()):
        return int(value)
    number = number_in(value)
    return None if number is None or not number.is_integer() else int(number)
