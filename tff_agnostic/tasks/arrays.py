"""A split of a store as arrays in memory, for other libraries."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from tff_agnostic.data.store import Store, parse_examples
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, TOKENS, Feature
from tff_agnostic.tasks.stored import texts_of
from tff_agnostic.tasks.stored_inputs import StoredInputs, StoredLabels


class Arrays(NamedTuple):
    """The examples of a split, client by client.

    Attributes:
        x: What a model of yours (`--task=custom`) is given: an array [n, ...], or several by name;
            categories are 0/1 entries. Of texts: their words, separated by spaces, a text each.
        y: Labels, [n]; None of texts without.
        domains: The domain of each example, texts [n].
        clients: The client of each example, texts [n].
        names: What each number of x is called, where x is a vector and that is known; of several
            arrays by name.
        class_names: Names of the classes, if they have any.
    """

    x: Any
    y: Optional[np.ndarray]
    domains: np.ndarray
    clients: np.ndarray
    names: Any
    class_names: Optional[tuple[str, ...]]


def arrays_of(store: Store, split: str) -> Arrays:
    """Returns all examples of a split.

    Raises:
        UserError: If there is no such split.
    """
    is_text = store.description.kind == TEXT
    inputs = None if is_text else StoredInputs(store, "one_hot")
    labels = StoredLabels(store) if LABEL in store.description.features else None
    features = {DOMAIN: Feature("string")}
    features.update({TOKENS: Feature("string")} if inputs is None else inputs.features)
    if labels is not None:
        features[labels.name] = labels.feature
    x, y, domains, clients = [], [], [], []
    for client in store.client_ids(split):
        where = f"{store.path}: client {client}"
        columns = parse_examples(store.read(split, client), features, where)
        x.append(
            np.array(texts_of(columns[TOKENS]), object)
            if inputs is None
            else inputs.x_of(columns, where)
        )
        if labels is not None:
            y.append(labels.y_of(columns, where))
        domains += texts_of(columns[DOMAIN])
        clients += [client] * len(columns[DOMAIN])
    several = isinstance(x[0], dict)
    return Arrays(
        x={name: np.concatenate([one[name] for one in x]) for name in x[0]}
        if several
        else np.concatenate(x),
        y=np.concatenate(y) if y else None,
        domains=np.array(domains),
        clients=np.array(clients),
        names=None if inputs is None else inputs.names(),
        class_names=None if labels is None else labels.class_names,
    )
