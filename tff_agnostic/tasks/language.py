"""Common parts of the next-word tasks: sentences of a store, a vocabulary, domains by name."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, Optional

import numpy as np

from tff_agnostic.base.options import OneOf
from tff_agnostic.data import data_warnings
from tff_agnostic.data.inputs import SENTENCE
from tff_agnostic.data.store import Store, StoreClients, vocabulary_digest
from tff_agnostic.data.store_format import DOMAIN, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.next_word import NextWordNetwork, next_word_model
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainOptions,
    SplitOptions,
    StoredDomains,
    chosen_domains,
    data_fingerprint,
    open_store,
    text_inputs,
)
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use, option_flag
from tff_agnostic.text_ids import LONG_SENTENCES, SEQUENCE_LENGTH, SentenceEncoder

# How SQLite files begin.
_SQLITE = b"SQLite format 3\0"
# Those of Reddi et al. 2021 for the Stack Overflow LSTM; gamma_lambda is that of Ro et al. 2021.
NEXT_WORD_DEFAULTS: Mapping[str, Any] = types.MappingProxyType(
    {
        "client_batch_size": 16,
        "client_learning_rate": 10**-0.5,
        "server_optimizer": "adam",
        "server_learning_rate": 10**-2,
        "server_epsilon": 1e-5,
        "lambda_learning_rate": 0.005,
        "client_normalizer": "batch",
    }
)


@dataclasses.dataclass(frozen=True)
class TextOptions(SplitOptions):
    """Options that every task on texts has.

    Attributes:
        vocabulary_size: K, how many of the most frequent words are known; fewer if there are fewer.
        vocabulary: Whose words are known: another client store, or a text file with a word and its
            count a line, the most frequent first. [the store's own]
    """

    vocabulary_size: int = 10_000
    vocabulary: Optional[Path] = None


@dataclasses.dataclass(frozen=True)
class LanguageOptions(TextOptions):
    """Options that every next-word task has.

    Attributes:
        sequence_length: T, words of a sentence that are predicted by one example.
        long_sentences: What becomes of the words beyond T: cut leaves them out, chunk continues
            with them in the next example.
    """

    sequence_length: int = SEQUENCE_LENGTH
    long_sentences: Annotated[str, OneOf(LONG_SENTENCES)] = "cut"


@dataclasses.dataclass(frozen=True)
class StoredTextOptions(DomainOptions, LanguageOptions):
    """Options of next-word tasks with the domains that a store names."""


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


def check_sizes(task: str, options: Any) -> None:
    """Raises a `UserError` that names the flag if an option that is a number is below 1."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise UserError(f"--{option_flag(task, field)}: expected at least 1, found {value}")


def known_words(
    options: TextOptions, task: str, of_data: Callable[[int], Sequence[str]]
) -> Sequence[str]:
    """Returns the K words of a task's vocabulary, the most frequent first.

    Args:
        options: The task's options.
        task: Name of the task, for messages.
        of_data: Returns the most frequent words of the task's data, given how many.
    """
    size = options.vocabulary_size
    if options.vocabulary is None:
        return of_data(size)
    path = Path(options.vocabulary)
    flag = f"--{task}_vocabulary"
    try:
        content = path.read_bytes()
        if content.startswith(_SQLITE):
            return Store(path).vocabulary(size)
        # Windows' editors begin a file with a mark.
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{flag}: expected a list of words, cannot read {path} ({e})") from e
    words = [line.split()[0] for line in lines if line.strip()][:size]
    if not words:
        raise UserError(f"{flag}: expected a word in each line of {path}, found none")
    if len(set(words)) < len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise UserError(f"{flag}: expected different words in {path}, found {twice!r} twice")
    return words


def stored_text_task(
    name: str,
    summary: str,
    options: type[StoredTextOptions],
    network: Callable[[Any], NextWordNetwork],
    defaults: Mapping[str, Any],
) -> TaskSpec:
    """Returns a task of next-word prediction in any store of texts, with the domains that it names.

    Args:
        summary: One line for help texts.
        options: The task's options.
        network: From the options to the layers of the model.
        defaults: See `TaskSpec`.
    """

    def load(options: StoredTextOptions, context: TaskContext) -> Task:
        assert context.data is not None
        check_sizes(name, options)
        corpus = stored_corpus(name, options, context.data, options.domain_feature)
        build = model_builder(network(options), options, context.seed)
        return next_word_task(name, corpus, options, build)

    return TaskSpec(summary, options, load, defaults, data=Use.REQUIRED)


def stored_corpus(name: str, options: TextOptions, path: Path, domain_feature: str) -> Corpus:
    """Returns a store's texts, with the domains that it names.

    Args:
        name: Name of the task, for messages.
        options: The task's options.
        domain_feature: Name of the feature with an example's domain.
    """
    store = open_store(path, name, {TOKENS: Feature("string"), DOMAIN: Feature("string")})
    words = known_words(options, name, store.vocabulary)
    splits = (TRAIN_SPLIT, options.test_split)
    return Corpus(store, words, chosen_domains(store, domain_feature, name, splits))


def model_builder(
    network: NextWordNetwork, options: LanguageOptions, seed: int
) -> Callable[[int], Model]:
    """Returns what makes a model of layers, given the size of the vocabulary.

    Args:
        options: The task's options.
        seed: Seeds the initial weights.
    """

    def build(vocabulary_size: int) -> Model:
        return next_word_model(network, vocabulary_size, options.sequence_length, seed=seed)

    return build


def next_word_task(
    name: str, corpus: Corpus, options: LanguageOptions, build: Callable[[int], Model]
) -> Task:
    """Returns a task of next-word prediction.

    Args:
        name: Name of the task, for messages.
        options: The task's options.
        build: From the size of the vocabulary to the model.
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
        in_chunks = f"--{name}_long_sentences=chunk continues them in the next example."
        return cut_words(name, store, options.sequence_length, in_chunks) if cuts else []

    return Task(
        domain_names=domains.names,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=build(len(corpus.words)),
        # The words come first: if both changed, the message is about the words.
        fingerprint={"vocabulary": vocabulary_digest(corpus.words), **data_fingerprint(store)},
        remarks=remarks_on_words,
        words=corpus.words,
        inputs=text_inputs(store, SENTENCE),
    )


def cut_words(
    task: str, store: Store, sequence_length: int, mend: str
) -> list[data_warnings.Remark]:
    """Returns the warnings about words of training clients that are cut off.

    Args:
        task: Name of the task.
        store: The store of the task.
        sequence_length: T, the number of words of a sentence that stay.
        mend: What helps, for the message.
    """
    return data_warnings.cut_words(
        store.sentence_lengths(TRAIN_SPLIT),
        sequence_length,
        f"{task}_sequence_length",
        mend,
    )
