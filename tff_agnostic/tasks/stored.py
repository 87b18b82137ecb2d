"""Shared functions of tasks that read client stores: splits, domains, TFF's own datasets."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within
from tff_agnostic.data.clients import SelectedClients, check_labels
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.inputs import ONLY, ModelInputs, Whole
from tff_agnostic.data.store import ArrowStore, Store, load_store
from tff_agnostic.data.store_format import DOMAIN, LABEL, TRAIN, Feature
from tff_agnostic.tasks.task import DATA, TEST_SPLIT, Task

TRAIN_SPLIT = TRAIN
# Maximum number of distinct values of a feature whose values are domains or classes.
_MAX_VALUES = 1000
_DTYPES = ("string", "int64")
# Random stream for drawing training clients, distinct from other draws with the run's seed.
_STREAM = 12
# Name of the evaluated split if the option selects the training clients. It is not "train", which
# denotes cohorts.
_EVALUATED_TRAIN = "train_clients"
# Kinds of import warnings that runs print again. Large clients are not among them, as runs count
# these themselves.
_IMPORT_REMARKS = ("class_shares", "classes_not_in_train", "copies_in_train")
# File names of TFF's datasets.
_TFF_FILES = {"emnist": "emnist_all.sqlite", "stackoverflow": "stackoverflow.sqlite"}


@dataclasses.dataclass(frozen=True)
class SplitOptions(Options):
    """Options of every task on a store, for the training and test clients.

    Attributes:
        test_split: Split to evaluate on: test, or heldout while tuning.
        train_share: Fraction of the training clients to train on, drawn with the seed; the others
            are evaluated instead of the test clients.
    """

    test_split: str = TEST_SPLIT
    train_share: Optional[Annotated[float, Within(above=0, below=1.0)]] = None

    @property
    def splits(self) -> tuple[str, str]:
        """Names of the splits that the task reads."""
        return TRAIN_SPLIT, self.test_split


@dataclasses.dataclass(frozen=True)
class DomainOptions(SplitOptions):
    """Options of tasks whose store names the domains.

    Attributes:
        domain_feature: Feature of the store that contains an example's domain: domain, as imported,
            or another string or integer feature, such as type in a store of Stack Exchange.
    """

    domain_feature: str = DOMAIN


def with_split(task: Task, options: SplitOptions, seed: int) -> Task:
    """Returns a task with the training and test clients that its options choose.

    Args:
        task: The task, with the clients of `test_split`.
        options: The task's options.
        seed: Seed of the run, with which the training clients are divided.
    """
    split, share = options.test_split, options.train_share
    if share is None:
        name = _EVALUATED_TRAIN if split == TRAIN_SPLIT else split
        return dataclasses.replace(task, test_split=name)
    if split != TEST_SPLIT:
        raise options.error("test_split", "test with train_share, which evaluates training clients")
    ids = np.array(task.train.client_ids)
    number = round(share * len(ids))
    if not 1 <= number < len(ids):
        division = Verbatim(f"{share:g}, {number} of {len(ids)} training clients")
        expected = "a fraction that keeps clients to train and others to evaluate"
        raise options.error("train_share", expected, division)
    drawn = np.random.default_rng([seed, _STREAM]).permutation(ids).tolist()
    train, test = (SelectedClients(task.train, part) for part in (drawn[:number], drawn[number:]))
    return dataclasses.replace(task, train=train, test=test, test_split=split)


# Function that maps a client's id and columns to the domain id of each example.
DomainLookup = Callable[[str, Mapping[str, np.ndarray]], np.ndarray]


def open_store(path: Path, features: Mapping[str, Feature]) -> Store:
    """Opens a store, and checks that its examples have the given features.

    Args:
        features: The features that the task needs. Stored shapes may differ if their sizes are
            equal, because TFF's stores do not record shapes.
    """
    store = load_store(path)
    stored = store.description.features
    if not all(n in stored and stored[n].kind == f.kind for n, f in features.items()):
        raise UserError(
            f"{path}: expected examples with {_described(features)} for this task, found "
            f"{_described(stored)}"
        )
    return store


def import_remarks(store: Store) -> list[Remark]:
    """Returns those warnings of a store's import that runs print again."""
    notes = store.content.notes if isinstance(store, ArrowStore) else {}
    return [
        Remark(
            kind=remark["kind"],
            text=remark["text"],
            figures={name: v for name, v in remark.items() if name not in ("kind", "text")},
        )
        for remark in notes.get("remarks", ())
        if remark["kind"] in _IMPORT_REMARKS
    ]


def _described(features: Mapping[str, Feature]) -> str:
    return ", ".join(
        f"{name} ({feature.dtype}{list(feature.shape) if feature.shape else ''})"
        for name, feature in features.items()
    )


def domains_by_name(domain_names: Sequence[str], path: Path, feature: str = DOMAIN) -> DomainLookup:
    """Returns a function that reads each example's domain name and returns its domain id.

    Args:
        domain_names: The task's domains.
        path: The store, for messages.
        feature: The feature that contains the name; numbers are converted to strings.
    """
    id_by_name = {name: i for i, name in enumerate(domain_names)}

    def lookup_domains(client_id: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        names = as_texts(columns[feature])
        unknown = next((name for name in names if name not in id_by_name), None)
        if unknown is not None:
            raise UserError(
                f"{path}: client {client_id}: expected domains {', '.join(domain_names)}, found "
                f"{unknown!r}"
            )
        return np.array([id_by_name[name] for name in names], np.int32)

    return lookup_domains


def read_labels(columns: Mapping[str, np.ndarray], num_classes: int, where: str) -> np.ndarray:
    """Checks and returns a client's labels, int32 [n]."""
    check_labels(columns[LABEL], num_classes, where)
    return columns[LABEL].astype(np.int32)


def text_inputs(store: Store, kind: str) -> ModelInputs:
    """Returns the description of a text model's only input.

    Args:
        kind: A constant of `data.inputs`, such as `TEXT`.
    """
    columns = store.description.columns
    column = None if columns is None else columns.roles.get("text")
    return ModelInputs({ONLY: Whole(kind, column)}, columns)


def data_fingerprint(store: Store) -> dict[str, str]:
    """Returns the entry of a `Task.fingerprint` that changes with any example of the store."""
    return {DATA: store.digest()}


@dataclasses.dataclass(frozen=True)
class StoredDomains:
    """The domains of a task, and the feature of the store that contains them.

    Attributes:
        names: Names of the domains, in the order of their ids.
        feature: Name of the feature that contains an example's domain.
        kind: Dtype and shape of this feature.
    """

    names: tuple[str, ...]
    feature: str = DOMAIN
    kind: Feature = Feature("string")

    @property
    def are_the_stores(self) -> bool:
        """Whether the store counts each client's examples by these domains."""
        return self.feature == DOMAIN

    @property
    def features(self) -> Mapping[str, Feature]:
        """The feature that contains an example's domain, by its name."""
        return {self.feature: self.kind}

    def domain_lookup(self, store: Store) -> DomainLookup:
        """Returns the function that returns each example's domain id."""
        return domains_by_name(self.names, store.path, self.feature)


def chosen_domains(store: Store, options: DomainOptions) -> StoredDomains:
    """Returns the domains that `domain_feature` chooses.

    If the feature is not "domain", each of its values is a domain; see `distinct_values`.
    """
    feature = options.domain_feature
    if feature == DOMAIN:
        if not store.description.domains:
            raise UserError(
                f"{store.path}: expected a store that names its domains, found one that TFF wrote"
            )
        return StoredDomains(store.description.domains)
    names = distinct_values(store, feature, options.splits, "domain_feature", "domains")
    return StoredDomains(names, feature, store.description.features[feature])


def distinct_values(
    store: Store, feature: str, splits: Sequence[str], option: str, noun: str
) -> tuple[str, ...]:
    """Returns a feature's distinct values as strings: strings sorted, or integers ascending.

    This reads every example of the splits once.

    Args:
        feature: Name of the feature.
        splits: Names of the splits to read.
        option: The option that names the feature, for messages.
        noun: Plural noun for the values, for messages.
    """
    features = store.description.features
    possible = [n for n, f in features.items() if f.dtype in _DTYPES and f.shape == ()]
    if feature not in possible:
        expected = (
            f"a text or a whole number of every example of {store.path}, which has "
            f"{', '.join(possible)}"
        )
        raise OptionError(option, expected, feature)
    values: set[Any] = set()
    for split in dict.fromkeys(splits):
        for client_id in store.client_ids(split):
            columns = store.columns(split, client_id, {feature: features[feature]})
            values.update(columns[feature].tolist())
            if len(values) > _MAX_VALUES:
                problem = Verbatim(f"more values of {feature} in {store.path}")
                raise OptionError(option, f"at most {_MAX_VALUES} {noun}", problem)
    return tuple(map(as_text, sorted(values)))


def as_text(value: Any) -> str:
    """Returns a feature's value as a string."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def as_texts(column: np.ndarray) -> list[str]:
    """Returns a column's values as strings."""
    return [as_text(value) for value in column.tolist()]


def tff_store(name: str, cache_dir: Optional[Path]) -> Path:
    """Returns the file of one of TFF's datasets; TFF downloads it if it is missing.

    EMNIST has the splits all_train and all_test (62 classes, 3,400 writers), digits_only_train and
    digits_only_test (10 classes, 3,383 writers); Stack Overflow has 342,477 clients in the splits
    train, heldout and test.

    Args:
        name: Name of the dataset: emnist or stackoverflow.
        cache_dir: Folder where TFF keeps the file; TFF's default if None.
    """
    folder = Path.home() / ".tff" if cache_dir is None else cache_dir
    path = folder / _TFF_FILES[name]
    if not path.is_file():
        with _downloading(path.name, "data", "a client store") as datasets:
            getattr(datasets, name).load_data(cache_dir=str(folder))
    return path


def stackoverflow_words(cache_dir: Optional[Path], size: int) -> tuple[str, ...]:
    """Returns the `size` words of TFF's Stack Overflow that the most training users have used."""
    folder = None if cache_dir is None else str(cache_dir)
    with _downloading("stackoverflow.word_count", "vocabulary", "a file of words") as datasets:
        return tuple(datasets.stackoverflow.load_word_counts(folder, size))


@contextlib.contextmanager
def _downloading(file: str, option: str, noun: str) -> Iterator[Any]:
    """Yields TFF's datasets, and raises OptionError if a download fails.

    Args:
        file: Name of the file, for messages.
        option: The option that replaces the file, for messages.
        noun: Noun phrase for that option's value, for messages.
    """
    # Import on demand, as the bridge loads TFF.
    from tff_agnostic.computations.tff_bridge.programs import simulation_datasets

    try:
        yield simulation_datasets()
    except Exception as e:  # A download may raise any error.
        reason = " ".join(str(e).split()) or type(e).__name__
        expected = f"{noun}, as TensorFlow Federated could not download {file} ({reason})"
        raise OptionError(option, expected, Verbatim("none")) from e
