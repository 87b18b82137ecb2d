"""Texts with a label: x are the ids of a text's words, y is its class, or its number."""

from collections.abc import Mapping
from typing import Callable

import numpy as np
import tensorflow as tf

from tff_agnostic.data.store import vocabulary_digest
from tff_agnostic.data.store_clients import StoreClients
from tff_agnostic.data.store_format import TOKENS, Feature
from tff_agnostic.data.texts import TextEncoder
from tff_agnostic.models.functional import Examples, Model
from tff_agnostic.tasks.labels import AnyLabels
from tff_agnostic.tasks.language import Corpus, cut_words
from tff_agnostic.tasks.stored import TRAIN_SPLIT, data_fingerprint
from tff_agnostic.tasks.task import Task


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
        corpus: The texts.
        labels: Their labels.
        sequence_length: T.
        test_split: Split to evaluate on.
        model: Builds the model.

    Raises:
        UserError: If a split has no clients.
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
    )
