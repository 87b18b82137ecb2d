"""Common parts of tasks on texts: options, the vocabulary, next-word examples of a store."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Callable, Union

import numpy as np

from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.data import data_warnings
from tff_agnostic.data.inputs import SENTENCE
from tff_agnostic.data.store import Store, StoreClients, vocabulary_digest
from tff_agnostic.data.store_format import DOMAIN, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    SplitOptions,
    StoredDomains,
    chosen_domains,
    data_fingerprint,
    open_store,
    text_inputs,
)
from tff_agnostic.tasks.task import Task
from tff_agnostic.text_ids import LONG_SENTENCES, SEQUENCE_LENGTH, SentenceEncoder

# How SQLite files begin.
_SQLITE = b"SQLite format 3\0"
# Number of clients to read for the warning about cut words, if the store has no counts.
_SAMPLED_CLIENTS = 100


@dataclasses.dataclass(frozen=True)
class TextOptions(SplitOptions):
    """Options of every task on texts.

    Attributes:
        vocabulary: Number of most frequent words in the vocabulary, or a file of its words: a
            client store, or a text file with a word per line, the most frequent first.
    """

    vocabulary: Union[Annotated[int, Within(least=1)], Path] = 10_000


@dataclasses.dataclass(frozen=True)
class SequenceOptions(TextOptions):
    """Options of tasks that read texts in order.

    Attributes:
        sequence_length: T, number of words in one example.
    """

    sequence_length: Annotated[int, Within(least=1)] = SEQUENCE_LENGTH


@dataclasses.dataclass(frozen=True)
class SentenceOptions(SequenceOptions):
    """Options of tasks that predict the next word.

    Attributes:
        long_sentences: Treatment of the words beyond T: cut drops them, chunk continues with them
            in the next example.
    """

    long_sentences: Annotated[str, OneOf(LONG_SENTENCES)] = "cut"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A store of sentences with the vocabulary that goes with it.

    Attributes:
        store: The store.
        words: The vocabulary, the most frequent word first.
        domains: The domains.
    """

    store: Store
    words: Sequence[str]
    domains: StoredDomains


def known_words(
    options: TextOptions, words_of_data: Callable[[int], Sequence[str]]
) -> Sequence[str]:
    """Returns the words of a task's vocabulary, the most frequent first.

    Args:
        options: The task's options.
        words_of_data: Called with a number; returns that many of the data's most frequent words.
    """
    if isinstance(options.vocabulary, int):
        return words_of_data(options.vocabulary)
    path = Path(options.vocabulary)
    try:
        content = path.read_bytes()
        if content.startswith(_SQLITE):
            return Store(path).vocabulary()
        # Windows' editors begin a file with a mark.
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"--vocabulary: expected a number or a list of words, cannot read {path} ({e})"
        ) from e
    words = [line.split()[0] for line in lines if line.strip()]
    if not words:
        raise UserError(f"--vocabulary: expected a word in each line of {path}, found none")
    if len(set(words)) < len(words):
        twice, _ = Counter(words).most_common(1)[0]
        raise UserError(f"--vocabulary: expected different words in {path}, found {twice!r} twice")
    return words


def stored_corpus(options: TextOptions, path: Path, domain_feature: str) -> Corpus:
    """Returns a store's texts, with the domains that it names.

    Args:
        options: The task's options.
        domain_feature: Name of the feature with an example's domain.
    """
    store = open_store(path, {TOKENS: Feature("string"), DOMAIN: Feature("string")})
    words = known_words(options, store.vocabulary)
    splits = (TRAIN_SPLIT, options.test_split)
    return Corpus(store, words, chosen_domains(store, domain_feature, splits))


def next_word_task(corpus: Corpus, options: SentenceOptions, model: Model) -> Task:
    """Returns a task of next-word prediction.

    Args:
        options: The task's options.
    """
    encoder = SentenceEncoder(corpus.words, options.sequence_length)
    encode = LONG_SENTENCES[options.long_sentences]
    cuts = options.long_sentences == "cut"
    store = corpus.store
    domains = corpus.domains
    domains_of = domains.of_examples(store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        x, y, sentence = encode(encoder, columns[TOKENS])
        return {"x": x, "y": y, "domain_id": domains_of(client_id, columns)[sentence]}

    def clients(split: str) -> StoreClients:
        features = {TOKENS: Feature("string"), **domains.features}
        has_counts = cuts and domains.are_the_stores
        return StoreClients(store, split, features, to_examples, domains.names, has_counts)

    def remarks_on_words() -> list[data_warnings.Remark]:
        in_chunks = "--long_sentences=chunk continues them in the next example."
        return cut_words(store, options.sequence_length, in_chunks) if cuts else []

    return Task(
        domain_names=domains.names,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=model,
        # The words come first: if both changed, the message is about the words.
        fingerprint={"vocabulary": vocabulary_digest(corpus.words), **data_fingerprint(store)},
        remarks=remarks_on_words,
        words=corpus.words,
        inputs=text_inputs(store, SENTENCE),
    )


def cut_words(store: Store, sequence_length: int, advice: str) -> list[data_warnings.Remark]:
    """Returns the warnings about words of training clients that are cut off.

    Args:
        store: The store of the task.
        sequence_length: T, the number of words of a sentence that stay.
        advice: How to keep the words that are cut off.
    """
    return data_warnings.cut_words(store.sentence_lengths(TRAIN_SPLIT), sequence_length, advice)
