"""Common parts of tasks that read client stores: domains, values, TFF's own data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, Optional

import numpy as np

from tff_agnostic.base.options import Options, Within
from tff_agnostic.data.clients import check_labels
from tff_agnostic.data.inputs import ONLY, ModelInputs, Whole
from tff_agnostic.data.store import Store, parse_examples
from tff_agnostic.data.store_format import DOMAIN, LABEL, TRAIN, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.task import DATA, TEST_SPLIT

TRAIN_SPLIT = TRAIN
# More than anybody looks at one by one; a feature with more groups nothing.
_MAX_VALUES = 1000
_DTYPES = ("string", "int64")


@dataclasses.dataclass(frozen=True)
class SplitOptions(Options):
    """Options of every task on a store: its training clients and its test clients.

    Attributes:
        test_split: Split to evaluate on: test, or heldout while tuning.
        train_share: Fraction of the training clients that train, drawn by the seed; the others are
            evaluated instead of the test clients.
    """

    test_split: str = TEST_SPLIT
    train_share: Optional[Annotated[float, Within(above=0, below=1.0)]] = None


# (client id, columns) -> the domain id of each example, -1 for one that is left out.
DomainsOf = Callable[[str, Mapping[str, np.ndarray]], np.ndarray]


def open_store(path: Path, features: Mapping[str, Feature]) -> Store:
    """Returns an opened store, after checking the features of its examples.

    Args:
        features: The features that the task needs. A value may have another shape of the same size,
            because TFF's stores do not record shapes.
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
                f"{path}: expected examples with {_described(features)} for this task, found "
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
    """Returns the labels, int32 [n]."""
    check_labels(columns[LABEL], num_classes, where)
    return columns[LABEL].astype(np.int32)


def text_inputs(store: Store, kind: str) -> ModelInputs:
    """Returns what the only input of a model of texts is: a name of `data.inputs`."""
    columns = store.description.columns
    column = None if columns is None else columns.roles.get("text")
    return ModelInputs({ONLY: Whole(kind, column)}, columns)


def data_fingerprint(store: Store) -> dict[str, str]:
    """Returns the store's part of a `Task.fingerprint`: a changed store is another one."""
    return {DATA: store.digest()}


def stored_domains(store: Store) -> tuple[str, ...]:
    """Returns the names of the domains of a store that import_data made."""
    if not store.description.domains:
        raise UserError(
            f"{store.path}: expected a store that names its domains, found one that TFF wrote"
        )
    return store.description.domains


@dataclasses.dataclass(frozen=True)
class DomainOptions(Options):
    """The option of tasks with the domains that a store names.

    Attributes:
        domain_feature: Feature of the store with an example's domain: domain, as imported, or
            another string or integer, such as type in a store of Stack Exchange.
    """

    domain_feature: str = DOMAIN


@dataclasses.dataclass(frozen=True)
class StoredDomains:
    """The domains of a task, as a store names them.

    Attributes:
        names: Their names, in the order of their ids.
        feature: Name of the feature with an example's domain.
        kind: That feature.
    """

    names: tuple[str, ...]
    feature: str = DOMAIN
    kind: Feature = Feature("string")

    @property
    def are_the_stores(self) -> bool:
        """Whether they are what the store counts by client."""
        return self.feature == DOMAIN

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features to parse of an example for its domain."""
        return {self.feature: self.kind}

    def of_examples(self, store: Store) -> DomainsOf:
        """Returns the function that looks up the domain of each example."""
        return domains_by_name(self.names, store.path, self.feature)


def chosen_domains(store: Store, feature: str, splits: Sequence[str]) -> StoredDomains:
    """Returns the domains that --domain_feature chooses.

    Names of other features than "domain" are all values that it has; see `distinct_values`.

    Args:
        splits: Names of the splits that the task reads.
    """
    if feature == DOMAIN:
        return StoredDomains(stored_domains(store))
    names = distinct_values(store, feature, splits, "--domain_feature", "domains")
    return StoredDomains(names, feature, store.description.features[feature])


def distinct_values(
    store: Store, feature: str, splits: Sequence[str], flag: str, what: str
) -> tuple[str, ...]:
    """Returns the values of a feature, in alphabetical order, or numbers in ascending order.

    To find them, every example of the splits is read once.

    Args:
        splits: Names of the splits to read.
        flag: The flag that names the feature, for messages.
        what: The role of its values, for messages.
    """
    features = store.description.features
    possible = [n for n, f in features.items() if f.dtype in _DTYPES and f.shape == ()]
    if feature not in possible:
        raise UserError(
            f"{flag}: expected a text or a whole number of every example of {store.path}, which "
            f"has {', '.join(possible)}, found {feature!r}"
        )
    values: set[Any] = set()
    for split in dict.fromkeys(splits):
        for client_id in store.client_ids(split):
            where = f"{store.path}: client {client_id}"
            columns = parse_examples(
                store.read(split, client_id), {feature: features[feature]}, where
            )
            values.update(columns[feature].tolist())
            if len(values) > _MAX_VALUES:
                raise UserError(
                    f"{flag}: expected at most {_MAX_VALUES} {what}, found more values of "
                    f"{feature} in {store.path}"
                )
    return tuple(map(as_text, sorted(values)))


def as_text(value: Any) -> str:
    """Returns a value of a feature as a name."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def texts_of(column: np.ndarray) -> list[str]:
    """Returns the values of a column as names."""
    return [as_text(value) for value in column.tolist()]


def _tff_datasets() -> Any:
    # What of TFF is used stands in its bridge, which loads it.
    from tff_agnostic.computations.tff_bridge.programs import simulation_datasets

    return simulation_datasets()


def emnist_store(cache_dir: Optional[Path]) -> Path:
    """Returns the file of TFF's EMNIST.

    Its splits are all_train and all_test (62 classes, 3,400 writers), digits_only_train and
    digits_only_test (10 classes, 3,383 writers).

    Args:
        cache_dir: Where TFF keeps it; its own default if None.
    """
    return _fetched(cache_dir, "emnist_all.sqlite", "emnist")


def stackoverflow_store(cache_dir: Optional[Path]) -> Path:
    """Returns the file of TFF's Stack Overflow (342,477 clients; splits train, heldout, test)."""
    return _fetched(cache_dir, "stackoverflow.sqlite", "stackoverflow")


def stackoverflow_words(cache_dir: Optional[Path], size: int) -> tuple[str, ...]:
    """Returns the words that most of Stack Overflow's training users use."""
    folder = None if cache_dir is None else str(cache_dir)
    load_word_counts = _tff_datasets().stackoverflow.load_word_counts
    try:
        counts = load_word_counts(folder, size)
    except Exception as e:  # Whatever a download can raise.
        instead = "name a file of words with --vocabulary"
        raise _not_fetched("stackoverflow.word_count", e, instead) from e
    return tuple(counts)


def _fetched(cache_dir: Optional[Path], file: str, name: str) -> Path:
    folder = Path.home() / ".tff" if cache_dir is None else cache_dir
    if not (folder / file).is_file():
        load = getattr(_tff_datasets(), name).load_data
        try:
            load(cache_dir=str(folder))
        except Exception as e:  # Whatever a download can raise.
            raise _not_fetched(file, e, "name a client store with --data") from e
    return folder / file


def _not_fetched(file: str, error: Exception, instead: str) -> UserError:
    return UserError(
        f"{file}: TensorFlow Federated could not download it "
        f"({' '.join(str(error).split()) or type(error).__name__}); {instead}"
    )
