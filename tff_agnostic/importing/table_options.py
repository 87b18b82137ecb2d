"""The columns named by an import's options, and the inputs that they form."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.base.registry import did_you_mean
from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS
from tff_agnostic.importing.cells import number_in
from tff_agnostic.importing.images import PIXELS
from tff_agnostic.importing.options import DELIMITERS, ImportOptions

_RESERVED = (DOMAIN, LABEL, TOKENS)
VECTOR = "x"
# Value of `client_column` that makes each row a client, if no column has this name.
ROW = "row"
# Character that replaces the colon in names of repeated columns until inputs are parsed.
_OCCURRENCE = "\0"


class _Absent(Verbatim):
    """A description of missing options, to which `columns_in_errors` adds the file's columns."""


@dataclasses.dataclass(frozen=True)
class Input:
    """A feature of the store, made of numeric columns or of an image column.

    Attributes:
        columns: Names of the columns, in the order of the vector's entries.
    """

    name: str
    columns: tuple[str, ...]


def vector_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Parses `feature_columns`: `COLUMN,...`, or `NAME:COLUMN,...;NAME:COLUMN,...`."""
    text = ",".join(options.feature_columns)
    if not text:
        return ()
    if ":" not in text and ";" not in text:
        columns = tuple(text.replace(_OCCURRENCE, ":").split(","))
        return (Input(options.feature_name or VECTOR, columns),)
    if options.feature_name is not None:
        raise options.error("feature_name", f"no value, as feature_columns={text} names the inputs")
    inputs = []
    for part in text.split(";"):
        name, _, columns_text = part.partition(":")
        columns = tuple(columns_text.replace(_OCCURRENCE, ":").split(","))
        if not name or not all(columns):
            expected = "COLUMN,... or NAME:COLUMN,...;NAME:COLUMN,..."
            raise options.error("feature_columns", expected, text)
        inputs.append(Input(name, columns))
    return tuple(inputs)


def image_inputs(options: ImportOptions) -> tuple[Input, ...]:
    """Returns an input for each of `image_columns`, named after the column.

    If an image is the only input of a store, its name is `feature_name`, or "pixels" by default.
    """
    columns = options.image_columns
    if len(columns) == 1 and not (options.feature_columns or options.categorical_columns):
        return (Input(options.feature_name or PIXELS, columns),)
    return tuple(Input(column, (column,)) for column in columns)


def feature_column_names(options: ImportOptions) -> list[str]:
    """Returns the columns of all inputs; a column that is used twice occurs twice."""
    inputs = (*vector_inputs(options), *image_inputs(options))
    return [column for input_ in inputs for column in input_.columns] + [
        *options.categorical_columns
    ]


def needed_columns(options: ImportOptions) -> list[str]:
    """Returns the names of all columns that the options name, each once."""
    names = [
        options.client_column,
        options.domain_column,
        options.group_column,
        options.label_column,
        options.text_column,
        options.split_column,
        *feature_column_names(options),
    ]
    return list(dict.fromkeys(name for name in names if name is not None))


def check(options: ImportOptions) -> None:
    """Raises an `OptionError` if required columns are not named, or options have no effect."""
    require_client_and_domain(options)
    has_features = bool(feature_column_names(options))
    if (options.text_column is None) == (not has_features):
        raise _not_one(options, "feature_columns", "text_column", has_features)
    _check_inputs(options)
    if has_features and options.label_column is None:
        raise _no_column(options, "label_column")
    if options.split_by == "group" and options.group_column is None:
        raise _no_column(options, "group_column", " with split_by=group")
    no_groups = f"no value with split_by={options.split_by}: it needs split_by=group"
    no_labels = "no value without label_column"
    no_numbers = "no value without feature_columns"
    no_values = "no value without feature_columns or categorical_columns"
    no_categories = "no value without categorical_columns"
    # Each entry: an option, whether it has an effect, and the value to expect if it has none.
    for name, has_effect, expected in (
        ("group_column", options.split_by == "group", no_groups),
        ("class_names", options.label_column is not None, no_labels),
        ("label_kind", options.label_column is not None, no_labels),
        (
            "missing_values",
            bool(options.feature_columns or options.categorical_columns),
            no_values,
        ),
        ("standardize", bool(options.feature_columns), no_numbers),
        ("max_categories", bool(options.categorical_columns), no_categories),
    ):
        if not has_effect and getattr(options, name) != getattr(ImportOptions, name):
            raise options.error(name, expected)


@contextlib.contextmanager
def columns_in_errors(
    options: ImportOptions,
    names_in: Callable[[Path], Sequence[str]],
    find_inputs: Callable[[Sequence[Path]], list[Path]],
) -> Iterator[None]:
    """Adds to the error for a missing option: the other missing options, the file's columns.

    Args:
        names_in: Called with a file; returns the names of its columns.
        find_inputs: Called with input paths; returns the files to read.
    """
    try:
        yield
    except OptionError as e:
        if not isinstance(e.value, _Absent) or not options.input:
            raise
        names = names_in(find_inputs([Path(name) for name in options.input])[0])
        if not names:
            raise
        has_text = options.text_column is not None or options.format == "npz"
        has_inputs = has_text or bool(feature_column_names(options))
        also = {
            "domain_column or domain_name": bool(options.domain_column or options.domain_name),
            "feature_columns, categorical_columns or text_column": has_inputs,
            "label_column (no text needs it)": has_text or options.label_column is not None,
        }
        missing = [text for text, is_given in also.items() if not is_given]
        columns = ", ".join(name or "''" for name in column_places(names))
        result = f"{e.value}, of the columns {columns}"
        result += _header_hint(options, names)
        others = [text for text in missing if not text.startswith(e.field)]
        if others:
            result += f"; other options that are needed: {'; '.join(others)}"
        raise options.error(e.field, e.expected, Verbatim(result)) from None


def _header_hint(options: ImportOptions, header: Sequence[str]) -> str:
    """Returns advice on a CSV header with a number, which may be a row of data."""
    if options.format != "csv" or all(number_in(name) is None for name in header):
        return ""
    return " (is that a row? the file needs a first line with the names of its columns)"


def require_client_and_domain(options: ImportOptions) -> None:
    """Raises an `OptionError` unless the options name the clients and the domains."""
    if options.client_column is None:
        expected = f"the name of a column, or {ROW}, which makes a client of each row"
        raise options.error("client_column", expected, _Absent("none"))
    if (options.domain_column is None) == (options.domain_name is None):
        raise _not_one(options, "domain_column", "domain_name", options.domain_name is not None)


def check_shape(options: ImportOptions) -> None:
    """Raises an `OptionError` if `feature_shape` has a size below 1."""
    if any(size < 1 for size in options.feature_shape):
        result = Verbatim(list(options.feature_shape))
        raise options.error("feature_shape", "positive sizes", result)


def _no_column(options: ImportOptions, name: str, more: str = "") -> OptionError:
    return options.error(name, f"the name of a column{more}", _Absent("none"))


def _not_one(options: ImportOptions, name: str, other: str, are_both: bool) -> OptionError:
    result = Verbatim("both") if are_both else _Absent("neither")
    return options.error(name, f"this or {other}", result)


def _check_inputs(options: ImportOptions) -> None:
    """Checks that every column is in one input, and that inputs have different names."""
    columns = feature_column_names(options)
    for column in columns:
        option = next(
            name
            for name in ("categorical_columns", "image_columns", "feature_columns")
            if column in getattr(options, name) or name == "feature_columns"
        )
        if columns.count(column) > 1:
            raise options.error(option, "a column once", Verbatim(f"{column} twice"))
        if column == options.label_column:
            raise options.error(option, "other columns than label_column", Verbatim(column))
    inputs = (*vector_inputs(options), *image_inputs(options))
    names = [*(input_.name for input_ in inputs), *options.categorical_columns]
    if not all(names) or len(set(names)) < len(names) or {*names} & {*_RESERVED}:
        expected = f"inputs with different names, other than {', '.join(_RESERVED)}"
        raise options.error("feature_columns", expected, Verbatim(", ".join(names)))
    check_shape(options)
    if options.feature_shape and len(vector_inputs(options)) != 1:
        result = Verbatim(len(vector_inputs(options)))
        raise options.error("feature_shape", "exactly one input in feature_columns", result)
    if options.feature_shape and options.missing_values == "mark":
        expected = "vectors with missing_values=mark, which adds an entry for each column"
        raise options.error("feature_shape", expected)
    if options.feature_name not in (None, *(input_.name for input_ in inputs)):
        expected = "no value, as it names the only input of numbers or images"
        result = Verbatim(", ".join(input_.name for input_ in inputs) or "none")
        raise options.error("feature_name", expected, result)


def check_columns(options: ImportOptions, header: Sequence[str], where: Any) -> None:
    """Raises a `UserError` if a table does not have each named column exactly once.

    Args:
        header: Names of the table's columns.
        where: Name of the table, for messages.
    """
    for name in needed_columns(options):
        if name == options.client_column == ROW:
            continue
        count = header.count(name)
        if count > 1:
            each = " or ".join(f"{name}:{k}" for k in range(1, count + 1))
            raise UserError(
                f"{where}: expected one column {name!r}, found it {count} times ({each} names one "
                f"of them){_header_hint(options, header)}"
            )
        if not count and name not in column_places(header):
            raise UserError(
                f"{where}: expected one column {name!r}, found {', '.join(header) or 'no columns'}"
                f"{_column_hint(name, header)}{_header_hint(options, header)}"
            )


def column_places(header: Sequence[str]) -> dict[str, int]:
    """Returns the index of each column; equal names become NAME:1, NAME:2 and so on."""
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        is_single = header.count(name) == 1
        places[name if is_single else f"{name}:{header[: place + 1].count(name)}"] = place
    return places


def resolve_occurrences(options: ImportOptions, header: Sequence[str]) -> ImportOptions:
    """Replaces the colon in names of repeated columns, such as NAME:1, by `_OCCURRENCE`.

    Otherwise the text before the colon would be the name of an input.
    """
    text = ",".join(options.feature_columns)
    for name in dict.fromkeys(name for name in header if header.count(name) > 1):
        for k in range(1, header.count(name) + 1):
            if str(k) not in header:
                text = re.sub(
                    rf"(^|[,;:]){re.escape(name)}:{k}(?=$|[,;])",
                    rf"\g<1>{name}{_OCCURRENCE}{k}",
                    text,
                )
    return dataclasses.replace(options, feature_columns=tuple(text.split(",")) if text else ())


def _column_hint(name: str, header: Sequence[str]) -> str:
    """Returns advice on a missing column: another delimiter, or a column with a similar name."""
    if len(header) == 1:
        for word, sign in DELIMITERS.items():
            if sign in header[0]:
                return f" (delimiter={word} separates them)"
    similar = "" if name in header else did_you_mean(name, header)
    return f" ({similar.strip()})" if similar else ""
