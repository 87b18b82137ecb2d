"""Tasks of texts: the distribution of words, and the class of a text.

`unigram` learns the distribution of words without the words before them: an example is a word. It
is the task of section 5.2 of Hamer, Mohri, Suresh 2020, whose base predictors are unigram models of
clients; its own model is a single one, for algorithms that train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Callable

import numpy as np

from tff_agnostic.data.inputs import TEXT
from tff_agnostic.data.store import Store, StoreClients, vocabulary_digest
from tff_agnostic.data.store_format import LABEL, TOKENS, Feature
from tff_agnostic.data.texts import TextEncoder
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.models.text_classifier import POOLINGS, TextNetwork, text_classifier
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import Corpus, TextOptions, check_sizes, cut_words, stored_corpus
from tff_agnostic.tasks.stored import TRAIN_SPLIT, DomainOptions, data_fingerprint, text_inputs
from tff_agnostic.tasks.stored_inputs import AnyLabels, ChosenLabels, StoredLabels
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

_UNIGRAM = "unigram"
_TEXTS = "text_classifier"


@dataclasses.dataclass(frozen=True)
class UnigramOptions(DomainOptions, TextOptions):
    """Options of the task."""

    vocabulary_size: int = setting(
        10_000,
        "K, how many of the most frequent words are outcomes; all others together are one more.",
    )


def load_unigram(options: UnigramOptions, context: TaskContext) -> Task:
    """Returns the task: K + 1 outcomes, the last one for any other word."""
    assert context.data is not None
    check_sizes(_UNIGRAM, options)
    corpus = stored_corpus(_UNIGRAM, options, context.data, options.domain_feature)
    store, domains, num_words = corpus.store, corpus.domains, len(corpus.words)
    # Bytes, as stores hold them: nothing has to be decoded.
    id_of = {word.encode(): k for k, word in enumerate(corpus.words)}
    domains_of = domains.of_examples(store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        sentences = [text.split() for text in columns[TOKENS]]
        words = np.array([id_of.get(w, num_words) for s in sentences for w in s], np.int32)
        lengths = [len(sentence) for sentence in sentences]
        domain_id = np.repeat(domains_of(client_id, columns), lengths)
        return {"x": words, "y": words, "domain_id": domain_id}

    def clients(split: str) -> StoreClients:
        features = {TOKENS: Feature("string"), **domains.features}
        # The store counts texts, and not their words.
        return StoreClients(store, split, features, to_examples, domains.names, False)

    return Task(
        domain_names=domains.names,
        train=clients(TRAIN_SPLIT),
        test=clients(options.test_split),
        model=unigram_model(num_words + 1),
        fingerprint={"vocabulary": vocabulary_digest(corpus.words), **data_fingerprint(store)},
    )


UNIGRAM = TaskSpec(
    summary="words of any texts, each by itself: a distribution; domains the store's (--data)",
    options=UnigramOptions,
    load=load_unigram,
    defaults={
        "rounds": 300,
        "clients_per_round": 50,
        "batch_size": 100,
        "client_learning_rate": 1.0,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 20,
        "alpha_learning_rate": 0.05,
    },
    data=Use.REQUIRED,
)


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions(DomainOptions, TextOptions):
    """Options of the task."""

    sequence_length: int = setting(50, "T, words of a text that are read; the rest is cut off.")
    label_feature: str = setting(
        LABEL,
        "Feature of the store with a text's class: label, or any other text or whole number, "
        "such as type of a store of Stack Exchange.",
    )
    pooling: str = setting(
        TextNetwork.pooling,
        "How words become one vector: mean of their vectors, or lstm, which reads them in order.",
        choices=POOLINGS,
    )
    embedding: int = setting(TextNetwork.embedding, "Size of the word vectors.")
    units: int = setting(
        TextNetwork.units, f"Units of the LSTM. Only with --{_TEXTS}_pooling=lstm."
    )


def load_text_classifier(options: TextClassifierOptions, context: TaskContext) -> Task:
    """Returns the task."""
    assert context.data is not None
    check_sizes(_TEXTS, options)
    if options.pooling != "lstm" and options.units != TextNetwork.units:
        raise UserError(
            f"--{_TEXTS}_units has no effect with --{_TEXTS}_pooling={options.pooling}: it needs "
            f"--{_TEXTS}_pooling=lstm"
        )
    corpus = stored_corpus(_TEXTS, options, context.data, options.domain_feature)
    labels = _labels(corpus.store, options)
    num_classes = labels.num_classes
    if num_classes is None:
        raise UserError(
            f"{corpus.store.path}: --task={_TEXTS} needs labels that are classes, found other "
            "numbers (--task=custom has a model for them)"
        )
    network = TextNetwork(options.pooling, options.embedding, options.units)

    def model() -> Model:
        return text_classifier(
            network, num_classes, len(corpus.words), options.sequence_length, context.seed
        )

    return labelled_text_task(
        _TEXTS, corpus, labels, options.sequence_length, options.test_split, model
    )


def _labels(store: Store, options: TextClassifierOptions) -> AnyLabels:
    if options.label_feature == LABEL:
        return StoredLabels(store)
    splits = (TRAIN_SPLIT, options.test_split)
    return ChosenLabels(store, options.label_feature, splits, f"--{_TEXTS}_label_feature")


TEXT_CLASSIFIER = TaskSpec(
    summary="class of a text, mean of word vectors or LSTM; domains the store's (--data)",
    options=TextClassifierOptions,
    load=load_text_classifier,
    defaults={
        "rounds": 300,
        "clients_per_round": 20,
        "batch_size": 10,
        "client_learning_rate": 0.3,
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_epsilon": 1e-5,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 20,
    },
    data=Use.REQUIRED,
)


def text_spec(sequence_length: int) -> tf.TensorSpec:
    """Returns the spec of x: ids of `TokenIds`, int32 [n, T]; 0 is padding, after the words."""
    return tf.TensorSpec([None, sequence_length], tf.int32)


def labelled_text_task(
    name: str,
    corpus: Corpus,
    labels: AnyLabels,
    sequence_length: int,
    test_split: str,
    model: Callable[[], Model],
) -> Task:
    """Returns a task of texts with labels.

    Args:
        name: Name of the task, for messages.
        sequence_length: T.
    """
    store, domains = corpus.store, corpus.domains
    encoder = TextEncoder(corpus.words, sequence_length)
    domains_of = domains.of_examples(store)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        return {
            "x": encoder.encode(columns[TOKENS]),
            "y": labels.y_of(columns, f"{store.path}: client {client_id}"),
            "domain_id": domains_of(client_id, columns),
        }

    def clients(split: str) -> StoreClients:
        features = {TOKENS: Feature("string"), labels.name: labels.feature, **domains.features}
        names, has_counts = domains.names, domains.are_the_stores
        return StoreClients(store, split, features, to_examples, names, has_counts)

    return Task(
        domain_names=domains.names,
        train=clients(TRAIN_SPLIT),
        test=clients(test_split),
        model=model(),
        fingerprint={
            "vocabulary": vocabulary_digest(corpus.words),
            **labels.fingerprint(),
            **data_fingerprint(store),
        },
        remarks=lambda: cut_words(name, store, sequence_length, "a larger one keeps them."),
        class_names=labels.class_names,
        words=corpus.words,
        inputs=text_inputs(store, TEXT),
    )
