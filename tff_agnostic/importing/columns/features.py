"""The cells of a row to the features of an example: vectors of numbers, categories, images."""

from collections.abc import Mapping
from typing import Any

from tff_agnostic.data.records import Value
from tff_agnostic.importing.columns.images import image_of
from tff_agnostic.importing.columns.inputs import Input, image_inputs, vector_inputs
from tff_agnostic.importing.columns.missing import MISSING, NO_CATEGORY, MissingValues
from tff_agnostic.importing.columns.vectors import vector_of
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import RecordError


class FeatureConverter:
    """Makes features of rows.

    Args:
        options: Of the import; they have been checked.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._vectors = vector_inputs(options)
        self._images = image_inputs(options)
        self._categories = options.categorical_columns
        self._missing = MissingValues(options)
        self._shape = options.feature_shape
        self._max_pixels = options.max_pixels

    def features(self, row: Mapping[str, Any], place: str) -> tuple[dict[str, Value], list[str]]:
        """Returns the features of a row, and the columns whose values are missing.

        Numbers are float32 [n], with an entry for each column, or for each number of a list; where
        missing ones are marked, an entry for each column follows them, 1 where it is missing.
        Categories are texts. Images are float32 [height, width, channels].

        Raises:
            RecordError: If a cell is not what it has to be.
        """
        features: dict[str, Value] = {}
        missing: list[str] = []
        for input_ in self._vectors:
            features[input_.name] = self._vector(input_, row, place, missing)
        for column in self._categories:
            features[column] = self._category(column, row, place, missing)
        for input_ in self._images:
            (column,) = input_.columns
            features[input_.name] = image_of(
                cell(row, column, place), column, place, self._max_pixels
            )
        return features, missing

    def _vector(
        self, input_: Input, row: Mapping[str, Any], place: str, missing: list[str]
    ) -> Value:
        values: list[Any] = []
        marks: list[float] = []
        for column in input_.columns:
            value = cell(row, column, place)
            entries = value if isinstance(value, list) else [value]
            if self._missing.are_refused:
                values += entries
                continue
            absent = [self._missing.is_missing(entry) for entry in entries]
            values += [0.0 if gone else entry for entry, gone in zip(entries, absent)]
            marks.append(float(any(absent)))
            if any(absent):
                missing.append(column)
        if self._missing.are_marked:
            values += marks
        return vector_of(values, self._shape, place, self._hint)

    def _hint(self, value: Any) -> str:
        if self._missing.are_refused and self._missing.is_missing(value):
            return " (--missing_values says what becomes of missing ones)"
        return " (--categorical_columns is for names)"

    def _category(self, column: str, row: Mapping[str, Any], place: str, missing: list[str]) -> str:
        value = cell(row, column, place)
        if self._missing.is_missing(value):
            if self._missing.are_refused:
                raise RecordError(
                    place,
                    f"missing {column}",
                    f"expected a category in {column}, found {value!r} (--missing_values says what "
                    "becomes of it)",
                )
            missing.append(column)
            return MISSING if self._missing.are_marked else NO_CATEGORY
        if isinstance(value, (dict, list, bytes)):
            raise RecordError(
                place,
                "category that is none",
                f"expected a name or number in {column}, found {type(value).__name__}",
            )
        # Columns of whole numbers are read as real ones where a value is missing.
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if is_whole else str(value).strip()


def cell(row: Mapping[str, Any], column: str, place: str) -> Any:
    """Returns the value of a column.

    Raises:
        RecordError: If the row does not have that column.
    """
    if column not in row:
        raise RecordError(
            place,
            "missing column",
            f"expected a column {column!r}, found {', '.join(row) or 'none'}",
        )
    return row[column]
