"""EMNIST: handwritten characters of high-school students and census employees.

This is the task of Ro et al. 2021, appendix C, with the CNN of Reddi et al. 2021. Each client
belongs to one domain. Without a store the data are TFF's, whose high-school writers are 2100 to
2599 (NIST special database 19, hsf_4). An imported store names the domain of each example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.clients import ClientDataset, SelectedClients, client_domain_counts
from tff_agnostic.data.store import StoreClients
from tff_agnostic.data.store_format import DOMAIN, LABEL, Feature
from tff_agnostic.models.classifiers import emnist_cnn, emnist_linear
from tff_agnostic.models.model import Examples, Model
from tff_agnostic.tasks.stored import (
    TRAIN_SPLIT,
    DomainLookup,
    SplitOptions,
    data_fingerprint,
    domains_by_name,
    open_store,
    read_labels,
    tff_store,
)
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec, Use

HIGH_SCHOOL, CENSUS = "high_school", "census"
_DOMAIN_NAMES = (HIGH_SCHOOL, CENSUS)
_HIGH_SCHOOL_WRITERS = range(2100, 2600)
_PIXELS = "pixels"
_FEATURES = {_PIXELS: Feature("float32", (28, 28)), LABEL: Feature("int64")}
# Prefixes of TFF's split names, by the number of classes.
_TFF_SPLITS = {62: "all_", 10: "digits_only_"}


# Each network maps (number of classes, seed) to a model.
NETWORKS: Registry[Callable[[int, int], Model]] = Registry(
    "network",
    # The linear model needs no seed, as its initial weights are zeros.
    {"cnn": emnist_cnn, "linear": lambda num_classes, seed: emnist_linear(num_classes)},
)


@dataclasses.dataclass(frozen=True)
class EmnistOptions(SplitOptions):
    """Options of the task.

    Attributes:
        num_classes: Number of classes: 62 for digits and letters, 10 for digits.
        network: Layers of the model: lstm or cifg; for text_classifier mean or lstm; for emnist cnn
            or linear.
        high_school_writers: Number of high-school writers to train on, drawn with the seed; None
            for all.
    """

    num_classes: Annotated[int, Within(least=2)] = 62
    network: Annotated[str, OneOf(NETWORKS)] = "cnn"
    high_school_writers: Optional[int] = None


def load(options: EmnistOptions, context: TaskContext) -> Task:
    """Returns the task."""
    path = context.data or tff_store("emnist", context.data_dir)
    store, features = open_store(path, _FEATURES), dict(_FEATURES)
    lookup_domains = _domains_by_writer(path)
    if DOMAIN in store.description.features:
        features[DOMAIN] = Feature("string")
        lookup_domains = domains_by_name(_DOMAIN_NAMES, path)

    def to_examples(client_id: str, columns: Mapping[str, np.ndarray]) -> Examples:
        where = f"{path}: client {client_id}"
        return {
            "x": columns[_PIXELS][..., np.newaxis],
            "y": read_labels(columns, options.num_classes, where),
            "domain_id": lookup_domains(client_id, columns),
        }

    def clients(split: str) -> StoreClients:
        tffs = _TFF_SPLITS.get(options.num_classes, "") + split
        name = tffs if tffs in store.splits() else split
        return StoreClients(store, name, features, to_examples, _DOMAIN_NAMES)

    return Task(
        domain_names=_DOMAIN_NAMES,
        train=_thinned(clients(TRAIN_SPLIT), options, context.seed),
        test=clients(options.test_split),
        model=NETWORKS[options.network](options.num_classes, context.seed),
        fingerprint={"classes": str(options.num_classes), **data_fingerprint(store)},
    )


def _domains_by_writer(path: object) -> DomainLookup:
    def lookup_domains(client_id: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        # The id f2103_04 belongs to writer 2103.
        number = client_id[1:].partition("_")[0]
        if not number.isdigit():
            raise UserError(
                f"{path}: expected ids of TFF's EMNIST such as f2103_04 in a store that does not "
                f"name the domains, found the client {client_id!r}"
            )
        domain = 0 if int(number) in _HIGH_SCHOOL_WRITERS else 1
        return np.full([len(columns[LABEL])], domain, np.int32)

    return lookup_domains


def _thinned(clients: ClientDataset, options: EmnistOptions, seed: int) -> ClientDataset:
    num_kept = options.high_school_writers
    if num_kept is None:
        return clients
    ids = np.array(clients.client_ids)
    is_high_school = np.argmax(client_domain_counts(clients, 2), axis=1) == 0
    writers = ids[is_high_school]
    if not 1 <= num_kept <= len(writers):
        expected = f"1 to {len(writers)}, the number of high-school writers"
        raise options.error("high_school_writers", expected)
    kept = np.random.default_rng([seed, 3]).choice(writers, size=num_kept, replace=False)
    return SelectedClients(clients, [*kept, *ids[~is_high_school]])


TASK = TaskSpec(EmnistOptions, load, data_dir=Use.OPTIONAL, data=Use.OPTIONAL)
