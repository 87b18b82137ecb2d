"""An import, from the names of domains to the report. Nothing here loads TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import (
    check_can_be_made,
    folder_to_write_in,
    make_folder,
    scratch_folder,
    write_errors,
    write_json,
)
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.store_format import FEATURES, TEXT, TOKENS, Record, StoredColumns
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.importing import idx, leaf, npz, stackexchange, tables, text_folders
from tff_agnostic.importing.cells import CategoryCounts, MissingValues
from tff_agnostic.importing.columns import TOKENIZER, image_inputs
from tff_agnostic.importing.domain_names import DomainNames
from tff_agnostic.importing.options import MB, TABLES, ImportOptions, check_used
from tff_agnostic.importing.report import ImportReport, summarise
from tff_agnostic.importing.source import Format, ReadLog, RecordError, Texts, input_paths
from tff_agnostic.importing.splits import TRAIN, Splits, moves, parse_shares, strata_of
from tff_agnostic.importing.text import Normalizer, VocabularySummary, WordCounts
from tff_agnostic.importing.text_rows import TextsToRows, blocks_of
from tff_agnostic.importing.workers import in_order, usable_processes

# Bytes of an input that more processes read sooner, with what their start takes.
_LARGE = 16 * MB
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
        "parquet": tables.PARQUET,
        "npz": npz.FORMAT,
        "idx": idx.FORMAT,
    },
)


@dataclasses.dataclass(frozen=True)
class Import:
    """An import that has been checked, as far as that is possible without reading.

    Attributes:
        options: Options of the import.
        given: Names of the options that the user gave.
        format: The format to read.
        paths: The input.
        output: The store to write.
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
        """Reads everything, and writes the store and, if the options name a file, its report."""
        words = WordCounts()
        categories = CategoryCounts(self.options.categorical_columns)
        kind = None
        with folder_to_write_in(self.output.parent), StoreWriter(self.output) as writer:
            texts = self.format.texts
            if texts is not None:
                self._add_texts(texts, writer, words, log)
                kind = TEXT
            for split, unit, record, place in () if texts else self._records(log):
                if kind is None:
                    kind = self._kind(record)
                if kind == TEXT and split == TRAIN:
                    words.add(str(record.features[TOKENS]).split(" "))
                categories.add(split, record)
                try:
                    writer.add(split, record, unit)
                except UserError:
                    raise
                except ValueError as e:
                    raise UserError(f"{place}: {e}") from e

            def count_moved(old: str, new: str, record: Record) -> None:
                if kind == TEXT and TRAIN in (old, new):
                    count = words.add if new == TRAIN else words.remove
                    count(str(record.features[TOKENS]).split(" "))
                categories.move(old, new, record)

            strata = strata_of(writer.units())
            if self.options.stratify:
                shares = parse_shares(self.options.split)
                writer.reassign(moves(strata, shares, self.options.min_per_split), count_moved)
            self._check_result(writer, log)
            log.say("sorting by client")
            vocabulary = words.vocabulary(self.options.vocabulary_size) if kind == TEXT else None
            known_categories = categories.known(self.options.max_categories)
            store = writer.finish(
                kind or FEATURES,
                vocabulary=vocabulary,
                class_names=self._class_names(),
                source=f"{self.options.format}: {shlex.join(path.name for path in self.paths)}",
                categories=known_categories,
                columns=stored_columns(self.options, log.numbers) if self._is_table() else None,
                standardize=self.options.standardize,
            )
            report = summarise(
                store,
                self.output,
                self.options,
                log,
                None if vocabulary is None else VocabularySummary.of(vocabulary, words),
                categories.summaries(known_categories),
                strata,
            )
            # Written before the store gets its name: no kill leaves a store without its report.
            if self.options.report is not None:
                _write_report(report, Path(self.options.report))
        return report

    def _add_texts(
        self, texts: Texts, writer: StoreWriter, words: WordCounts, log: ReadLog
    ) -> None:
        """Adds sentences, which several processes may make."""
        make = functools.partial(TextsToRows, texts, self.options, frozenset(self.given))
        blocks = blocks_of(texts.read(self.options, self.paths, log))
        names = DomainNames(self.options.domain_names)
        with contextlib.closing(in_order(make, blocks, self._processes())) as made:
            for block in made:
                for name in block.domains:
                    names.see(name)
                log.merge(block.left_out)
                writer.add_rows(block.rows)
                if not words.merge(block.words):
                    for sentence in block.rows.texts(TRAIN):
                        words.add(sentence.split(" "))

    def _processes(self) -> int:
        if self.options.processes is not None:
            return self.options.processes
        return usable_processes() if self.num_bytes() >= _LARGE else 1

    def _records(self, log: ReadLog) -> Iterator[tuple[str, Optional[int], Record, str]]:
        options = self.options
        splits = Splits(parse_shares(options.split), options.split_by, options.seed, self.given)
        domains = DomainNames(options.domain_names)
        # There are as many units as examples, and nothing is done with them.
        is_counted = options.stratify or options.split_by != "example"
        for example in self.format.read(options, self.paths, log):
            if options.max_records is not None and log.num_records > options.max_records:
                log.num_records = options.max_records
                break
            try:
                record = domains.named(example)
            except RecordError as e:
                log.bad(e, example.record.client)
                continue
            log.keep(record.client)
            split, unit = splits.split_of(example)
            yield split, unit if is_counted else None, record, example.place

    def _kind(self, record: Record) -> str:
        if TOKENS in record.features:
            return TEXT
        for name in _TEXT_ONLY:
            if name in self.given:
                raise UserError(f"--{name} has no effect: the source holds numbers, no text")
        return FEATURES

    def _check_result(self, writer: StoreWriter, log: ReadLog) -> None:
        source = ", ".join(map(str, self.paths))
        if not writer.counts:
            raise UserError(f"{source}: expected examples, found none{_left_out(log)}")
        if not any(split == TRAIN for split, _ in writer.counts):
            raise UserError(
                f"{source}: expected clients to train on, found none, and "
                f"{counted(sum(writer.counts.values()), 'example')} in other splits"
            )

    def _is_table(self) -> bool:
        return self.options.format in TABLES

    def _class_names(self) -> Optional[list[str]]:
        return list(self.options.class_names or map(str, self.options.classes)) or None


def checked_import(options: ImportOptions, given: Collection[str]) -> Import:
    """Returns the import that the options describe."""
    if not options.format:
        raise UserError(f"--format: expected one of {', '.join(FORMATS)}, found none")
    format_ = FORMATS[options.format]
    check_used(options, [f.name for f in dataclasses.fields(options) if f.name in given])
    paths = input_paths(options.input)
    if not options.output:
        raise UserError("--output: expected the store to write, found none")
    output = Path(options.output)
    check_can_be_made(output.parent, "output")
    if output.exists():
        raise UserError(f"--output: {output} is there already: stores are not overwritten")
    if options.report is not None:
        report = Path(options.report)
        check_can_be_made(report.parent, "report")
        if report.resolve() in {path.resolve() for path in (output, *format_.find_inputs(paths))}:
            raise UserError(
                f"--report: expected a file of its own, found {report}, which is read or written"
            )
    if options.split_by == "group" and not format_.has_groups:
        raise UserError(f"--split_by=group: {options.format} has no groups")
    parse_shares(options.split)
    format_.check(options)
    return Import(options, given, format_, paths, output)


def _write_report(report: ImportReport, path: Path) -> None:
    make_folder(path.parent)
    # Next to the path: the next import removes what a kill leaves there.
    with write_errors(path), scratch_folder(path) as folder:
        write_json(folder / path.name, report.to_json())
        os.replace(folder / path.name, path)


def _left_out(log: ReadLog) -> str:
    if not log.skipped:
        return ""
    reasons = ", ".join(f"{reason}: {count}" for reason, count in log.skipped.most_common())
    return f" ({counted(log.num_records, 'record')} left out: {reasons})"


def stored_columns(options: ImportOptions, numbers: Mapping[str, Sequence[str]]) -> StoredColumns:
    """Returns what a store says of the columns that it is made of.

    Args:
        options: Of the import of a table.
        numbers: The column of each number of an input, by input.
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
