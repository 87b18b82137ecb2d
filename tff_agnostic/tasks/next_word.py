"""Next-word tasks: `next_word` for any texts, and three tasks of papers, which are settings of it.

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
from collections.abc import Sequence

from tff_agnostic.data.store_format import DOMAIN, TOKENS, Feature
from tff_agnostic.models.next_word import CELLS, NextWordNetwork
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import (
    NEXT_WORD_DEFAULTS,
    Corpus,
    LanguageOptions,
    StoredTextOptions,
    check_sizes,
    known_words,
    model_builder,
    next_word_task,
    stored_text_task,
)
from tff_agnostic.tasks.stored import (
    StoredDomains,
    open_store,
    stackoverflow_store,
    stackoverflow_words,
)
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

_DOMAIN_NAMES = ("answer", "question")
# The feature with the domain in TFF's own data.
_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class NextWordOptions(StoredTextOptions):
    """Options of the task."""

    cell: str = setting(
        "lstm",
        "Recurrent cell: lstm, with a dense layer after it; or cifg, with three quarters of its "
        "weights, projected.",
        choices=CELLS,
    )
    embedding: int = setting(96, "Size of the word vectors, and of each projection.")
    units: int = setting(256, "Units of each recurrent layer.")
    layers: int = setting(1, "Number of recurrent layers.")
    tied: bool = setting(
        False, "Whether words are scored by their own vectors, which saves a matrix of that size."
    )


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
    """Options of the task."""

    projection: int = setting(96, "Size of the recurrent projection and of the word vectors.")
    units: int = setting(670, "Units of the CIFG.")


SPANISH_KEYBOARD = stored_text_task(
    "spanish_keyboard",
    summary="next word in Spanish, CIFG with tied embeddings; domains the store's locales (--data)",
    options=SpanishKeyboardOptions,
    network=lambda o: NextWordNetwork("cifg", o.projection, o.units, tied=True),
    defaults={
        "rounds": 3000,
        "clients_per_round": 500,
        "batch_size": 50,
        "client_learning_rate": 0.5,
        "server_optimizer": "nesterov",
        "server_learning_rate": 1.0,
        "server_momentum": 0.9,
        "domain_learning_rate": 0.005,
        "batch_normalizer": "batch",
        "evaluate_every": 100,
    },
)


@dataclasses.dataclass(frozen=True)
class TwoDomainOptions(StoredTextOptions):
    """Options of the task."""

    embedding: int = setting(96, "Size of the word vectors.")
    units: int = setting(256, "Units of each LSTM.")


TWO_DOMAIN_LM = stored_text_task(
    "two_domain_lm",
    summary="next word in two kinds of text, two-layer LSTM; domains the store's (--data)",
    options=TwoDomainOptions,
    network=lambda o: NextWordNetwork("lstm", o.embedding, o.units, layers=2),
    defaults={
        "rounds": 500,
        "clients_per_round": 10,
        "batch_size": 20,
        "client_learning_rate": 1.0,
        "server_optimizer": "momentum",
        "server_learning_rate": 0.3,
        "server_momentum": 0.9,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 25,
    },
)


@dataclasses.dataclass(frozen=True)
class StackOverflowOptions(LanguageOptions):
    """Options of the task."""

    embedding: int = setting(96, "Size of the word vectors.")
    units: int = setting(670, "Units of each LSTM.")
    layers: int = setting(1, "Number of LSTMs.")


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
