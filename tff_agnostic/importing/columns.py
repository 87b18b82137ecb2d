"""The columns of a table as inputs of a model, and its rows as examples."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import did_you_mean
from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS
from tff_agnostic.importing.cells import (
    VECTOR,
    CellError,
    Labels,
    MissingValues,
    check_shape,
    check_size,
    not_a_number,
    not_finite,
    number_in,
    to_float32,
)
from tff_agnostic.importing.images import PIXELS, image_in
from tff_agnostic.importing.options import DELIMITERS, SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import ReadLog, RecordError, Rows
from tff_agnostic.importing.text import Normalizer

# Cells that decide, if all are numbers, that a column is one of numbers.
_ENOUGH_NUMBERS = 100
_RESERVED = (DOMAIN, LABEL, TOKENS)
# Rule of a column of texts, if the options name none.
TOKENIZER = "words"
# The name of `client_column` that makes a client of each row, unless a column has this name.
ROW = "row"

# The cells of a column: of one type, or Python objects of any types.
Cells = Union[pa.Array, list[Any]]
# Row -> reason and detail of what is wrong with it.
Errors = dict[int, CellError]


@dataclasses.dataclass(frozen=True)
class Block:
    """Some rows of a table.

    Attributes:
        columns: The cells of each needed column.
        place: Called with the index of a row; returns its place in the source.
    """

    columns: Mapping[str, Cells]
    place: Callable[[int], str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def parts(self, names: Sequence[str]) -> Iterator[Block]:
        """Yields the block in parts whose rows have lists of the same lengths."""
        lengths = [_lengths(self.columns[name]) for name in dict.fromkeys(names)]
        for start, end in runs([length for length in lengths if length is not None], len(self)):
            if (start, end) == (0, len(self)):
                yield self
                return
            columns = {name: cells[start:end] for name, cells in self.columns.items()}
            yield Block(columns, lambda k, start=start: self.place(start + k))  # type: ignore[misc]


class Absent:
    """A cell of a row without the column.

    Attributes:
        names: The columns that the row has.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names


def runs(looks: Sequence[Sequence[Any]], count: int) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each run of rows that are alike in all respects."""
    is_first = np.zeros(count, bool)
    is_first[:1] = True
    for look in looks:
        is_first[1:] |= np.array([a != b for a, b in zip(look[1:], look)], bool)
    starts = np.flatnonzero(is_first).tolist()
    yield from zip(starts, [*starts[1:], count])


def _lengths(cells: Cells) -> Optional[list[int]]:
    """Returns the length of the list in each cell, -1 without one; None in a column without."""
    if isinstance(cells, list):
        lengths = [len(cell) if isinstance(cell, list) else -1 for cell in cells]
        return lengths if max(lengths, default=-1) >= 0 else None
    if not _is_list(cells):
        return None
    lengths = pc.list_value_length(cells).fill_null(-1).to_pylist()
    return lengths


def _is_list(cells: pa.Array) -> bool:
    kind = cells.type
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def converted(cells: Cells, convert: Callable[[Any], Any]) -> tuple[np.ndarray, Errors]:
    """Returns a function of each cell, and the cells where it raises a `CellError`.

    A value that comes again is converted once.
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
                found = ", ".join(value.names) or "none"
                raise CellError("missing column", f"expected a column {{}}, found {found}")
            results[k] = convert(value)
        except CellError as e:
            failed[k] = e
    if not failed:
        return results[codes], {}
    rows = np.flatnonzero(np.isin(codes, list(failed))).tolist()
    return results[codes], {row: failed[int(codes[row])] for row in rows}


def check(options: ImportOptions) -> None:
    """Raises an `OptionError` if the options do not name the columns."""
    require_client_and_domain(options)
    has_features = bool(feature_columns_of(options))
    if (options.text_column is None) == (not has_features):
        found = Verbatim("neither" if options.text_column is None else "both")
        raise options.error("feature_columns", "this or text_column", found)
    check_inputs(options)
    if has_features and options.label_column is None:
        raise _no_column(options, "label_column")
    if options.split_by == "group" and options.group_column is None:
        raise _no_column(options, "group_column", " with split_by=group")
    if options.split_by != "group" and options.group_column is not None:
        expected = f"no value with split_by={options.split_by}: it needs split_by=group"
        raise options.error("group_column", expected)
    if options.label_column is None:
        for name, is_given in (
            ("class_names", bool(options.class_names)),
            ("label_kind", not options.are_classes),
        ):
            if is_given:
                raise options.error(name, "no value without label_column")


def _no_column(options: ImportOptions, name: str, more: str = "") -> OptionError:
    return options.error(name, f"the name of a column{more}", Verbatim("none"))


def require_client_and_domain(options: ImportOptions) -> None:
    """Raises an `OptionError` unless the options name the clients and the domains."""
    if options.client_column is None:
        expected = f"the name of a column, or {ROW}, which makes a client of each row"
        raise options.error("client_column", expected, Verbatim("none"))
    if (options.domain_column is None) == (options.domain_name is None):
        found = Verbatim("neither" if options.domain_name is None else "both")
        raise options.error("domain_column", "this or domain_name", found)


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


def check_columns(options: ImportOptions, header: Sequence[str], where: Any) -> None:
    """Raises a `UserError` if a table lacks a column, or has several of its name.

    Args:
        options: Options of the import.
        header: Names of the table's columns.
        where: The table, for messages.
    """
    for name in needed_columns(options):
        if name == options.client_column == ROW:
            continue
        count = header.count(name)
        if count > 1:
            each = " or ".join(f"{name}:{k}" for k in range(1, count + 1))
            raise UserError(
                f"{where}: expected one column {name!r}, found it {count} times ({each} names one "
                "of them)"
            )
        column, _, number = name.rpartition(":")
        if not count and not (number.isdecimal() and 0 < int(number) <= header.count(column)):
            raise UserError(
                f"{where}: expected one column {name!r}, found {', '.join(header) or 'no columns'}"
                f"{_column_hint(name, header)}"
            )


def resolve_occurrences(options: ImportOptions, header: Sequence[str]) -> ImportOptions:
    """Returns options whose `feature_columns` may have NAME:1 and so on, of columns of one name.

    Otherwise a colon is behind the name of an input.
    """
    text = ",".join(options.feature_columns)
    for name in dict.fromkeys(name for name in header if header.count(name) > 1):
        for k in range(1, header.count(name) + 1):
            if str(k) not in header:
                text = re.sub(
                    rf"(^|[,;:]){re.escape(name)}:{k}(?=$|[,;])", rf"\g<1>{name}{_OF}{k}", text
                )
    return dataclasses.replace(options, feature_columns=tuple(text.split(",")) if text else ())


def _column_hint(name: str, header: Sequence[str]) -> str:
    """Returns how the header may have to be read, or which column may be meant."""
    if len(header) == 1:
        for word, sign in DELIMITERS.items():
            if sign in header[0]:
                return f" (delimiter={word} takes them apart)"
    meant = "" if name in header else did_you_mean(name, header)
    return f" ({meant.strip()})" if meant else ""


class Columns:
    """Makes rows of blocks of a table.

    Args:
        options: Options of the import; they have been checked.
        rows_are_clients: Whether each row is a client.
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
        """Yields the examples of a block; reports rows without an example to the log."""
        lists = [column for input_ in self._vectors for column in input_.columns]
        for part in block.parts(lists):
            features, errors, gaps = self._features(part, log)
            yield from self.with_features(part, features, errors, log, gaps)

    def with_features(
        self,
        block: Block,
        features: dict[str, Any],
        errors: Errors,
        log: ReadLog,
        gaps: Optional[Mapping[str, np.ndarray]] = None,
    ) -> Iterator[Rows]:
        """Yields the examples of rows whose features are made.

        Args:
            block: The rows.
            features: The features but the label, [n, *shape] each.
            errors: Rows with wrong features.
            log: Counts the rows.
            gaps: Whether a value is missing in each row, by column.
        """
        options, count = self._options, len(block)
        log.num_records += count
        wrong: Errors = {}
        if self._rows_are_clients:
            client, wrong = pa.array([block.place(k) for k in range(count)], pa.string()), {}
        else:
            client, wrong = self._names(block, str(options.client_column), log)
        errors = {**errors, **wrong}
        if options.label_column is not None:
            labels, more = _of_column(block, options.label_column, self._labels.number_of)
            errors = {**more, **errors}
            kind = np.int64 if options.are_classes else np.float64
            is_wrong = np.isin(np.arange(count), list(more))
            features[LABEL] = np.where(is_wrong, 0, labels).astype(kind)
        empty: set[int] = set()
        if TOKENS in features:
            is_empty = np.asarray(pc.equal(features[TOKENS], "").fill_null(False))
            empty = {*np.flatnonzero(is_empty).tolist()} - errors.keys()
        named: dict[str, pa.Array] = {}
        for role, column in (
            ("domain", options.domain_column),
            ("split", options.split_column),
            ("group", options.group_column),
        ):
            if column is not None:
                named[role], more = self._names(block, column, log, is_split=role == "split")
                errors = {**{k: e for k, e in more.items() if k not in empty}, **errors}
        for row in sorted(errors.keys() | empty):
            of_row = None if row in wrong else client[row].as_py()
            if row in errors:
                error = errors[row]
                log.bad(RecordError(block.place(row), error.reason, error.detail), of_row)
            else:
                log.skip("text without words", of_row)
        is_kept = ~np.isin(np.arange(count), [*errors, *empty])
        for column, is_missing in (gaps or {}).items():
            if is_missing[is_kept].any():
                log.missing[column] += int(is_missing[is_kept].sum())
        rows = Rows(
            client=client,
            domain=named.get("domain", pa.array([options.domain_name] * count, pa.string())),
            split=named.get("split", pa.nulls(count, pa.string())),
            features=features,
            place=block.place,
            group=named.get("group"),
        )
        if is_kept.any():
            yield from _of_one_shape(rows.selected(is_kept))

    def end(self) -> None:
        """Checks the columns after the last block."""
        self._texts.end()

    def _names(
        self, block: Block, column: str, log: ReadLog, is_split: bool = False
    ) -> tuple[pa.Array, Errors]:
        def name_of(value: Any) -> str:
            name = self._missing.name(value, column)
            if is_split and name not in SPLIT_NAMES:
                raise CellError(
                    "unknown split",
                    f"expected one of {', '.join(SPLIT_NAMES)} in {column}, found {name!r}",
                )
            if isinstance(value, str) and name != value:
                log.rename(column, value, name)
            return name

        names, errors = _of_column(block, column, name_of)
        return pa.array(names, pa.string()), errors

    def _features(
        self, block: Block, log: ReadLog
    ) -> tuple[dict[str, Any], Errors, dict[str, np.ndarray]]:
        options = self._options
        features: dict[str, Any] = {}
        errors: Errors = {}
        gaps: dict[str, np.ndarray] = {}
        if options.text_column is not None:
            tokens, errors = _of_column(block, options.text_column, self._tokens)
            self._texts.see(block.columns[options.text_column])
            return {TOKENS: pa.array(tokens, pa.string())}, errors, gaps
        for input_ in self._vectors:
            features[input_.name], more = self._vector(input_, block, gaps, log)
            errors = {**more, **errors}
        for column in options.categorical_columns:
            category = functools.partial(self._missing.category, column=column)
            values, more = _of_column(block, column, category)
            errors = {**more, **errors}
            features[column] = pa.array(values, pa.string())
            if not self._missing.are_refused:
                is_missing, _ = converted(block.columns[column], self._missing.is_missing)
                gaps[column] = is_missing.astype(bool)
        for input_ in self._images:
            image = functools.partial(
                image_in, column=input_.columns[0], max_pixels=options.max_pixels
            )
            cells = block.columns[input_.columns[0]]
            cells = cells if isinstance(cells, list) else cells.to_pylist()
            features[input_.name], more = _of_column(
                Block({input_.columns[0]: cells}, block.place), input_.columns[0], image
            )
            errors = {**more, **errors}
        return features, errors, gaps

    def _tokens(self, value: Any) -> str:
        if not isinstance(value, str):
            raise CellError(
                "text that is none",
                f"expected text in {self._options.text_column}, found {value!r}",
            )
        return self._normalizer.sentence(self._normalizer.tokenize(value))

    def _vector(
        self, input_: Input, block: Block, gaps: dict[str, np.ndarray], log: ReadLog
    ) -> tuple[np.ndarray, Errors]:
        """Returns float32 [n, *shape], NaN where a number is missing, and wrong rows."""
        parts: list[np.ndarray] = []
        marks: list[np.ndarray] = []
        columns: list[str] = []
        errors: Errors = {}
        for column in input_.columns:
            cells, size = block.columns[column], 1
            lengths = _lengths(cells)
            if lengths is not None and lengths[0] >= 0:
                # All rows of a block have lists of one length.
                size = lengths[0]
                cells = (
                    [entry for cell in cells for entry in cell]
                    if isinstance(cells, list)
                    else cells.flatten()
                )
            values, is_missing, wrong = self._numbers(cells, column)
            _report_rounded(values, column, log)
            values = values.reshape(len(block), size)
            gaps[column] = is_missing.reshape(len(block), size).any(axis=1)
            errors = {**{k // max(size, 1): e for k, e in wrong.items()}, **errors}
            parts.append(to_float32(values))
            marks.append(gaps[column][:, np.newaxis].astype(np.float32))
            columns += [column] * size
        if self._missing.are_marked:
            parts += marks
        matrix = np.concatenate(parts, axis=1)
        log.numbers[input_.name] = columns
        shape = self._options.feature_shape
        try:
            check_size(matrix.shape[1], shape)
        except CellError as e:
            return matrix, {**dict.fromkeys(range(len(block)), e), **errors}
        return matrix.reshape(len(block), *(shape or matrix.shape[1:])), errors

    def _numbers(self, cells: Cells, column: str) -> tuple[np.ndarray, np.ndarray, Errors]:
        """Returns float64 [n], NaN where there is none; where values are missing; wrong cells."""
        where = f"in {column}"
        values = self._cast(cells)
        errors: Errors = {}
        if values is None:
            numbers, errors = converted(cells, lambda value: self._number(value, where))
            values = np.array([math.nan if v is None else v for v in numbers], np.float64)
            errors = _with_column(errors, column)
        is_missing = np.isnan(values)
        is_missing[list(errors)] = False
        is_wrong = ~np.isfinite(to_float32(values)) & ~is_missing
        is_wrong[list(errors)] = False
        if self._missing.are_refused:
            is_wrong |= is_missing
        for k in np.flatnonzero(is_wrong).tolist():
            cell = cells[k] if isinstance(cells, list) else cells[k].as_py()
            hint = "set missing_values to accept missing ones"
            errors[k] = (
                not_a_number(cell, where, hint) if is_missing[k] else not_finite(cell, where)
            )
        return values, is_missing, errors

    def _cast(self, cells: Cells) -> Optional[np.ndarray]:
        """Returns the numbers of a column, NaN where one is missing; None if a cell is none."""
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
        is_rounded = (np.abs(values) > _MAX_EXACT) & (to_float32(values) != values)
        count = int((is_rounded & (values == np.floor(values)) & np.isfinite(values)).sum())
    if count:
        log.rounded[column] += count


# Larger whole numbers have gaps in float32.
_MAX_EXACT = 2**24


def _of_column(
    block: Block, column: str, convert: Callable[[Any], Any]
) -> tuple[np.ndarray, Errors]:
    values, errors = converted(block.columns[column], convert)
    return values, _with_column(errors, column)


def _with_column(errors: Errors, column: str) -> Errors:
    """Returns errors that name the column of an absent cell."""
    return {
        row: CellError(e.reason, e.detail.replace("{}", repr(column)))
        if e.reason == "missing column"
        else e
        for row, e in errors.items()
    }


def _of_one_shape(rows: Rows) -> Iterator[Rows]:
    """Yields rows in parts whose images have one shape, as arrays."""
    images = {
        name: column
        for name, column in rows.features.items()
        if isinstance(column, np.ndarray) and column.dtype == object
    }
    if not images:
        yield rows
        return
    looks = [[image.shape for image in column] for column in images.values()]
    indices = np.arange(len(rows))
    for start, end in runs(looks, len(rows)):
        part = rows.selected((indices >= start) & (indices < end))
        stacked = {name: np.stack(part.features[name].tolist()) for name in images}
        yield dataclasses.replace(part, features={**part.features, **stacked})


class _TextCheck:
    """Detects columns of numbers among columns of texts, which CSV does not distinguish."""

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._num_numbers = 0
        self._last = ""
        self._has_text = False

    def see(self, cells: Cells) -> None:
        """Counts texts that may be numbers, up to the first text that is none."""
        for cell in () if self._has_text else cells:
            text = cell if isinstance(cells, list) else cell.as_py()
            if not isinstance(text, str) or not text.strip():
                # Such a cell decides nothing.
                continue
            self._has_text = number_in(text) is None
            if self._has_text:
                return
            self._num_numbers, self._last = self._num_numbers + 1, text
            if self._num_numbers == _ENOUGH_NUMBERS:
                self.end()

    def end(self) -> None:
        """Raises a `UserError` if there were numbers and no text."""
        if self._num_numbers and not self._has_text:
            found = f"only numbers, such as {self._last!r} (feature_columns is for numbers)"
            expected = f"texts in {self._options.text_column}"
            raise self._options.error("text_column", expected, Verbatim(found))


@dataclasses.dataclass(frozen=True)
class Input:
    """A feature of the store that is made of columns of numbers.

    Attributes:
        name: Name of the feature.
        columns: The columns, in the order of the vector's entries.
    """

    name: str
    columns: tuple[str, ...]


# Between the name of a column and its number among columns of one name, until inputs are parsed.
_OF = "\0"


def vector_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Parses `feature_columns`: `COLUMN,...`, or `NAME:COLUMN,...;NAME:COLUMN,...`."""
    columns = tuple(column.replace(_OF, ":") for column in options.feature_columns)
    if not columns:
        return ()
    text = ",".join(options.feature_columns)
    if ":" not in text and ";" not in text:
        return (Input(options.feature_name or VECTOR, columns),)
    if options.feature_name is not None:
        raise options.error("feature_name", f"no value, as feature_columns={text} names the inputs")
    inputs = []
    for part in text.split(";"):
        name, _, of_input = part.partition(":")
        if not name or not all(of_input.split(",")):
            expected = "COLUMN,... or NAME:COLUMN,...;NAME:COLUMN,..."
            raise options.error("feature_columns", expected, text)
        inputs.append(Input(name, tuple(of_input.replace(_OF, ":").split(","))))
    return tuple(inputs)


def image_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Returns an input for each of `image_columns`, called as the column.

    The only input of a store is called `feature_name`, or pixels.
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
    """Checks that every column is in one input, and that inputs have different names."""
    columns = feature_columns_of(options)
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise options.error(_option_of(options, twice), "a column once", Verbatim(f"{twice} twice"))
    if options.label_column in columns:
        name = _option_of(options, str(options.label_column))
        raise options.error(name, "other columns than label_column", Verbatim(options.label_column))
    names = [*(input_.name for input_ in _inputs(options)), *options.categorical_columns]
    for name in names:
        if not name or name in _RESERVED or names.count(name) > 1:
            expected = f"inputs with different names, other than {', '.join(_RESERVED)}"
            raise options.error("feature_columns", expected, Verbatim(", ".join(names)))
    _check_shapes(options)
    _check_effects(options)


def _inputs(options: ImportOptions) -> tuple[Input, ...]:
    return (*vector_inputs(options), *image_inputs(options))


def _check_shapes(options: ImportOptions) -> None:
    check_shape(options)
    if not options.feature_shape:
        return
    if len(vector_inputs(options)) != 1:
        found = Verbatim(len(vector_inputs(options)))
        raise options.error("feature_shape", "exactly one input in feature_columns", found)
    if options.missing_values == "mark":
        expected = "vectors with missing_values=mark, which adds an entry for each column"
        raise options.error("feature_shape", expected)


def _check_effects(options: ImportOptions) -> None:
    names = [input_.name for input_ in _inputs(options)]
    if options.feature_name is not None and options.feature_name not in names:
        expected = "no value, as it names the only input of numbers or images"
        raise options.error("feature_name", expected, Verbatim(", ".join(names) or "none"))
    can_be_missing = options.feature_columns or options.categorical_columns
    if options.missing_values != ImportOptions.missing_values and not can_be_missing:
        expected = "no value without feature_columns or categorical_columns"
        raise options.error("missing_values", expected)
    if options.standardize and not options.feature_columns:
        raise options.error("standardize", "no value without feature_columns")
    if options.max_categories != ImportOptions.max_categories and not options.categorical_columns:
        raise options.error("max_categories", "no value without categorical_columns")


def _option_of(options: ImportOptions, column: str) -> str:
    if column in options.categorical_columns:
        return "categorical_columns"
    return "image_columns" if column in options.image_columns else "feature_columns"
