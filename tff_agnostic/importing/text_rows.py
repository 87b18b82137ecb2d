"""Conversion of texts to sentences, in blocks for several processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import pyarrow as pa

from tff_agnostic.data.store_format import TOKENS
from tff_agnostic.importing.options import MB, ImportOptions
from tff_agnostic.importing.source import Read, ReadLog, Rows, SourceExample, in_blocks, rows_of
from tff_agnostic.importing.workers import in_order, usable_processes

# Limits of a block: work for a tenth of a second or more.
_CHARACTERS = 1 << 20
_TEXTS = 2000
# Minimum input bytes for which several processes are faster, including their start.
_LARGE = 16 * MB


@dataclasses.dataclass(frozen=True)
class SourceText(SourceExample):
    """A text whose sentences are examples; `place#k` is the place of sentence k, from 0.

    Attributes:
        text: The text, with markup.
    """

    text: str = ""


# Called with a text with markup; returns its sentences in the store's form.
ToSentences = Callable[[str], list[str]]


def reader(
    read_texts: Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[SourceText]],
    to_sentences: Callable[[ImportOptions], ToSentences],
    find_inputs: Callable[[Sequence[Path]], list[Path]],
) -> Read:
    """Returns the reader of the sentences of a format.

    Args:
        read_texts: Reads texts; see `Format.read`.
        to_sentences: Called with options; returns the function that finds sentences.
        find_inputs: Called with input paths; returns the files to read.
    """

    def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        make = functools.partial(_divider, to_sentences, options)
        processes = options.processes or 1
        if options.processes is None:
            num_bytes = sum(path.stat().st_size for path in find_inputs(paths))
            processes = usable_processes() if num_bytes >= _LARGE else 1
        blocks = in_blocks(read_texts(options, paths, log), _by_size())
        with contextlib.closing(in_order(make, blocks, processes)) as made:
            for texts, sentences in made:
                for text, its_sentences in zip(texts, sentences):
                    if not its_sentences:
                        log.skip("post without text", text.record.client)
                if any(sentences):
                    yield _sentence_rows(texts, sentences)

    return read


def _by_size() -> Callable[[list[SourceText], SourceText], bool]:
    """Returns a function that begins a new block if the texts of the last one are many or long."""
    size = 0

    def begins_block(texts: list[SourceText], text: SourceText) -> bool:
        nonlocal size
        is_complete = len(texts) >= _TEXTS or size >= _CHARACTERS
        size = len(text.text) + (0 if is_complete else size)
        return is_complete

    return begins_block


def _divider(
    to_sentences: Callable[[ImportOptions], ToSentences], options: ImportOptions
) -> Callable[[Sequence[SourceText]], list[list[str]]]:
    sentences_of = to_sentences(options)
    return lambda texts: [sentences_of(text.text) for text in texts]


def _sentence_rows(texts: Sequence[SourceText], sentences: Sequence[Sequence[str]]) -> Rows:
    """Returns the sentences of texts as rows."""
    counts = list(map(len, sentences))
    rows = rows_of(texts).taken(np.repeat(np.arange(len(texts)), counts))
    tokens = pa.array(itertools.chain(*sentences), pa.string())
    number_in_text = [k for count in counts for k in range(count)]
    return dataclasses.replace(
        rows,
        features={TOKENS: tokens, **rows.features},
        place=lambda k: f"{rows.place(k)}#{number_in_text[k]}",
    )
