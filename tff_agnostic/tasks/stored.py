"""What tasks that read client stores share."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np

from tff_agnostic.data.clients import check_labels
from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import DOMAIN, LABEL, TRAIN, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import setting
from tff_agnostic.tasks.task import DATA, TEST_SPLIT

TRAIN_SPLIT = TRAIN


@dataclasses.dataclass(frozen=True)
class SplitOptions:
    """Options of every task on a store: who trains, and who is evaluated."""

    test_split: str = setting(TEST_SPLIT, "Split to evaluate on: test, or heldout while tuning.")
    train_share: Optional[float] = setting(
        None,
        "Divide the training clients: this share of them, drawn by --seed, trains, and the others "
        "are evaluated in the place of the test clients. So each trial has a split of its own.",
        positive=True,
        below=1.0,
    )


# (client id, columns) -> the domain id of each example, -1 for one that is left out.
DomainsOf = Callable[[str, Mapping[str, np.ndarray]], np.ndarray]


def open_store(path: Path, task: str, features: Mapping[str, Feature]) -> Store:
    """Opens a store and checks that its examples are what a task learns from.

    Args:
        path: The file.
        task: Name of the task, for messages.
        features: What the task needs; a value may have another shape of the same size, as TFF's
            stores do not say the shape.

    Raises:
        UserError: If the store is damaged or one for other tasks.
    """
    store = Store(path)
    found = store.description.features
    for name, feature in features.items():
        there = found.get(name)
        if (
            there is None
            or there.dtype != feature.dtype
            or np.prod(there.shape) != np.prod(feature.shape)
        ):
            raise UserError(
                f"{path}: --task={task} needs examples with {_described(features)}, found "
                f"{_described(found)}"
            )
    return store


def _described(features: Mapping[str, Feature]) -> str:
    return ", ".join(
        f"{name} ({feature.dtype}{list(feature.shape) if feature.shape else ''})"
        for name, feature in features.items()
    )


def domains_by_name(domain_names: Sequence[str], path: Path, feature: str = DOMAIN) -> DomainsOf:
    """Returns the function that looks up the domain that each example names.

    Args:
        domain_names: The task's domains.
        path: The store, for messages.
        feature: The feature that holds the name, or a number that is it.
    """
    id_of = {name: i for i, name in enumerate(domain_names)}

    def domains_of(client_id: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        values = columns[feature].tolist()
        names = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values]
        ids = [id_of.get(name, -1) for name in names]
        if -1 in ids:
            name = names[ids.index(-1)]
            raise UserError(
                f"{path}: client {client_id}: expected domains {', '.join(domain_names)}, found "
                f"{name!r}"
            )
        return np.array(ids, np.int32)

    return domains_of


def labels_of(columns: Mapping[str, np.ndarray], num_classes: int, where: str) -> np.ndarray:
    """Returns the labels, int32 [n].

    Raises:
        UserError: If one is not in [0, num_classes).
    """
    check_labels(columns[LABEL], num_classes, where)
    return columns[LABEL].astype(np.int32)


def data_fingerprint(store: Store) -> dict[str, str]:
    """Returns what a `Task.fingerprint` says of the store: that a changed one is another one."""
    return {DATA: store.digest()}


def stored_domains(store: Store) -> tuple[str, ...]:
    """Returns the names of the domains of a store that import_data made.

    Raises:
        UserError: If the store does not say.
    """
    if not store.description.domains:
        raise UserError(
            f"{store.path}: expected a store that names its domains, found one that TFF wrote"
        )
    return store.description.domains


def check_domain(name: str, domain_names: Sequence[str], flag: str) -> int:
    """Returns the id of the domain that a flag names.

    Raises:
        UserError: If there is none.
    """
    index_of = {domain: i for i, domain in enumerate(domain_names)}
    return Registry(f"domain in --{flag}", index_of)[name]
