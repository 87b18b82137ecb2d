"""Rows of named values, as tables and JSON Lines have them, to examples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.data.records import Record, Value
from tff_agnostic.data.store_format import LABEL, TOKENS
from tff_agnostic.errors import UserError
from tff_agnostic.importing.columns.features import FeatureConverter, cell
from tff_agnostic.importing.columns.inputs import check_inputs, feature_columns_of
from tff_agnostic.importing.columns.labels import Labels
from tff_agnostic.importing.columns.words import Normalizer
from tff_agnostic.importing.records.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, RecordError, SourceExample

# So many cells, all of them numbers, are a column of numbers.
_ENOUGH_NUMBERS = 100

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
            )


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
        self._normalizer = Normalizer(options, default_tokenizer="words")

    def examples(self, rows: Rows, log: ReadLog) -> Iterator[SourceExample]:
        """Yields an example for each row, in order; tells the log of those that give none."""
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
    """Finds out that a column of texts is one of numbers, which CSV does not tell apart."""

    def __init__(self, column: Optional[str]) -> None:
        self._column = column
        self._num_numbers = 0
        self._last = ""
        self._found_text = False

    def see(self, text: str) -> None:
        if self._found_text:
            return
        try:
            float(text)
        except ValueError:
            # An empty cell says nothing.
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


def _text(row: Mapping[str, Any], name: "str | None", place: str) -> str:
    assert name is not None
    value = cell(row, name, place)
    if value is None or value == "" or isinstance(value, (dict, list)):
        raise RecordError(
            place, f"empty {name}", f"expected a name or number in {name}, found {value!r}"
        )
    return str(value)
