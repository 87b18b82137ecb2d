"""Texts become rows of a store, in blocks that any process can make."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_examples import ExampleSerializer
from tff_agnostic.data.store_format import DOMAIN, TOKENS, TRAIN
from tff_agnostic.data.store_writer import Rows
from tff_agnostic.importing.domain_names import DomainNames
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import (
    LeftOut,
    ReadLog,
    RecordError,
    SourceExample,
    SourceText,
    Texts,
)
from tff_agnostic.importing.splits import Splits, parse_shares

# Of a block: work for a tenth of a second or more.
_CHARACTERS = 1 << 20
_TEXTS = 2000


@dataclasses.dataclass
class TextRows:
    """What a block of texts becomes.

    Attributes:
        rows: Its rows, and their counts.
        words: How often each word is in the sentences to train on.
        left_out: What was left out.
        domains: Names of domains, in the order in which they come first.
    """

    rows: Rows
    words: Counter[str]
    left_out: LeftOut
    domains: Sequence[str]


class TextsToRows:
    """Makes rows of blocks of texts.

    Args:
        given: Names of the options that the user gave.
    """

    def __init__(self, texts: Texts, options: ImportOptions, given: Container[str]) -> None:
        self._to_sentences = texts.to_sentences(options)
        self._empty = texts.empty
        self._options = options
        self._splits = Splits(parse_shares(options.split), options.split_by, options.seed, given)
        self._domains = DomainNames(options.domain_names)
        self._serialize = ExampleSerializer()

    def __call__(self, texts: Sequence[SourceText]) -> TextRows:
        """Returns what a block becomes.

        Raises:
            UserError: If a text cannot be, and bad records end the import.
        """
        log = ReadLog(self._options.bad_records == "skip")
        rows = Rows()
        domains: dict[str, None] = {}
        train: list[str] = []
        for text in texts:
            sentences = self._to_sentences(text.text)
            if not sentences:
                log.skip(self._empty, text.record.client)
                continue
            try:
                record = self._domains.named(_example(text, 0))
            except RecordError as e:
                # The place of a skipped record is not kept.
                for _ in sentences:
                    log.bad(e, text.record.client)
                continue
            log.keep(record.client)
            domains[record.domain] = None
            rows.features = rows.features or {TOKENS: "", **record.features, DOMAIN: record.domain}
            for split, unit, part in self._parts(text, sentences):
                features = {**record.features, DOMAIN: record.domain}
                protos = list(self._serialize.with_texts(features, TOKENS, part))
                rows.add(split, record, unit, protos, [s.count(" ") + 1 for s in part])
                if split == TRAIN:
                    train += part
        words = Counter(" ".join(train).split(" ") if train else ())
        return TextRows(rows, words, log.left_out(), list(domains))

    def _parts(
        self, text: SourceText, sentences: Sequence[str]
    ) -> Iterator[tuple[str, int | None, Sequence[str]]]:
        """Yields the split and the unit of sentences, and these."""
        if self._options.split_by != "example":
            split, unit = self._splits.split_of(_example(text, 0))
            yield split, unit, sentences
            return
        for k, sentence in enumerate(sentences):
            split, unit = self._splits.split_of(_example(text, k))
            yield split, unit if self._options.stratify else None, [sentence]


def _example(text: SourceText, k: int) -> SourceExample:
    return SourceExample(text.record, f"{text.place}#{k}", text.group)


def blocks_of(texts: Iterable[SourceText]) -> Iterator[list[SourceText]]:
    """Yields texts in blocks; an error comes after the block of the texts before it."""
    block: list[SourceText] = []
    size = 0
    try:
        for text in texts:
            block.append(text)
            size += len(text.text)
            if size >= _CHARACTERS or len(block) >= _TEXTS:
                yield block
                block, size = [], 0
    except UserError:
        if block:
            yield block
        raise
    if block:
        yield block
