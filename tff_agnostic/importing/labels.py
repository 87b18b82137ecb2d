"""Labels and class names."""

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.importing.reading import RecordError

# Stores hold them as int64, models count them as int32.
_MAX_LABEL = 2**31 - 1


class Labels:
    """Labels of records as class numbers.

    Args:
        class_names: Names of the classes in the order of their numbers; without names every whole
            number from 0 is a label.

    Raises:
        UserError: If two classes have one name.
    """

    def __init__(self, class_names: Sequence[str] = ()) -> None:
        if len(set(class_names)) < len(class_names):
            raise UserError(
                f"--class_names: expected different names, found {','.join(class_names)}"
            )
        self._names: Mapping[str, int] = {name: i for i, name in enumerate(class_names)}

    def number_of(self, value: Any, place: str) -> int:
        """Returns the class that a value stands for: its name, or its number.

        Raises:
            RecordError: If there is no such class.
        """
        if isinstance(value, str) and value in self._names:
            return self._names[value]
        number = _whole_number(value)
        if number is None:
            expected = f"one of {', '.join(self._names)}" if self._names else "a whole number"
            hint = "" if self._names else " (--class_names makes numbers of names)"
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
