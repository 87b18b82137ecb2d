"""Tasks on texts: the next word, the class of a text, and the distribution of words.

- `next_word`: next-word prediction on any store of texts; the store names the domains. Options
  choose the network (Reddi et al. 2021; Hard et al. 2018; section 5.3 of Mohri et al. 2019).
- `stackoverflow`: next-word prediction as in section 5.1 of Ro et al. 2021. The domains are
  questions and answers; clients have both. Without a store the data are TFF's; a store of any Stack
  Exchange dump replaces them.
- `text_classifier`: classification of texts, on any store of texts with labels.
- `unigram`: the distribution of single words; an example is a word. It is the task of section 5.2
  of Hamer, Mohri, Suresh 2020, where base predictors are unigram models of clients. Algorithms
  without base predictors train a single unigram model.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Options, Verbatim, Within
from tff_agnostic.base.text_ids import LONG_SENTENCES, SEQUENCE_LENGTH, SentenceEncoder, TextEncoder
from tff_agnostic.data import data_warnings
from tff_agnostic.data.inputs import SENTENCE, TEXT
from tff_agnostic.data.store import Store, StoreClients, load_store, vocabulary_digest
from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS, Feature
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.next_word import (
    POOLINGS,
    NextWordNetwork,
    TextNetwork,
    next_word_model,
    text_classifier,
    unigram_model,
)
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainOptions,
    SplitOptions,
    StoredDomains,
    chosen_domains,
    data_fingerprint,
    open_store,
    stackoverflow_words,
    text_inputs,
    tff_store,
)
from tff_agnostic.tasks.stored_inputs import AnyLabels, ChosenLabels, StoredLabels
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

# First bytes of SQLite files.
_SQLITE = b"SQLite format 3\0"
_STACKOVERFLOW_DOMAINS = ("answer", "question")
# Feature of TFF's Stack Overflow that contains the domain.
_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class TextOptions(SplitOptions):
    """Options of every task on texts.

    Attributes:
        vocabulary: Number of most frequent words to use, or a file with the words: a client store,
            or a text file with one word per line, the most frequent first.
    """

    vocabulary: Union[Annotated[int, Within(least=1)], Path] = 10_000


@dataclasses.dataclass(frozen=True)
class SequenceOptions(TextOptions):
    """Options of tasks whose examples are sequences of words.

    Attributes:
        sequence_length: Number T of words in one example.
    """

    sequence_length: Annotated[int, Within(least=1)] = SEQUENCE_LENGTH


@dataclasses.dataclass(frozen=True)
class SentenceOptions(SequenceOptions):
    """Options of tasks that predict the next word.

    Attributes:
        long_sentences: Treatment of words beyond T: cut drops them; chunk puts them into the next
            example.
    """

    long_sentences: Annotated[str, OneOf(LONG_SENTENCES)] = "cut"


@dataclasses.dataclass(frozen=True)
class _Network(Options):
    """Recurrent layers.

    Attributes:
        embedding: Size of the word vectors, and of each recurrent layer's projection.
        units: Number of units in each recurrent layer.
        layers: Number of recurrent layers.
        tied: Whether the word vectors are also the output weights, which saves a matrix of their
            size.
    """

    embedding: Annotated[int, Within(least=1)] = 96
    units: Annotated[int, Within(least=1)] = 256
    layers: Annotated[int, Within(least=1)] = 1
    tied: bool = False


@dataclasses.dataclass(frozen=True)
class LstmNetwork(_Network):
    """Layers of LSTM cells."""

    cell: ClassVar[str] = "lstm"


@dataclasses.dataclass(frozen=True)
class CifgNetwork(_Network):
    """Layers of CIFG cells; the defaults are those of Ro et al. 2021."""

    units: Annotated[int, Within(least=1)] = 670
    tied: bool = True
    cell: ClassVar[str] = "cifg"


@dataclasses.dataclass(frozen=True)
class NetworkOptions(SentenceOptions):
    """Options of every task with a next-word network.

    Attributes:
        network: Layers of the model.
    """

    network: Union[LstmNetwork, CifgNetwork] = LstmNetwork()


@dataclasses.dataclass(frozen=True)
class NextWordOptions(DomainOptions, NetworkOptions):
    """Options of the task."""


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions(DomainOptions, SequenceOptions):
    """Options of the task.

    Attributes:
        label_feature: Feature of the store that contains a text's class: label, or another string
            or integer feature, such as type in a store of Stack Exchange.
        network: Layers of the model: lstm or cifg; for text_classifier mean or lstm; for emnist cnn
            or linear.
    """

    label_feature: str = LABEL
    network: Annotated[str, OneOf(POOLINGS)] = "mean"


@dataclasses.dataclass(frozen=True)
class UnigramOptions(DomainOptions, TextOptions):
    """Options of the task."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A store of texts with a vocabulary.

    Attributes:
        words: The vocabulary, the most frequent word first.
    """

    store: Store
    words: Sequence[str]
    domains: StoredDomains

    def task(
        self,
        test_split: str,
        model: Model,
        to_examples: Callable[[str, Mapping[str, np.ndarray]], Examples],
        labels: Optional[AnyLabels] = None,
        has_counts: bool = True,
        **others: Any,
    ) -> Task:
        """Returns a task on the texts.

        Args:
            test_split: Name of the split to evaluate on.
            to_examples: Called with a client's id and columns; returns its examples.
            labels: Labels of the texts; None without labels.
            has_counts: Whether each text is one example, so that the store knows the numbers of
                examples.
            others: The attributes of the `Task` that are not set here.
        """
        names = self.domains.names
        features = {TOKENS: Feature("string"), **self.domains.features}
        # The vocabulary is the first entry, so that messages name it if words and
        # data have both changed.
        fingerprint = {"vocabulary": vocabulary_digest(self.words)}
        if labels is not None:
            features[labels.name] = labels.feature
            fingerprint |= labels.fingerprint()

        def clients(split: str) -> StoreClients:
            is_counted = has_counts and self.domains.are_the_stores
            return StoreClients(self.store, split, features, to_examples, names, is_counted)

        return Task(
            domain_names=names,
            train=clients(TRAIN_SPLIT),
            test=clients(test_split),
            model=model,
            fingerprint={**fingerprint, **data_fingerprint(self.store)},
            **others,
        )

    def cut_words(self, sequence_length: int, advice: str) -> list[data_warnings.Remark]:
        """Returns the warnings about training clients' words beyond T, which are dropped.

        Args:
            sequence_length: Maximum number T of words per example.
            advice: Advice on how to keep these words.
        """
        # Omit the warning for TFF's stores, which do not record the lengths of sentences.
        if self.store.description.kind is None:
            return []
        lengths = self.store.sentence_lengths(TRAIN_SPLIT)
        return data_warnings.cut_words(lengths, sequence_length, advice)


def known_words(
    options: TextOptions, frequent_words: Callable[[int], Sequence[str]]
) -> Sequence[str]:
    """Returns a task's vocabulary, the most frequent word first.

    Args:
        options: The task's options.
        frequent_words: Called with a number; returns that many of the data's most frequent words.
    """
    if isinstance(options.vocabulary, int):
        return frequent_words(options.vocabulary)
    path = options.vocabulary
    try:
        if path.is_dir():
            return load_store(path).vocabulary()
        content = path.read_bytes()
        if content.startswith(_SQLITE):
            return load_store(path).vocabulary()
        # Skip a byte order mark, with which Windows editors may start a file.
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        problem = Verbatim(f"an unreadable file {path} ({e})")
        raise options.error("vocabulary", "a number or a list of words", problem) from e
    words = [line.split()[0] for line in lines if line.strip()]
    if not words:
        raise options.error("vocabulary", f"a word in each line of {path}", Verbatim("none"))
    if len(set(words)) < len(words):
        twice, _ = Counter(words).most_common(1)[0]
        problem = Verbatim(f"{twice!r} twice")
        raise options.error("vocabulary", f"different words in {path}", problem)
    return words


def _stored_corpus(
    options: Union[NextWordOptions, TextClassifierOptions, UnigramOptions], context: TaskContext
) -> Corpus:
    """Returns a store's texts, with the domains that the options choose."""
    assert context.data is not None
    store = open_store(context.data, {TOKENS: Feature("string"), DOMAIN: Feature("string")})
    words = known_words(options, store.vocabulary)
    return Corpus(store, words, chosen_domains(store, options))


def next_word_task(corpus: Corpus, options: SentenceOptions, model: Model) -> Task:
    """Returns a task of next-word prediction."""
    encoder = SentenceEncoder(corpus.words, options.sequence_length)
    encode = LONG_SENTENCES[options.long_sentences]
    cuts = options.long_sentences == "cut"
    lookup_domains = corpus.domains.domain_lookup(corpus.store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        x, y, sentence = encode(encoder, columns[TOKENS])
        return {"x": x, "y": y, "domain_id": lookup_domains(client_id, columns)[sentence]}

    def remarks() -> list[data_warnings.Remark]:
        advice = "long_sentences=chunk continues them in the next example."
        return corpus.cut_words(options.sequence_length, advice) if cuts else []

    return corpus.task(
        options.test_split,
        model,
        to_examples,
        has_counts=cuts,
        remarks=remarks,
        words=corpus.words,
        inputs=text_inputs(corpus.store, SENTENCE),
    )


def _network_task(corpus: Corpus, options: NetworkOptions, seed: int) -> Task:
    sizes = options.network
    network = NextWordNetwork(sizes.cell, sizes.embedding, sizes.units, sizes.layers, sizes.tied)
    model = next_word_model(network, len(corpus.words), options.sequence_length, seed=seed)
    return next_word_task(corpus, options, model)


def load_next_word(options: NextWordOptions, context: TaskContext) -> Task:
    """Returns the task."""
    return _network_task(_stored_corpus(options, context), options, context.seed)


def load_stackoverflow(options: NetworkOptions, context: TaskContext) -> Task:
    """Returns the task."""
    store = open_store(
        context.data or tff_store("stackoverflow", context.data_dir), {TOKENS: Feature("string")}
    )
    is_tffs = store.description.kind is None

    def frequent_words(size: int) -> Sequence[str]:
        return stackoverflow_words(context.data_dir, size) if is_tffs else store.vocabulary(size)

    domains = StoredDomains(_STACKOVERFLOW_DOMAINS, _TYPE if is_tffs else DOMAIN)
    corpus = Corpus(store, known_words(options, frequent_words), domains)
    return _network_task(corpus, options, context.seed)


def labelled_text_task(
    corpus: Corpus, labels: AnyLabels, options: SequenceOptions, model: Model
) -> Task:
    """Returns a task that predicts the labels of texts."""
    encoder = TextEncoder(corpus.words, options.sequence_length)
    lookup_domains = corpus.domains.domain_lookup(corpus.store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        return {
            "x": encoder.encode(columns[TOKENS]),
            "y": labels.build_y(columns, f"{corpus.store.path}: client {client_id}"),
            "domain_id": lookup_domains(client_id, columns),
        }

    return corpus.task(
        options.test_split,
        model,
        to_examples,
        labels,
        remarks=lambda: corpus.cut_words(options.sequence_length, "a larger one keeps them."),
        class_names=labels.class_names,
        words=corpus.words,
        inputs=text_inputs(corpus.store, TEXT),
    )


def load_text_classifier(options: TextClassifierOptions, context: TaskContext) -> Task:
    """Returns the task."""
    corpus = _stored_corpus(options, context)
    store = corpus.store
    labels: AnyLabels = (
        StoredLabels(store)
        if options.label_feature == LABEL
        else ChosenLabels(store, options.label_feature, options.splits)
    )
    if labels.num_classes is None:
        raise UserError(
            f"{store.path}: expected labels that are classes, found real numbers (the task custom "
            "has a model for them)"
        )
    network, num_words = TextNetwork(options.network), len(corpus.words)
    model = text_classifier(
        network, labels.num_classes, num_words, options.sequence_length, context.seed
    )
    return labelled_text_task(corpus, labels, options, model)


def load_unigram(options: UnigramOptions, context: TaskContext) -> Task:
    """Returns the task. Its outcomes are the vocabulary's K words, and one for all other words."""
    corpus = _stored_corpus(options, context)
    num_words = len(corpus.words)
    # Use bytes as in stores, so that texts need no decoding.
    id_by_word = {word.encode(): k for k, word in enumerate(corpus.words)}
    lookup_domains = corpus.domains.domain_lookup(corpus.store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        sentences = [text.split() for text in columns[TOKENS]]
        words = np.array([id_by_word.get(w, num_words) for s in sentences for w in s], np.int32)
        lengths = [len(sentence) for sentence in sentences]
        domain_id = np.repeat(lookup_domains(client_id, columns), lengths)
        return {"x": words, "y": words, "domain_id": domain_id}

    model = unigram_model(num_words + 1)
    return corpus.task(options.test_split, model, to_examples, has_counts=False)


NEXT_WORD = TaskSpec(NextWordOptions, load_next_word, data=Use.REQUIRED)
STACKOVERFLOW = TaskSpec(
    NetworkOptions, load_stackoverflow, data_dir=Use.OPTIONAL, data=Use.OPTIONAL
)
TEXT_CLASSIFIER = TaskSpec(TextClassifierOptions, load_text_classifier, data=Use.REQUIRED)
UNIGRAM = TaskSpec(UnigramOptions, load_unigram, data=Use.REQUIRED)
