"""What the next-word tasks share: sentences of a store, a vocabulary, domains by name."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from tff_agnostic.data.sentences import SentenceEncoder
from tff_agnostic.data.store import Store, vocabulary_digest
from tff_agnostic.data.store_clients import StoreClients
from tff_agnostic.data.store_format import TOKENS, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.tasks.stored import TRAIN_SPLIT, domains_by_name
from tff_agnostic.tasks.task import Task, option_flag

VOCABULARY_SIZE_HELP = "K, how many of the most frequent words are known; fewer if there are fewer."
SEQUENCE_LENGTH_HELP = "T, words of a sentence that are predicted; the rest is cut off."


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A store of sentences with the vocabulary that goes with it.

    Attributes:
        store: The store.
        words: The vocabulary, the most frequent word first.
        domain_names: Names of the domains.
        domain_feature: The feature that holds an example's domain.
    """

    store: Store
    words: Sequence[str]
    domain_names: tuple[str, ...]
    domain_feature: str


def check_sizes(task: str, options: Any) -> None:
    """Raises a `UserError` that names the flag if an option that is a number is below 1."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and value < 1:
            raise UserError(f"--{option_flag(task, field)}: expected at least 1, found {value}")


def next_word_task(
    corpus: Corpus, sequence_length: int, test_split: str, build: Callable[[int], Model]
) -> Task:
    """Returns a task of next-word prediction.

    Args:
        corpus: The sentences.
        sequence_length: T.
        test_split: Split to evaluate on.
        build: From the size of the vocabulary to the model.

    Raises:
        UserError: If a split has no clients.
    """
    encoder = SentenceEncoder(corpus.words, sequence_length)
    store = corpus.store
    domains_of = domains_by_name(corpus.domain_names, store.path, corpus.domain_feature)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        x, y = encoder.encode(columns[TOKENS])
        return {"x": x, "y": y, "domain_id": domains_of(client_id, columns)}

    def clients(split: str) -> StoreClients:
        features = {TOKENS: Feature("string"), corpus.domain_feature: Feature("string")}
        return StoreClients(store, split, features, to_examples, corpus.domain_names)

    return Task(
        domain_names=corpus.domain_names,
        train=clients(TRAIN_SPLIT),
        test=clients(test_split),
        model=build(len(corpus.words)),
        fingerprint={"vocabulary": vocabulary_digest(corpus.words)},
    )
