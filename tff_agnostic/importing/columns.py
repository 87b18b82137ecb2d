"""Rows of named values, as tables and JSON Lines have them, to examples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.data.records import Record, Value
from tff_agnostic.data.store_format import LABEL, TOKENS
from tff_agnostic.errors import UserError
from tff_agnostic.importing.labels import Labels
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.reading import ReadLog, RecordError, SourceExample
from tff_agnostic.importing.vectors import VECTOR, check_shape, vector_of
from tff_agnostic.importing.words import Normalizer

# Where a row stands, and its values by column.
Rows = Iterable[tuple[str, Mapping[str, Any]]]


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if the options do not say what the columns are."""
    require_client_and_domain(options)
    check_shape(options.feature_shape)
    if (options.text_column is None) == (not options.feature_columns):
        raise UserError(
            "--feature_columns: expected this or --text_column, found "
            f"{'neither' if options.text_column is None else 'both'}"
        )
    if options.feature_columns and options.label_column is None:
        raise UserError("--label_column: expected the name of a column, found none")
    if (options.split_by == "group") != (options.group_column is not None):
        raise UserError(
            "--group_column: expected it with --split_by=group, and only then, found "
            f"--split_by={options.split_by}"
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
        *options.feature_columns,
    ]
    return list(dict.fromkeys(name for name in names if name is not None))


def check_columns(options: ImportOptions, found: Sequence[str], path: Path) -> None:
    """Raises a `UserError` if a table lacks a column, or has two of one name."""
    for name in needed_columns(options):
        if found.count(name) != 1:
            raise UserError(
                f"{path}: expected one column {name!r}, found {', '.join(found) or 'no columns'}"
            )


class RowConverter:
    """Makes examples of rows.

    Args:
        options: Of the import; they have been checked.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._labels = Labels(options)
        self._normalizer = Normalizer(options, default_tokenizer="words")

    def examples(self, rows: Rows, log: ReadLog) -> Iterator[SourceExample]:
        """Yields an example for each row, in order; tells the log of those that give none."""
        for place, row in rows:
            log.num_records += 1
            client = None
            try:
                client = _text(row, self._options.client_column, place)
                features = self._features(row, place)
                if features.get(TOKENS) == "":
                    log.skip("text without words", client)
                    continue
                group = self._options.group_column
                yield SourceExample(
                    Record(client, self._domain(row, place), features),
                    place,
                    None if group is None else _text(row, group, place),
                )
            except RecordError as e:
                log.bad(e, client)

    def _domain(self, row: Mapping[str, Any], place: str) -> str:
        if self._options.domain_name is not None:
            return self._options.domain_name
        return _text(row, self._options.domain_column, place)

    def _features(self, row: Mapping[str, Any], place: str) -> dict[str, Value]:
        options = self._options
        features: dict[str, Value] = {}
        if options.text_column is not None:
            text = _value(row, options.text_column, place)
            if not isinstance(text, str):
                raise RecordError(
                    place,
                    "text that is none",
                    f"expected text in {options.text_column}, found {text!r}",
                )
            features[TOKENS] = self._normalizer.sentence(self._normalizer.tokenize(text))
        else:
            values: list[Any] = []
            for name in options.feature_columns:
                value = _value(row, name, place)
                values += value if isinstance(value, list) else [value]
            name = options.feature_name or VECTOR
            features[name] = vector_of(values, options.feature_shape, place)
        if options.label_column is not None:
            label = _value(row, options.label_column, place)
            features[LABEL] = self._labels.number_of(label, place)
        return features


def _value(row: Mapping[str, Any], name: str, place: str) -> Any:
    if name not in row:
        raise RecordError(
            place, "missing column", f"expected a column {name!r}, found {', '.join(row) or 'none'}"
        )
    return row[name]


def _text(row: Mapping[str, Any], name: "str | None", place: str) -> str:
    assert name is not None
    value = _value(row, name, place)
    if value is None or value == "" or isinstance(value, (dict, list)):
        raise RecordError(
            place, f"empty {name}", f"expected a name or number in {name}, found {value!r}"
        )
    return str(value)
