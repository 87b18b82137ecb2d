"""The columns of a table as inputs of a model, and its rows as examples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import did_you_mean
from tff_agnostic.data.store_format import (
    DOMAIN,
    LABEL,
    MISSING,
    NO_CATEGORY,
    TOKENS,
    Record,
    Value,
)
from tff_agnostic.importing.cells import (
    PIXELS,
    VECTOR,
    Labels,
    MissingValues,
    check_shape,
    image_of,
    name_in,
    number_in,
    vector_of,
)
from tff_agnostic.importing.options import DELIMITERS, SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import ReadLog, RecordError, SourceExample
from tff_agnostic.importing.text import Normalizer

# So many cells, all of them numbers, are a column of numbers.
_ENOUGH_NUMBERS = 100
_RESERVED = (DOMAIN, LABEL, TOKENS)
# Of a column of texts, if the options name none.
TOKENIZER = "words"
_PLAIN = r"\d+([.,]\d+)?"
# What may stand where a number should, and what to do about it; 1,400 is of the first kind.
_HINTS = {
    r"[+-]?\d{1,3}([,.' ]\d{3})+([,.]\d*)?": "write numbers without signs between thousands",
    r"[+-]?\d*,\d+": "write decimals with a point",
    rf"[^\w\s.+-]\s*{_PLAIN}|[+-]?{_PLAIN}\s*([^\W\d_]{{2,5}}|[^\w\s.])": "write no units",
}

# Where a row stands, and its values by column.
Rows = Iterable[tuple[str, Mapping[str, Any]]]


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if the options do not say what the columns are."""
    require_client_and_domain(options)
    has_features = bool(feature_columns_of(options))
    if (options.text_column is None) == (not has_features):
        raise UserError(
            "--feature_columns: expected this or --text_column, found "
            f"{'neither' if options.text_column is None else 'both'}"
        )
    check_inputs(options)
    if has_features and options.label_column is None:
        raise UserError("--label_column: expected the name of a column, found none")
    if options.split_by == "group" and options.group_column is None:
        raise UserError(
            "--group_column: expected the name of a column with --split_by=group, found none"
        )
    if options.split_by != "group" and options.group_column is not None:
        raise UserError(
            f"--group_column has no effect with --split_by={options.split_by}: it needs "
            "--split_by=group"
        )
    if options.label_column is None:
        for flag, is_given in (
            ("class_names", bool(options.class_names)),
            ("label_kind", not options.are_classes),
        ):
            if is_given:
                raise UserError(f"--{flag} has no effect without --label_column")


def require_client_and_domain(options: ImportOptions) -> None:
    """Raises a `UserError` unless the options say what the clients and the domains are."""
    if options.client_column is None:
        raise UserError("--client_column: expected the name of a column, found none")
    if (options.domain_column is None) == (options.domain_name is None):
        raise UserError(
            "--domain_column: expected this or --domain_name, found "
            f"{'neither' if options.domain_name is None else 'both'}"
        )


def needed_columns(options: ImportOptions) -> list[str]:
    """Returns the names of all columns that the options name, each once."""
    names = [
        options.client_column,
        options.domain_column,
        options.group_column,
        options.label_column,
        options.text_column,
        options.split_column,
        *feature_columns_of(options),
    ]
    return list(dict.fromkeys(name for name in names if name is not None))


def check_columns(options: ImportOptions, found: Sequence[str], path: Path) -> None:
    """Raises a `UserError` if a table lacks a column, or has two of one name."""
    for name in needed_columns(options):
        if found.count(name) != 1:
            raise UserError(
                f"{path}: expected one column {name!r}, found {', '.join(found) or 'no columns'}"
                f"{_column_hint(name, found)}"
            )


def _column_hint(name: str, found: Sequence[str]) -> str:
    """Returns how the header may have to be read, or which column may be meant."""
    if len(found) == 1:
        for word, sign in DELIMITERS.items():
            if sign in found[0]:
                return f" (--delimiter={word} takes them apart)"
    meant = "" if name in found else did_you_mean(name, found)
    return f" ({meant.strip()})" if meant else ""


class RowConverter:
    """Makes examples of rows.

    Args:
        options: Of the import; they have been checked.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._labels = Labels(options)
        self._converter = FeatureConverter(options)
        self._texts = _TextCheck(options.text_column)
        self._normalizer = Normalizer(options, TOKENIZER)

    def examples(self, rows: Rows, log: ReadLog) -> Iterator[SourceExample]:
        """Yields an example for each row, in order; reports rows without an example to the log."""
        for place, row in rows:
            log.num_records += 1
            client = None
            try:
                client = _text(row, self._options.client_column, place)
                features, missing = self._features(row, place)
                if features.get(TOKENS) == "":
                    log.skip("text without words", client)
                    continue
                group = self._options.group_column
                example = SourceExample(
                    Record(client, self._domain(row, place), features, self._split(row, place)),
                    place,
                    None if group is None else _text(row, group, place),
                )
            except RecordError as e:
                log.bad(e, client)
                continue
            log.missing.update(missing)
            log.numbers.update(self._converter.numbers)
            yield example
        self._texts.end()

    def _domain(self, row: Mapping[str, Any], place: str) -> str:
        if self._options.domain_name is not None:
            return self._options.domain_name
        return _text(row, self._options.domain_column, place)

    def _split(self, row: Mapping[str, Any], place: str) -> Optional[str]:
        column = self._options.split_column
        if column is None:
            return None
        split = _text(row, column, place)
        if split not in SPLIT_NAMES:
            raise RecordError(
                place,
                "unknown split",
                f"expected one of {', '.join(SPLIT_NAMES)} in {column}, found {split!r}",
            )
        return split

    def _features(
        self, row: Mapping[str, Any], place: str
    ) -> tuple[dict[str, Value], Sequence[str]]:
        options = self._options
        if options.text_column is not None:
            text = cell(row, options.text_column, place)
            if not isinstance(text, str):
                raise RecordError(
                    place,
                    "text that is none",
                    f"expected text in {options.text_column}, found {text!r}",
                )
            self._texts.see(text)
            features: dict[str, Value] = {
                TOKENS: self._normalizer.sentence(self._normalizer.tokenize(text))
            }
            missing: Sequence[str] = ()
        else:
            features, missing = self._converter.features(row, place)
        if options.label_column is not None:
            label = cell(row, options.label_column, place)
            features[LABEL] = self._labels.number_of(label, place)
        return features, missing


class _TextCheck:
    """Detects columns of numbers among columns of texts, which CSV does not distinguish."""

    def __init__(self, column: Optional[str]) -> None:
        self._column = column
        self._num_numbers = 0
        self._last = ""
        self._found_text = False

    def see(self, text: str) -> None:
        if self._found_text:
            return
        if number_in(text) is None:
            # An empty cell decides nothing.
            self._found_text = bool(text.strip())
            return
        self._num_numbers, self._last = self._num_numbers + 1, text
        if self._num_numbers == _ENOUGH_NUMBERS:
            self.end()

    def end(self) -> None:
        """Raises a `UserError` if there were numbers and no text."""
        if self._num_numbers and not self._found_text:
            raise UserError(
                f"--text_column: expected texts in {self._column}, found nothing but numbers, such "
                f"as {self._last!r} (--feature_columns is for numbers)"
            )


def _text(row: Mapping[str, Any], name: str | None, place: str) -> str:
    assert name is not None
    value = cell(row, name, place)
    text = name_in(value, place)
    if text is None:
        raise RecordError(
            place,
            f"empty {name}",
            f"expected a name or number in {name}, found {value!r} (--bad_records=skip leaves "
            "out records without one)",
        )
    return text


@dataclasses.dataclass(frozen=True)
class Input:
    """A feature of the store that is made of columns of numbers.

    Attributes:
        name: Name of the feature.
        columns: The columns, in the order of the vector's entries.
    """

    name: str
    columns: tuple[str, ...]


class FeatureConverter:
    """Makes features of rows.

    Args:
        options: Of the import; they have been checked.

    Attributes:
        numbers: The column of each number of an input, in the last row, by input.
    """

    def __init__(self, options: ImportOptions) -> None:
        self.numbers: dict[str, Sequence[str]] = {}
        self._vectors = vector_inputs(options)
        self._images = image_inputs(options)
        self._categories = options.categorical_columns
        self._missing = MissingValues(options)
        self._shape = options.feature_shape
        self._max_pixels = options.max_pixels

    def features(self, row: Mapping[str, Any], place: str) -> tuple[dict[str, Value], list[str]]:
        """Returns the features of a row, and the columns whose values are missing.

        Numbers are float32 [n], with an entry for each column, or for each number of a list; it is
        NaN where it is missing, which the store replaces. Where missing ones are marked, an entry
        for each column follows them, 1 where it is missing.
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
        of_columns: list[str] = []
        gaps: list[int] = []
        for column in input_.columns:
            value = cell(row, column, place)
            entries = value if isinstance(value, list) else [value]
            of_columns += [column] * len(entries)
            if self._missing.are_refused:
                values += entries
                continue
            absent = [self._missing.is_missing(entry) for entry in entries]
            gaps += [len(values) + k for k, gone in enumerate(absent) if gone]
            values += [0.0 if gone else entry for entry, gone in zip(entries, absent)]
            marks.append(float(any(absent)))
            if any(absent):
                missing.append(column)
        self.numbers[input_.name] = of_columns
        if self._missing.are_marked:
            values += marks
        vector = vector_of(values, self._shape, place, of_columns, self._hint)
        vector.reshape(-1)[gaps] = np.nan
        return vector

    def _hint(self, value: Any) -> str:
        if self._missing.are_refused and self._missing.is_missing(value):
            return " (set --missing_values to accept missing ones)"
        for pattern, hint in _HINTS.items():
            if isinstance(value, str) and re.fullmatch(pattern, value.strip()):
                return f" ({hint})"
        return " (--categorical_columns is for names)"

    def _category(self, column: str, row: Mapping[str, Any], place: str, missing: list[str]) -> str:
        value = cell(row, column, place)
        if self._missing.is_missing(value):
            if self._missing.are_refused:
                raise RecordError(
                    place,
                    f"missing {column}",
                    f"expected a category in {column}, found {value!r} (set --missing_values to "
                    "accept missing ones)",
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


def vector_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Parses --feature_columns: `COLUMN,...`, or `NAME:COLUMN,...;NAME:COLUMN,...`."""
    columns = options.feature_columns
    if not columns:
        return ()
    text = ",".join(columns)
    if ":" not in text and ";" not in text:
        return (Input(options.feature_name or VECTOR, columns),)
    if options.feature_name is not None:
        raise UserError(f"--feature_name has no effect: --feature_columns={text} names the inputs")
    inputs = []
    for part in text.split(";"):
        name, _, of_input = part.partition(":")
        if not name or not all(of_input.split(",")):
            raise UserError(
                "--feature_columns: expected COLUMN,... or NAME:COLUMN,...;NAME:COLUMN,..., found "
                f"{text!r}"
            )
        inputs.append(Input(name, tuple(of_input.split(","))))
    return tuple(inputs)


def image_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Returns an input for each of --image_columns, called as the column.

    The only input of a store is called --feature_name, or pixels.
    """
    columns = options.image_columns
    if len(columns) == 1 and not (options.feature_columns or options.categorical_columns):
        return (Input(options.feature_name or PIXELS, columns),)
    return tuple(Input(column, (column,)) for column in columns)


def feature_columns_of(options: ImportOptions) -> list[str]:
    """Returns every column that an input is made of, once for each use."""
    of_inputs = [column for input_ in _inputs(options) for column in input_.columns]
    return [*of_inputs, *options.categorical_columns]


def check_inputs(options: ImportOptions) -> None:
    """Checks that every column is in one input, and every input has a name of its own."""
    columns = feature_columns_of(options)
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{_flag_of(options, twice)}: expected a column once, found {twice} twice")
    if options.label_column in columns:
        raise UserError(
            f"{_flag_of(options, str(options.label_column))}: expected other columns than "
            f"--label_column, found {options.label_column}"
        )
    names = [*(input_.name for input_ in _inputs(options)), *options.categorical_columns]
    for name in names:
        if not name or name in _RESERVED or names.count(name) > 1:
            raise UserError(
                "--feature_columns: expected inputs with different names, other than "
                f"{', '.join(_RESERVED)}, found {', '.join(names)}"
            )
    _check_shapes(options)
    _check_effects(options)


def _inputs(options: ImportOptions) -> tuple[Input, ...]:
    return (*vector_inputs(options), *image_inputs(options))


def _check_shapes(options: ImportOptions) -> None:
    check_shape(options.feature_shape)
    if not options.feature_shape:
        return
    if len(vector_inputs(options)) != 1:
        raise UserError(
            "--feature_shape: expected exactly one input in --feature_columns, found "
            f"{len(vector_inputs(options))}"
        )
    if options.missing_values == "mark":
        raise UserError(
            "--feature_shape: expected vectors with --missing_values=mark, which adds an entry for "
            "each column"
        )


def _check_effects(options: ImportOptions) -> None:
    names = [input_.name for input_ in _inputs(options)]
    if options.feature_name is not None and options.feature_name not in names:
        raise UserError(
            "--feature_name has no effect: it names the only input of numbers or images, found "
            f"{', '.join(names) or 'none'}"
        )
    can_be_missing = options.feature_columns or options.categorical_columns
    for name in ("missing_values", "missing_marks"):
        if getattr(options, name) != getattr(ImportOptions, name) and not can_be_missing:
            raise UserError(
                f"--{name} has no effect without --feature_columns or --categorical_columns"
            )
    if options.standardize and not options.feature_columns:
        raise UserError("--standardize has no effect without --feature_columns")
    if options.missing_marks and options.missing_values == "fail":
        raise UserError(
            "--missing_marks has no effect with --missing_values=fail: it needs "
            "--missing_values=zero or mark"
        )
    if options.max_categories != ImportOptions.max_categories and not options.categorical_columns:
        raise UserError("--max_categories has no effect without --categorical_columns")


def _flag_of(options: ImportOptions, column: str) -> str:
    if column in options.categorical_columns:
        return "--categorical_columns"
    return "--image_columns" if column in options.image_columns else "--feature_columns"
