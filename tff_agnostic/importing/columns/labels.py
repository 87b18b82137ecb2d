"""Labels: classes with or without names, or numbers."""

from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.importing.columns.vectors import to_float32
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import RecordError

# Stores hold them as int64, models count them as int32.
_MAX_LABEL = 2**31 - 1


class Labels:
    """Labels of records as numbers.

    Args:
        options: Of the import. Classes without names are all whole numbers from 0.

    Raises:
        UserError: If labels that are no classes have names, or two classes have one name.
    """

    def __init__(self, options: ImportOptions) -> None:
        names = options.class_names
        if names and not options.are_classes:
            raise UserError(f"--class_names has no effect with --label_kind={options.label_kind}")
        if len(set(names)) < len(names):
            raise UserError(f"--class_names: expected different names, found {','.join(names)}")
        self._are_classes = options.are_classes
        self._names: Mapping[str, int] = {name: i for i, name in enumerate(names)}

    def number_of(self, value: Any, place: str) -> Union[int, float]:
        """Returns the number of a class, an int, or a label that is a number itself, a float.

        Raises:
            RecordError: If there is no such class, or the value is no finite number.
        """
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
    if _number(value) is None:
        return " (--class_names makes numbers of names)"
    return " (--label_kind=number is for labels that are no classes)"


def _real_number(value: Any, place: str) -> float:
    number = _number(value)
    if number is None:
        raise RecordError(
            place, "label that is no number", f"expected a number as label, found {value!r}"
        )
    # Stores hold them as float32.
    if not np.isfinite(to_float32(np.asarray(number))):
        raise RecordError(
            place, "label that is not finite", f"expected a finite label, found {value!r}"
        )
    return number


def _number(value: Any) -> Optional[float]:
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
