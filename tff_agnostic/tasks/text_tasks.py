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
from typing import Annotated, Any, ClassVar, Union

import numpy as np

from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.data.inputs import TEXT
from tff_agnostic.data.store import StoreClients, vocabulary_digest
from tff_agnostic.data.store_format import DOMAIN, LABEL, TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.models.next_word import (
    POOLINGS,
    NextWordNetwork,
    TextNetwork,
    next_word_model,
    text_classifier,
    unigram_model,
)
from tff_agnostic.tasks.language import (
    Corpus,
    SentenceOptions,
    SequenceOptions,
    TextOptions,
    cut_words,
    known_words,
    next_word_task,
    stored_corpus,
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

# The Stack Overflow LSTM of Reddi et al. 2021; gamma_lambda is that of Ro et al. 2021.
_REDDI_ET_AL: Mapping[str, Any] = {
    "client_batch_size": 16,
    "client_learning_rate": 10**-0.5,
    "server_optimizer": "adam:epsilon=1e-5",
    "server_learning_rate": 10**-2,
    "lambda_learning_rate": 0.005,
    "client_normalizer": "batch",
}
_DOMAIN_NAMES = ("answer", "question")
# The feature with the domain in TFF's own data.
_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class UnigramOptions(DomainOptions, TextOptions):
    """Options of the task."""


def load_unigram(options: UnigramOptions, context: TaskContext) -> Task:
    """Returns the task: K + 1 outcomes, the last one for any other word."""
    assert context.data is not None
    corpus = stored_corpus(options, context.data, options.domain_feature)
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
class TextClassifierOptions(DomainOptions, SequenceOptions):
    """Options of the task.

    Attributes:
        label_feature: Feature of the store with a text's class: label, or another string or
            integer, such as type in a store of Stack Exchange.
        network: Layers of the model: lstm or cifg; of text_classifier mean or lstm; of emnist cnn
            or linear.
    """

    label_feature: str = LABEL
    network: Annotated[str, OneOf(POOLINGS)] = "mean"


def load_text_classifier(options: TextClassifierOptions, context: TaskContext) -> Task:
    """Returns the task."""
    assert context.data is not None
    corpus = stored_corpus(options, context.data, options.domain_feature)
    store, length = corpus.store, options.sequence_length
    splits = (TRAIN_SPLIT, options.test_split)
    labels: AnyLabels
    if options.label_feature == LABEL:
        labels = StoredLabels(store)
    else:
        labels = ChosenLabels(store, options.label_feature, splits)
    if labels.num_classes is None:
        raise UserError(
            f"{store.path}: --task=text_classifier needs labels that are classes, found other "
            "numbers (--task=custom has a model for them)"
        )
    network, num_words = TextNetwork(options.network), len(corpus.words)
    model = text_classifier(network, labels.num_classes, num_words, length, context.seed)
    return labelled_text_task(corpus, labels, length, options.test_split, model)


TEXT_CLASSIFIER = TaskSpec(
    summary="class of a text, mean of word vectors or LSTM; domains the store's (--data)",
    options=TextClassifierOptions,
    load=load_text_classifier,
    option_defaults={"sequence_length": 50},
    defaults={
        "rounds": 300,
        "clients_per_round": 20,
        "client_batch_size": 10,
        "client_learning_rate": 0.3,
        "server_optimizer": "adam:epsilon=1e-5",
        "server_learning_rate": 0.01,
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
    corpus: Corpus, labels: AnyLabels, sequence_length: int, test_split: str, model: Model
) -> Task:
    """Returns a task of texts with labels.

    Args:
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
        model=model,
        fingerprint={
            "vocabulary": vocabulary_digest(corpus.words),
            **labels.fingerprint(),
            **data_fingerprint(store),
        },
        remarks=lambda: cut_words(store, sequence_length, "a larger one keeps them."),
        class_names=labels.class_names,
        words=corpus.words,
        inputs=text_inputs(store, TEXT),
    )


@dataclasses.dataclass(frozen=True)
class LstmNetwork(Options):
    """Layers of LSTM cells.

    Attributes:
        embedding: Size of the word vectors, and of the projection of each recurrent layer.
        units: Number of units in each recurrent layer.
        layers: Number of recurrent layers.
        tied: Whether words are scored by their own vectors, which saves a matrix of that size.
    """

    embedding: Annotated[int, Within(least=1)] = 96
    units: Annotated[int, Within(least=1)] = 256
    layers: Annotated[int, Within(least=1)] = 1
    tied: bool = False
    cell: ClassVar[str] = "lstm"


@dataclasses.dataclass(frozen=True)
class CifgNetwork(Options):
    """Layers of CIFG cells, by default those of Ro et al. 2021.

    Attributes:
        embedding: Size of the word vectors, and of the projection of each recurrent layer.
        units: Number of units in each recurrent layer.
        layers: Number of recurrent layers.
        tied: Whether words are scored by their own vectors, which saves a matrix of that size.
    """

    embedding: Annotated[int, Within(least=1)] = 96
    units: Annotated[int, Within(least=1)] = 670
    layers: Annotated[int, Within(least=1)] = 1
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


def load_next_word(options: NextWordOptions, context: TaskContext) -> Task:
    """Returns the task."""
    assert context.data is not None
    corpus = stored_corpus(options, context.data, options.domain_feature)
    return next_word_task(corpus, options, _network_model(corpus, options, context.seed))


def _network_model(corpus: Corpus, options: NetworkOptions, seed: int) -> Model:
    sizes = options.network
    network = NextWordNetwork(sizes.cell, sizes.embedding, sizes.units, sizes.layers, sizes.tied)
    return next_word_model(network, len(corpus.words), options.sequence_length, seed=seed)


NEXT_WORD = TaskSpec(
    summary="next word of any texts, LSTM or CIFG by flags; domains the store's (--data)",
    options=NextWordOptions,
    load=load_next_word,
    defaults={
        **_REDDI_ET_AL,
        "rounds": 500,
        "clients_per_round": 10,
        "evaluate_every": 25,
    },
    data=Use.REQUIRED,
)
SPANISH_KEYBOARD = dataclasses.replace(
    NEXT_WORD,
    summary="next word in Spanish, CIFG with tied embeddings; domains the store's locales (--data)",
    option_defaults={"network": CifgNetwork()},
    defaults={
        "rounds": 3000,
        "clients_per_round": 500,
        "client_batch_size": 50,
        "client_learning_rate": 0.5,
        "server_optimizer": "nesterov:momentum=0.9",
        "server_learning_rate": 1.0,
        "lambda_learning_rate": 0.005,
        "client_normalizer": "batch",
        "evaluate_every": 100,
    },
)
TWO_DOMAIN_LM = dataclasses.replace(
    NEXT_WORD,
    summary="next word in two kinds of text, two-layer LSTM; domains the store's (--data)",
    option_defaults={"network": LstmNetwork(layers=2)},
    defaults={
        "rounds": 500,
        "clients_per_round": 10,
        "client_batch_size": 20,
        "client_learning_rate": 1.0,
        "server_optimizer": "momentum:momentum=0.9",
        "server_learning_rate": 0.3,
        "lambda_learning_rate": 0.01,
        "client_normalizer": "batch",
        "evaluate_every": 25,
    },
)


def load_stackoverflow(options: NetworkOptions, context: TaskContext) -> Task:
    """Returns the task."""
    path = context.data if context.data is not None else stackoverflow_store(context.data_dir)
    store = open_store(path, {TOKENS: Feature("string")})
    is_ours = store.description.kind is not None

    def words_of_data(size: int) -> Sequence[str]:
        return store.vocabulary(size) if is_ours else stackoverflow_words(context.data_dir, size)

    domains = StoredDomains(_DOMAIN_NAMES, DOMAIN if is_ours else _TYPE)
    corpus = Corpus(store, known_words(options, words_of_data), domains)
    return next_word_task(corpus, options, _network_model(corpus, options, context.seed))


STACKOVERFLOW = TaskSpec(
    summary="next word in Stack Overflow or any Stack Exchange site, LSTM; domains question and "
    "answer (--data, or TFF's own)",
    options=NetworkOptions,
    load=load_stackoverflow,
    option_defaults={"network": LstmNetwork(units=670)},
    defaults={
        **_REDDI_ET_AL,
        "rounds": 1500,
        "clients_per_round": 50,
        "max_examples": 1000,
        "evaluate_every": 50,
    },
    data_dir=Use.OPTIONAL,
    data=Use.OPTIONAL,
)
