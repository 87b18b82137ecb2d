"""Texts become sentences, in blocks that several processes can make."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import TOKENS
from tff_agnostic.importing.options import MB, ImportOptions
from tff_agnostic.importing.source import Read, ReadLog, Rows, SourceText
from tff_agnostic.importing.workers import in_order, usable_processes

# Limits of a block: work for a tenth of a second or more.
_CHARACTERS = 1 << 20
_TEXTS = 2000
# Bytes of an input that several processes read sooner, including their start.
_LARGE = 16 * MB

ReadTexts = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[SourceText]]
# Called with a text with markup; returns its sentences, as stores hold them.
ToSentences = Callable[[str], list[str]]


@dataclasses.dataclass(frozen=True)
class Texts:
    """How the texts of a format are read and divided.

    Attributes:
        read: Reads texts; see `Format.read`.
        to_sentences: Called with options; returns the function that finds sentences.
        empty: The reason for skipping a text without a sentence.
        find_inputs: Called with input paths; returns the files to read.
    """

    read: ReadTexts
    to_sentences: Callable[[ImportOptions], ToSentences]
    empty: str
    find_inputs: Callable[[Sequence[Path]], list[Path]]


def reader(texts: Texts) -> Read:
    """Returns the reader of the sentences of a format."""

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        make = functools.partial(_Divider, texts.to_sentences, options, texts.empty)
        processes = options.processes or 1
        if options.processes is None:
            num_bytes = sum(path.stat().st_size for path in texts.find_inputs(paths))
            processes = usable_processes() if num_bytes >= _LARGE else 1
        blocks = _row_blocks(texts.read(options, paths, log))
        with contextlib.closing(in_order(make, blocks, processes)) as made:
            for sentences in made:
                log.merge(sentences.log)
                if sentences.text:
                    yield sentences.rows()

    return read


@dataclasses.dataclass(frozen=True)
class _Sentences:
    """The sentences of a block of texts.

    Attributes:
        texts: The texts that have sentences, without their contents.
        text: The index of each sentence's text.
        tokens: The sentences.
        log: Counts the skipped texts.
    """

    texts: Sequence[SourceText]
    text: Sequence[int]
    tokens: Sequence[str]
    log: ReadLog

    def rows(self) -> Rows:
        """Returns the sentences as rows."""
        index = pa.array(self.text, pa.int64())
        numbers = np.array(self.text)
        number_in_text = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
        records = [text.record for text in self.texts]

        def column(values: list[Any]) -> Any:
            if isinstance(values[0], int):
                return np.array(values, np.int64)[numbers]
            return pa.array(values, pa.string()).take(index)

        def place(k: int) -> str:
            return f"{self.texts[self.text[k]].place}#{number_in_text[k]}"

        features = {TOKENS: pa.array(self.tokens, pa.string())}
        for name in records[0].features:
            features[name] = column([record.features[name] for record in records])
        return Rows(
            client=column([record.client for record in records]),
            domain=column([record.domain for record in records]),
            split=column([record.split for record in records]),
            features=features,
            place=place,
            group=column([text.group for text in self.texts]),
        )


class _Divider:
    """Divides blocks of texts into sentences."""

    def __init__(
        self,
        to_sentences: Callable[[ImportOptions], ToSentences],
        options: ImportOptions,
        empty: str,
    ) -> None:
        self._to_sentences = to_sentences(options)
        self._empty = empty

    def __call__(self, block: Sequence[SourceText]) -> _Sentences:
        """Returns the sentences of a block."""
        log = ReadLog()
        texts: list[SourceText] = []
        index: list[int] = []
        tokens: list[str] = []
        for text in block:
            sentences = self._to_sentences(text.text)
            if not sentences:
                log.skip(self._empty, text.record.client)
                continue
            index += [len(texts)] * len(sentences)
            tokens += sentences
            texts.append(dataclasses.replace(text, text=""))
        return _Sentences(texts, index, tokens, log)


def _row_blocks(texts: Iterable[SourceText]) -> Iterator[list[SourceText]]:
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
