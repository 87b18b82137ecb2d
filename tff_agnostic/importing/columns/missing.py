"""Values that a table does not have: which cells they are, and what becomes of them."""

import math
from typing import Any

from tff_agnostic.importing.records.options import ImportOptions

# The category of missing values, where they have one.
MISSING = "<missing>"
# No category: the value of a categorical column that is left out of it.
NO_CATEGORY = ""


class MissingValues:
    """The rule of --missing_values.

    Args:
        options: Of the import.

    Attributes:
        are_refused: Whether a missing value makes a bad record.
        are_marked: Whether the store says which values were missing.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._marks = frozenset({"", *options.missing_marks})
        self.are_refused = options.missing_values == "fail"
        self.are_marked = options.missing_values == "mark"

    def is_missing(self, value: Any) -> bool:
        """Returns whether a cell has no value: it is null, NaN, empty, or one of the marks."""
        if isinstance(value, str):
            return value.strip() in self._marks
        return value is None or (isinstance(value, float) and math.isnan(value))
