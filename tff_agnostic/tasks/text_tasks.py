"""Tasks of texts: the distribution of words, the class of a text, and the next word.

`unigram` learns the distribution of words without the words before them: an example is a word. It
is the task of section 5.2 of Hamer, Mohri, Suresh 2020, whose base predictors are unigram models of
clients; its own model is a single one, for algorithms that train.

Next words: `next_word` for any texts, and three tasks of papers, which are settings of it.

- `next_word`: any store of texts, with the domains that it names. Flags choose the model.
- `spanish_keyboard`: section 5.2 of Ro et al. 2021 with the model of Hard et al. 2018, a CIFG with
  tied embeddings, and Nesterov momentum at the server. Domains are countries, a client partition.
  The paper's data are private: any store of texts by country takes their place.
- `two_domain_lm`: section 5.3 of Mohri et al. 2019. Documents and conversations in capitals without
  punctuation, 10,000 words, an LSTM of two layers, momentum. The paper has the Penn Treebank and
  the Cornell movie dialogues; `import_data --format=text_folders --case=upper --punctuation=drop`
  turns such texts into a store.
- `stackoverflow`: section 5.1 of Ro et al. 2021, the LSTM and the hyperparameters of Reddi et al.
  2021, with Adam at the server. Domains are questions and answers, a data partition: users write
  both. Without --data the data are TFF's; a store of any Stack Exchange dump takes their place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Callable

import numpy as np

from tff_agnostic.base.options import OneOf
from tff_agnostic.data.inputs import TEXT
from tff_agnostic.data.store import Store, StoreClients, vocabulary_digest
from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.next_word import (
    CELLS,
    POOLINGS,
    NextWordNetwork,
    TextNetwork,
    text_classifier,
    unigram_model,
)
from tff_agnostic.tasks.language import (
    NEXT_WORD_DEFAULTS,
    Corpus,
    LanguageOptions,
    StoredTextOptions,
    TextOptions,
    check_sizes,
    cut_words,
    known_words,
    model_builder,
    next_word_task,
    stored_corpus,
    stored_text_task,
)
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainOptions,
    StoredDomains,
    data_fingerprint,
    open_store,
    stackoverflow_store,
    stackoverflow_words,
    text_inputs,
)
from tff_agnostic.tasks.stored_inputs import AnyLabels, ChosenLabels, StoredLabels
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use
from tff_agnostic.text_ids import TextEncoder

_UNIGRAM = "unigram"
_TEXTS = "text_classifier"


@dataclasses.dataclass(frozen=True)
class UnigramOptions(DomainOptions, TextOptions):
    """Options of the task.

    Attributes:
        vocabulary_size: K, how many of the most frequent words are outcomes; all others together
            are one more.
    """

    vocabulary_size: int = 10_000


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
        "client_batch_size": 100,
        "client_learning_rate": 1.0,
        "lambda_learning_rate": 0.01,
        "client_normalizer": "batch",
        "evaluate_every": 20,
        "alpha_learning_rate": 0.05,
    },
    data=Use.REQUIRED,
)


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions(DomainOptions, TextOptions):
    """Options of the task.

    Attributes:
        sequence_length: T, words of a text that are read; the rest is cut off.
        label_feature: Feature of the store with a text's class: label, or any other text or whole
            number, such as type of a store of Stack Exchange.
        pooling: How words become one vector: mean of their vectors, or lstm, which reads them in
            order.
        embedding: Size of the word vectors.
        units: Units of the LSTM. Only with --text_classifier_pooling=lstm.
    """

    sequence_length: int = 50
    label_feature: str = LABEL
    pooling: Annotated[str, OneOf(POOLINGS)] = TextNetwork.pooling
    embedding: int = TextNetwork.embedding
    units: int = TextNetwork.units


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
        "client_batch_size": 10,
        "client_learning_rate": 0.3,
        "server_optimizer": "adam",
        "server_learning_rate": 0.01,
        "server_epsilon": 1e-5,
        "lambda_learning_rate": 0.01,
        "client_normalizer": "batch",
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


_DOMAIN_NAMES = ("answer", "question")
# The feature with the domain in TFF's own data.
_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class NextWordOptions(StoredTextOptions):
    """Options of the task.

    Attributes:
        cell: Recurrent cell: lstm, with a dense layer after it; or cifg, with three quarters of its
            weights, projected.
        embedding: Size of the word vectors, and of each projection.
        units: Units of each recurrent layer.
        layers: Number of recurrent layers.
        tied: Whether words are scored by their own vectors, which saves a matrix of that size.
    """

    cell: Annotated[str, OneOf(CELLS)] = "lstm"
    embedding: int = 96
    units: int = 256
    layers: int = 1
    tied: bool = False


NEXT_WORD = stored_text_task(
    "next_word",
    summary="next word of any texts, LSTM or CIFG by flags; domains the store's (--data)",
    options=NextWordOptions,
    network=lambda o: NextWordNetwork(o.cell, o.embedding, o.units, o.layers, o.tied),
    defaults={
        **NEXT_WORD_DEFAULTS,
        "rounds": 500,
        "clients_per_round": 10,
        "evaluate_every": 25,
    },
)


@dataclasses.dataclass(frozen=True)
class SpanishKeyboardOptions(StoredTextOptions):
    """Options of the task.

    Attributes:
        projection: Size of the recurrent projection and of the word vectors.
        units: Units of the CIFG.
    """

    projection: int = 96
    units: int = 670


SPANISH_KEYBOARD = stored_text_task(
    "spanish_keyboard",
    summary="next word in Spanish, CIFG with tied embeddings; domains the store's locales (--data)",
    options=SpanishKeyboardOptions,
    network=lambda o: NextWordNetwork("cifg", o.projection, o.units, tied=True),
    defaults={
        "rounds": 3000,
        "clients_per_round": 500,
        "client_batch_size": 50,
        "client_learning_rate": 0.5,
        "server_optimizer": "nesterov",
        "server_learning_rate": 1.0,
        "server_momentum": 0.9,
        "lambda_learning_rate": 0.005,
        "client_normalizer": "batch",
        "evaluate_every": 100,
    },
)


@dataclasses.dataclass(frozen=True)
class TwoDomainOptions(StoredTextOptions):
    """Options of the task.

    Attributes:
        embedding: Size of the word vectors.
        units: Units of each LSTM.
    """

    embedding: int = 96
    units: int = 256


TWO_DOMAIN_LM = stored_text_task(
    "two_domain_lm",
    summary="next word in two kinds of text, two-layer LSTM; domains the store's (--data)",
    options=TwoDomainOptions,
    network=lambda o: NextWordNetwork("lstm", o.embedding, o.units, layers=2),
    defaults={
        "rounds": 500,
        "clients_per_round": 10,
        "client_batch_size": 20,
        "client_learning_rate": 1.0,
        "server_optimizer": "momentum",
        "server_learning_rate": 0.3,
        "server_momentum": 0.9,
        "lambda_learning_rate": 0.01,
        "client_normalizer": "batch",
        "evaluate_every": 25,
    },
)


@dataclasses.dataclass(frozen=True)
class StackOverflowOptions(LanguageOptions):
    """Options of the task.

    Attributes:
        embedding: Size of the word vectors.
        units: Units of each LSTM.
        layers: Number of LSTMs.
    """

    embedding: int = 96
    units: int = 670
    layers: int = 1


def load_stackoverflow(options: StackOverflowOptions, context: TaskContext) -> Task:
    """Returns the task."""
    check_sizes("stackoverflow", options)
    path = context.data if context.data is not None else stackoverflow_store(context.data_dir)
    store = open_store(path, "stackoverflow", {TOKENS: Feature("string")})
    is_ours = store.description.kind is not None

    def words_of_data(size: int) -> Sequence[str]:
        return store.vocabulary(size) if is_ours else stackoverflow_words(context.data_dir, size)

    words = known_words(options, "stackoverflow", words_of_data)

    network = NextWordNetwork("lstm", options.embedding, options.units, options.layers)
    build = model_builder(network, options, context.seed)
    domains = StoredDomains(_DOMAIN_NAMES, DOMAIN if is_ours else _TYPE)
    corpus = Corpus(store, words, domains)
    return next_word_task("stackoverflow", corpus, options, build)


STACKOVERFLOW = TaskSpec(
    summary="next word in Stack Overflow or any Stack Exchange site, LSTM; domains question and "
    "answer (--data, or TFF's own)",
    options=StackOverflowOptions,
    load=load_stackoverflow,
    defaults={
        **NEXT_WORD_DEFAULTS,
        "rounds": 1500,
        "clients_per_round": 50,
        "max_examples": 1000,
        "evaluate_every": 50,
    },
    data_dir=Use.OPTIONAL,
    data=Use.OPTIONAL,
)
