"""The distribution of words of any texts, without the words before them: a unigram model.

An example is a word. The task of section 5.2 of Hamer, Mohri, Suresh 2020, whose base predictors
are unigram models of clients; its own model is a single one, for algorithms that train.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tff_agnostic.data.store import vocabulary_digest
from tff_agnostic.data.store_clients import StoreClients
from tff_agnostic.data.store_format import TOKENS, Feature
from tff_agnostic.models.functional import Examples
from tff_agnostic.models.unigram import unigram_model
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import TextOptions, check_sizes, stored_corpus
from tff_agnostic.tasks.stored import TRAIN_SPLIT, data_fingerprint
from tff_agnostic.tasks.stored_domains import DomainOptions
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

_NAME = "unigram"


@dataclasses.dataclass(frozen=True)
class UnigramOptions(DomainOptions, TextOptions):
    """Options of the task."""

    vocabulary_size: int = setting(
        10_000,
        "K, how many of the most frequent words are outcomes; all others together are one more.",
    )


def load(options: UnigramOptions, context: TaskContext) -> Task:
    """Returns the task: K + 1 outcomes, of which the last one is any other word.

    Raises:
        UserError: If the store does not hold texts, or an option is out of range.
    """
    assert context.data is not None
    check_sizes(_NAME, options)
    corpus = stored_corpus(_NAME, options, context.data, options.domain_feature)
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


TASK = TaskSpec(
    summary="words of any texts, each by itself: a distribution; domains the store's (--data)",
    options=UnigramOptions,
    load=load,
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
