"""Imports a source into a client store, with a report; does not load TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import (
    check_can_be_made,
    folder_to_write_in,
    make_folder,
    scratch_folder,
    write_errors,
    write_json,
)
from tff_agnostic.base.options import Verbatim
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.data.store_format import DOMAIN, FEATURES, TEXT, TOKENS, StoredColumns
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.importing import (
    arrow_tables,
    idx,
    leaf,
    npz,
    stackexchange,
    tables,
    text_folders,
)
from tff_agnostic.importing.cells import MissingValues
from tff_agnostic.importing.columns import TOKENIZER
from tff_agnostic.importing.domain_names import DomainNames
from tff_agnostic.importing.files import input_paths
from tff_agnostic.importing.options import TABLES, ImportOptions, check_used
from tff_agnostic.importing.report import ImportReport, summarise
from tff_agnostic.importing.source import Format, ReadLog, Rows
from tff_agnostic.importing.splits import TRAIN, Splits, moves, parse_shares, unit_strata
from tff_agnostic.importing.table_options import image_inputs
from tff_agnostic.importing.text import Normalizer
from tff_agnostic.importing.vocabulary import CategoryCounts, VocabularySummary, count_words

_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")
# Example code that imports image files. Names of options are in quotes, so that messages do not
# rewrite them as flags.
_IMPORT_IMAGES = (
    "tff_agnostic.importing.frames.import_table({'image': [file.read_bytes() for file in files], "
    "'folder': [file.parent.name for file in files]}, 'images.store', **{'image_columns': 'image', "
    "'client_column': 'row', 'domain_column': 'folder', 'label_column': 'folder', 'class_names': "
    "sorted({file.parent.name for file in files})})"
)
# Formats by suffixes of files; no suffix implies `text_folders` or `plays`.
_FORMAT_BY_NAME: Mapping[tuple[str, ...], str] = {
    ("posts.xml", "posts.xml.gz"): "stackexchange",
    tables.CSV_SUFFIXES: "csv",
    (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"): "jsonl",
    (".parquet", ".pq"): "parquet",
    (".npz",): "npz",
    ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz"): "idx",
}
_TEXT_ONLY = ("vocabulary_size", "tokenizer", "case", "punctuation")
FORMATS: Registry[Format] = Registry(
    "format",
    {
        "stackexchange": stackexchange.FORMAT,
        "text_folders": text_folders.FORMAT,
        "plays": text_folders.PLAYS,
        "leaf": leaf.FORMAT,
        "csv": tables.CSV,
        "jsonl": tables.JSONL,
        "parquet": arrow_tables.PARQUET,
        "npz": npz.FORMAT,
        "idx": idx.FORMAT,
    },
)


@dataclasses.dataclass(frozen=True)
class Import:
    """An import, checked as far as possible without reading the input.

    Attributes:
        given: Names of the options that the user gave.
        paths: Files and folders to read.
        output: Path of the store to write.
    """

    options: ImportOptions
    given: Collection[str]
    format: Format
    paths: list[Path]
    output: Path

    def num_bytes(self) -> int:
        """Returns the size of all files that will be read."""
        return sum(path.stat().st_size for path in self.format.find_inputs(self.paths))

    def run(self, log: ReadLog) -> ImportReport:
        """Reads the input; writes the store and, if the option `report` is set, the report."""
        options = self.options
        domains = DomainNames(options.domain_names)
        shares = parse_shares(options.split)
        splits = Splits(shares, options.split_by, options.seed, self.given)
        with folder_to_write_in(self.output.parent), StoreWriter(self.output) as writer:
            for rows in self.format.read(options, self.paths, log):
                rows = domains.named(rows, log)
                if len(rows):
                    self._check_kind(rows)
                    _add(writer, rows, splits)
            strata, moved = unit_strata(writer.units()), {}
            if not options.stratify:
                strata = {name: s for name, s in strata.items() if options.split_by != "example"}
            else:
                moved = moves(strata, shares, options.min_per_split)
            log.say("sorting by client")
            if not writer.features:
                raise UserError(f"{self._place()}: expected examples, found none{_left_out(log)}")
            examples = writer.sort(moved)
            if TRAIN not in examples.rows:
                raise UserError(
                    f"{self._place()}: expected clients to train on, found none, and "
                    f"{counted(len(examples.table), 'example')} in other splits"
                )
            words = count_words(examples) if TOKENS in writer.features else None
            vocabulary = None if words is None else words.vocabulary(options.vocabulary_size)
            categories = {c: CategoryCounts(examples, c) for c in options.categorical_columns}
            known_values = {
                c: one.frequent(options.max_categories) for c, one in categories.items()
            }
            store = writer.finish(
                FEATURES if words is None else TEXT,
                vocabulary=vocabulary,
                class_names=list(options.class_names or map(str, options.classes)) or None,
                source=self._source(),
                categories=known_values,
                columns=stored_columns(options, log.numbers) if options.format in TABLES else None,
                standardize=options.standardize,
            )
            # Free the client index of `examples`, as `ArrowStore` builds another client index.
            del examples
            report = summarise(
                ArrowStore(store),
                self.output,
                options,
                log,
                None
                if words is None or vocabulary is None
                else VocabularySummary.from_counts(vocabulary, words),
                {column: one.summary(known_values[column]) for column, one in categories.items()},
                strata,
            )
            writer.add_notes(report.notes())
            # Write the report before the store gets its name, so that no store lacks its report.
            if options.report is not None:
                _write_report(report, options.report)
        return report

    def _check_kind(self, rows: Rows) -> None:
        """Rejects text options if the source has numbers."""
        for name in _TEXT_ONLY:
            if name in self.given and TOKENS not in rows.features:
                expected = "no value, as the source holds numbers, no text"
                raise self.options.error(name, expected)

    def _place(self) -> str:
        return ", ".join(map(str, self.paths)) or "the table"

    def _source(self) -> str:
        if not self.paths:
            return "a data frame"
        return f"{self.options.format}: {shlex.join(path.name for path in self.paths)}"


def _add(writer: StoreWriter, rows: Rows, splits: Splits) -> None:
    split, unit = splits.assign(rows)
    try:
        writer.add(split, rows.client, {**rows.features, DOMAIN: rows.domain}, unit)
    except UserError:
        raise
    except ValueError as e:
        raise UserError(f"{rows.place(0)}: {e}") from e


def checked_import(options: ImportOptions, given: Collection[str]) -> Import:
    """Checks the options, and returns the import that they describe."""
    if options.format:
        format_ = FORMATS[options.format]
        paths = input_paths(options)
    else:
        paths = input_paths(options)
        options = dataclasses.replace(options, format=_guessed_format(options, paths))
        format_ = FORMATS[options.format]
    check_used(options, [f.name for f in dataclasses.fields(options) if f.name in given])
    output = checked_output(options)
    if options.report is not None:
        check_can_be_made(options.report.parent, "report")
        if options.report.resolve() in {p.resolve() for p in (output, *format_.find_inputs(paths))}:
            result = Verbatim(f"{options.report}, which is read or written")
            raise options.error("report", "a separate file", result)
    if options.split_by == "group" and not format_.has_groups:
        raise options.error("split_by", f"client or example, as {options.format} has no groups")
    parse_shares(options.split)
    format_.check(options)
    return Import(options, given, format_, paths, output)


def checked_output(options: ImportOptions) -> Path:
    """Returns the store's path, after checking that nothing exists there."""
    if not options.output:
        raise options.error("output", "the store to write", Verbatim("none"))
    output = Path(options.output)
    check_can_be_made(output.parent, "output")
    if output.exists():
        expected = "a new folder, as stores are not overwritten"
        raise options.error("output", expected, Verbatim(f"something at {output}"))
    return output


def _guessed_format(options: ImportOptions, paths: Sequence[Path]) -> str:
    """Returns the format that the name of the first file suggests."""
    path = paths[0]
    if path.is_dir():
        path = next((file for file in sorted(path.rglob("*")) if file.is_file()), path)
    name = path.name.lower()
    if name.endswith(_SPREADSHEETS):
        expected = "a text file such as CSV (save the sheet as CSV)"
        raise options.error("input", expected, Verbatim(f"the spreadsheet {path}"))
    if name.endswith(_IMAGES):
        expected = "a table, texts or arrays"
        result = f"the image {path}: images are a column of Parquet (image_columns), or of a table "
        raise options.error("input", expected, Verbatim(f"{result}in Python: {_IMPORT_IMAGES}"))
    for ends, format_ in _FORMAT_BY_NAME.items():
        if name.endswith(ends):
            return format_
    expected = f"one of {', '.join(FORMATS)}, as the name of {path} shows none"
    raise options.error("format", expected, Verbatim("none"))


def _write_report(report: ImportReport, path: Path) -> None:
    make_folder(path.parent)
    # Use a scratch folder next to the report: the next import removes folders of killed imports.
    with write_errors(path), scratch_folder(path) as folder:
        write_json(folder / path.name, report.to_json())
        os.replace(folder / path.name, path)


def _left_out(log: ReadLog) -> str:
    if not log.skipped:
        return ""
    reasons = ", ".join(f"{reason}: {count}" for reason, count in log.skipped.most_common())
    return f" ({counted(log.num_records, 'record')} left out: {reasons})"


def stored_columns(options: ImportOptions, numbers: Mapping[str, Sequence[str]]) -> StoredColumns:
    """Returns the description of the table columns from which a store was made.

    Args:
        options: Options of the import of a table.
        numbers: For each input, the column of each of its numbers.
    """
    named = {
        "client": options.client_column,
        "domain": options.domain_column,
        "label": options.label_column,
        "text": options.text_column,
    }
    missing = MissingValues(options)
    return StoredColumns(
        roles={role: column for role, column in named.items() if column is not None},
        numbers={name: tuple(columns) for name, columns in numbers.items()},
        images={input_.name: input_.columns[0] for input_ in image_inputs(options)},
        missing_cells=None if missing.are_refused else ("", *options.missing_marks),
        are_marked=missing.are_marked,
        words={} if options.text_column is None else Normalizer(options, TOKENIZER).rule,
    )
