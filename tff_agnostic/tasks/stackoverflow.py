"""Stack Overflow: the next word of sentences in questions and answers.

As in section 5.1 of Ro et al. 2021: the LSTM and the hyperparameters of Reddi et al. 2021, with
Adam at the server. The domains are a data partition: users write both. Without --data the data are
TFF's; a store that import_data made of any Stack Exchange dump takes their place.
"""

import dataclasses
from collections.abc import Sequence

from tff_agnostic.data.store_format import DOMAIN, TOKENS, Feature
from tff_agnostic.models.next_word import NextWordNetwork
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import (
    NEXT_WORD_DEFAULTS,
    Corpus,
    LanguageOptions,
    check_sizes,
    known_words,
    model_builder,
    next_word_task,
)
from tff_agnostic.tasks.stored import open_store
from tff_agnostic.tasks.stored_domains import StoredDomains
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use
from tff_agnostic.tasks.tff_datasets import stackoverflow_store, stackoverflow_words

_DOMAIN_NAMES = ("answer", "question")
# What names the domain in TFF's own data.
_TYPE = "type"


@dataclasses.dataclass(frozen=True)
class StackOverflowOptions(LanguageOptions):
    """Options of the task."""

    embedding: int = setting(96, "Size of the word vectors.")
    units: int = setting(670, "Units of each LSTM.")
    layers: int = setting(1, "Number of LSTMs.")


def load(options: StackOverflowOptions, context: TaskContext) -> Task:
    """Returns the task.

    Raises:
        UserError: If the data are missing or do not fit, or an option is out of range.
    """
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


TASK = TaskSpec(
    summary="next word in Stack Overflow or any Stack Exchange site, LSTM; domains question and "
    "answer (--data, or TFF's own)",
    options=StackOverflowOptions,
    load=load,
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
