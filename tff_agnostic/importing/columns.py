"""Converts blocks of a table's rows to examples, column by column."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.base.options import Verbatim
from tff_agnostic.data.store_format import LABEL, TOKENS
from tff_agnostic.importing.cells import (
    CellError,
    Labels,
    MissingValues,
    check_size,
    not_a_number,
    not_finite,
    number_in,
    to_float32,
)
from tff_agnostic.importing.images import image_in
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import ReadLog, Rows
from tff_agnostic.importing.table_options import Input, image_inputs, vector_inputs
from tff_agnostic.importing.text import Normalizer

# A text column is rejected when this many of its cells are numbers, and none is other text.
_ENOUGH_NUMBERS = 100
# float32 represents all integers up to this one, but not all larger integers.
MAX_EXACT = 2**24
# Default tokenizer of text columns.
TOKENIZER = "words"

# Cells of a column: an Arrow array, or Python objects of any types.
Cells = Union[pa.Array, list[Any]]
# The first error of each invalid row, by index of the row.
Errors = dict[int, CellError]


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a table's rows.

    Attributes:
        columns: Cells of each needed column, by name.
        place: Called with the index of a row; returns its location in the source, such as
            "users.csv:17".
        errors: Errors of rows that could not be parsed; the cells of these rows are ignored.
    """

    columns: Mapping[str, Cells]
    place: Callable[[int], str]
    errors: Errors = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def sliced(self, start: int, end: int) -> Block:
        """Returns the rows with indices in [start, end)."""
        return Block(
            {name: cells[start:end] for name, cells in self.columns.items()},
            lambda k: self.place(start + k),
            {k - start: error for k, error in self.errors.items() if start <= k < end},
        )

    def parts(self, names: Sequence[str]) -> Iterator[Block]:
        """Splits the block where the length of lists changes in one of the columns `names`."""
        lengths = [_lengths(self.columns[name]) for name in dict.fromkeys(names)]
        for bounds in runs([length for length in lengths if length is not None], len(self)):
            yield self.sliced(*bounds)


class Absent:
    """Marker of a cell whose row lacks the column.

    Attributes:
        names: Names of the row's columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names


def runs(looks: Sequence[np.ndarray], count: int) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each run of equal rows.

    Args:
        looks: Arrays [count]; rows are equal if they have equal entries in each of the arrays.
        count: Number of rows.
    """
    is_first = np.arange(count) == 0
    for look in looks:
        is_first[1:] |= look[1:] != look[:-1]
    starts = np.flatnonzero(is_first).tolist()
    yield from zip(starts, [*starts[1:], count])


def _lengths(cells: Cells) -> Optional[np.ndarray]:
    """Returns the length of each cell's list, -1 for other cells; None if no cell has a list."""
    if isinstance(cells, list):
        lengths = np.array([len(cell) if isinstance(cell, list) else -1 for cell in cells])
        return lengths if lengths.max(initial=-1) >= 0 else None
    if not pa.types.is_nested(cells.type) or pa.types.is_struct(cells.type):
        return None
    return np.asarray(pc.list_value_length(cells).fill_null(-1))


def converted(
    cells: Cells, convert: Callable[[Any], Any], column: str
) -> tuple[np.ndarray, Errors]:
    """Converts each cell; returns the results, and the `CellError` of each invalid cell by index.

    Equal cells are converted once.
    """
    if isinstance(cells, list) or pa.types.is_nested(cells.type) or pa.types.is_null(cells.type):
        values = cells if isinstance(cells, list) else cells.to_pylist()
        codes = np.arange(len(values))
    else:
        coded = cells.dictionary_encode("encode")
        values, codes = coded.dictionary.to_pylist(), np.asarray(coded.indices)
    results = np.empty([len(values)], object)
    failed: Errors = {}
    for k, value in enumerate(values):
        try:
            if isinstance(value, Absent):
                names = ", ".join(value.names) or "none"
                raise CellError("missing column", f"expected a column {column!r}, found {names}")
            results[k] = convert(value)
        except CellError as e:
            failed[k] = e
    rows = np.flatnonzero(np.isin(codes, list(failed))).tolist() if failed else []
    return results[codes], {row: failed[int(codes[row])] for row in rows}


class Columns:
    """A converter of a table's blocks to examples.

    Args:
        options: Options of the import, already checked.
        rows_are_clients: Whether each row is a separate client.
    """

    def __init__(self, options: ImportOptions, rows_are_clients: bool = False) -> None:
        self._options = options
        self._labels = Labels(options)
        self._missing = MissingValues(options)
        self._vectors = vector_inputs(options)
        self._images = image_inputs(options)
        self._texts = _TextCheck(options)
        self._normalizer = Normalizer(options, TOKENIZER)
        self._rows_are_clients = rows_are_clients

    def rows(self, block: Block, log: ReadLog) -> Iterator[Rows]:
        """Yields the examples of a block, and logs invalid and skipped rows."""
        lists = [column for input_ in self._vectors for column in input_.columns]
        for part in block.parts(lists):
            yield from self._rows(part, log)

    def end(self) -> None:
        """Raises an `OptionError` if the text column of all blocks had only numbers."""
        self._texts.end()

    def _rows(self, block: Block, log: ReadLog) -> Iterator[Rows]:
        options, count = self._options, len(block)
        log.num_records += count
        features, errors, gaps = self._features(block, log)
        no_client: Errors = {}
        if self._rows_are_clients:
            client = pa.array([block.place(k) for k in range(count)], pa.string())
        else:
            client, no_client = self._names(block, str(options.client_column), log)
        errors = {**errors, **no_client}
        if options.label_column is not None:
            cells = block.columns[options.label_column]
            labels, wrong = converted(cells, self._labels.parse_number, options.label_column)
            errors = {**wrong, **errors}
            labels[list(wrong)] = 0
            features[LABEL] = labels.astype(np.int64 if options.are_classes else np.float64)
        empty: set[int] = set()
        if TOKENS in features:
            is_empty = np.asarray(pc.equal(features[TOKENS], "").fill_null(False))
            empty = {*np.flatnonzero(is_empty).tolist()} - errors.keys()
        named = {
            "domain": pa.array([options.domain_name] * count, pa.string()),
            "split": pa.nulls(count, pa.string()),
        }
        for role in ("domain", "split", "group"):
            column = getattr(options, f"{role}_column")
            if column is not None:
                named[role], wrong = self._names(block, column, log, is_split=role == "split")
                errors = {**{k: e for k, e in wrong.items() if k not in empty}, **errors}
        errors |= block.errors
        for row in sorted(errors.keys() | empty):
            has_client = row not in no_client and row not in block.errors
            name = client[row].as_py() if has_client else None
            if row in errors:
                log.bad(block.place(row), errors[row], name)
            else:
                log.skip("text without words", name)
        is_kept = ~np.isin(np.arange(count), [*errors, *empty])
        for column, is_missing in gaps.items():
            if is_missing[is_kept].any():
                log.missing[column] += int(is_missing[is_kept].sum())
        if is_kept.any():
            rows = Rows(client, features=features, place=block.place, **named)
            yield from _by_image_shape(rows.selected(is_kept))

    def _names(
        self, block: Block, column: str, log: ReadLog, is_split: bool = False
    ) -> tuple[pa.Array, Errors]:
        def checked_name(value: Any) -> str:
            name = self._missing.name(value, column)
            if is_split and name not in SPLIT_NAMES:
                raise CellError(
                    "unknown split",
                    f"expected one of {', '.join(SPLIT_NAMES)} in {column}, found {name!r}",
                )
            if isinstance(value, str) and name != value:
                log.rename(column, value, name)
            return name

        names, errors = converted(block.columns[column], checked_name, column)
        return pa.array(names, pa.string()), errors

    def _features(
        self, block: Block, log: ReadLog
    ) -> tuple[dict[str, Any], Errors, dict[str, np.ndarray]]:
        """Returns features [n, *shape], errors by row, and a mask of missing values by column."""
        options = self._options
        features: dict[str, Any] = {}
        errors: Errors = {}
        gaps: dict[str, np.ndarray] = {}
        if options.text_column is not None:
            cells = block.columns[options.text_column]
            tokens, errors = converted(cells, self._tokens, options.text_column)
            self._texts.count(cells)
            return {TOKENS: pa.array(tokens, pa.string())}, errors, gaps
        for input_ in self._vectors:
            features[input_.name], wrong = self._vector(input_, block, gaps, log)
            errors = {**wrong, **errors}
        for column in options.categorical_columns:
            category = functools.partial(self._missing.category, column=column)
            values, wrong = converted(block.columns[column], category, column)
            errors = {**wrong, **errors}
            features[column] = pa.array(values, pa.string())
            if not self._missing.are_refused:
                is_missing, _ = converted(block.columns[column], self._missing.is_missing, column)
                gaps[column] = is_missing.astype(bool)
        for input_ in self._images:
            (column,) = input_.columns
            image = functools.partial(image_in, column=column, max_pixels=options.max_pixels)
            cells = block.columns[column]
            cells = cells if isinstance(cells, list) else cells.to_pylist()
            features[input_.name], wrong = converted(cells, image, column)
            errors = {**wrong, **errors}
        return features, errors, gaps

    def _tokens(self, value: Any) -> str:
        if not isinstance(value, str):
            raise CellError(
                "invalid text",
                f"expected text in {self._options.text_column}, found {value!r}",
            )
        return self._normalizer.sentence(self._normalizer.tokenize(value))

    def _vector(
        self, input_: Input, block: Block, gaps: dict[str, np.ndarray], log: ReadLog
    ) -> tuple[np.ndarray, Errors]:
        """Returns an input, float32 [n, *shape] with NaN for missing numbers, and errors by row."""
        parts: list[np.ndarray] = []
        marks: list[np.ndarray] = []
        columns: list[str] = []
        errors: Errors = {}
        for column in input_.columns:
            cells, size = block.columns[column], 1
            lengths = _lengths(cells)
            if lengths is not None and lengths[0] >= 0:
                # All lists have the same length, because `Block.parts` has split the block.
                size = int(lengths[0])
                lists = cells
                cells = [*itertools.chain(*lists)] if isinstance(lists, list) else lists.flatten()
            values, is_missing, wrong = self._numbers(cells, column)
            _report_rounded(values, column, log)
            gaps[column] = is_missing.reshape(len(block), size).any(axis=1)
            errors = {**{k // max(size, 1): e for k, e in wrong.items()}, **errors}
            parts.append(to_float32(values.reshape(len(block), size)))
            marks.append(gaps[column][:, np.newaxis].astype(np.float32))
            columns += [column] * size
        matrix = np.concatenate([*parts, *(marks if self._missing.are_marked else ())], axis=1)
        log.numbers[input_.name] = columns
        shape = self._options.feature_shape
        try:
            check_size(matrix.shape[1], shape)
        except CellError as e:
            return matrix, {**dict.fromkeys(range(len(block)), e), **errors}
        return matrix.reshape(len(block), *(shape or matrix.shape[1:])), errors

    def _numbers(self, cells: Cells, column: str) -> tuple[np.ndarray, np.ndarray, Errors]:
        """Returns float64 [n] with NaN for missing values, a mask of these, and errors by cell."""
        where = f"in {column}"
        values = self._cast(cells)
        errors: Errors = {}
        if values is None:
            numbers, errors = converted(cells, lambda value: self._number(value, where), column)
            values = np.array([math.nan if v is None else v for v in numbers], np.float64)
        is_missing = np.isnan(values)
        is_missing[list(errors)] = False
        is_wrong = ~np.isfinite(to_float32(values)) & ~is_missing
        is_wrong[list(errors)] = False
        if self._missing.are_refused:
            is_wrong |= is_missing
        for k in np.flatnonzero(is_wrong).tolist():
            cell = cells[k] if isinstance(cells, list) else cells[k].as_py()
            # Omit the hint for .npz files, whose arrays cannot have missing values.
            accepts = self._options.format != "npz"
            hint = "set missing_values to accept missing ones" if accepts else ""
            errors[k] = (
                not_a_number(cell, where, hint) if is_missing[k] else not_finite(cell, where)
            )
        return values, is_missing, errors

    def _cast(self, cells: Cells) -> Optional[np.ndarray]:
        """Casts a column to float64, NaN for missing values; None if a cell has other text."""
        if isinstance(cells, list):
            return None
        if pa.types.is_string(cells.type):
            texts = pc.utf8_trim_whitespace(cells)
            if self._options.decimal == "comma":
                if pc.any(pc.match_substring(texts, ".")).as_py():
                    return None
                texts = pc.replace_substring(texts, ",", ".")
            is_mark = pc.is_in(texts, pa.array(self._missing.marks))
            cells = pc.if_else(is_mark, pa.scalar(None, pa.string()), texts)
        try:
            values = np.array(cells.cast(pa.float64(), safe=False).fill_null(math.nan))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if self._missing.numbers:
            values[np.isin(values, list(self._missing.numbers))] = math.nan
        return values

    def _number(self, value: Any, where: str) -> float:
        if self._options.decimal == "comma" and isinstance(value, str):
            if "." in value:
                raise not_a_number(value, where, "decimal=comma takes no point")
            value = value.replace(",", ".")
        return self._missing.number(value, where)


def _report_rounded(values: np.ndarray, column: str, log: ReadLog) -> None:
    with np.errstate(invalid="ignore"):
        is_rounded = (np.abs(values) > MAX_EXACT) & (to_float32(values) != values)
        count = int((is_rounded & (values == np.floor(values)) & np.isfinite(values)).sum())
    if count:
        log.rounded[column] += count


def _by_image_shape(rows: Rows) -> Iterator[Rows]:
    """Splits rows where the shape of images changes, and stacks the images of each part."""
    images = [
        name
        for name, column in rows.features.items()
        if isinstance(column, np.ndarray) and column.dtype == object
    ]
    looks = [np.array([str(image.shape) for image in rows.features[name]]) for name in images]
    indices = np.arange(len(rows))
    for start, end in runs(looks, len(rows)):
        part = rows.selected((indices >= start) & (indices < end))
        stacked = {name: np.stack(part.features[name].tolist()) for name in images}
        yield dataclasses.replace(part, features={**part.features, **stacked})


class _TextCheck:
    """Detects a text column that has only numbers, as CSV does not distinguish the types."""

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._num_numbers = 0
        self._last = ""
        self._has_text = False

    def count(self, cells: Cells) -> None:
        """Counts cells with numbers, until a cell has other text."""
        for cell in () if self._has_text else cells:
            text = cell if isinstance(cells, list) else cell.as_py()
            if not isinstance(text, str) or not text.strip():
                # Skip blank cells, which are evidence neither for text nor for numbers.
                continue
            self._has_text = number_in(text) is None
            if self._has_text:
                return
            self._num_numbers, self._last = self._num_numbers + 1, text
            if self._num_numbers == _ENOUGH_NUMBERS:
                self.end()

    def end(self) -> None:
        """Raises an `OptionError` if all counted cells were numbers."""
        if self._num_numbers and not self._has_text:
            result = f"only numbers, such as {self._last!r} (feature_columns is for numbers)"
            expected = f"texts in {self._options.text_column}"
            raise self._options.error("text_column", expected, Verbatim(result))
