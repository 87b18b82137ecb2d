"""Reads model inputs and labels from stores of features; exports a split as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import digest
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.data.inputs import (
    IDS,
    IMAGE,
    NUMBER,
    ONLY,
    UNKNOWN,
    Entry,
    Input,
    ModelInputs,
    Whole,
    input_vector,
    one_hot,
)
from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, TOKENS, Feature, StoreDescription
from tff_agnostic.tasks.stored import as_texts, distinct_values, read_labels

# Name of the input with one-hot categories, unless they are appended to a vector of numbers.
CATEGORIES = "categories"


class StoredInputs:
    """The inputs of a model, read from a store of features.

    Categories have one of two forms. With "ids", each categorical column is an input of ids, int32
    [n], for an embedding; missing and unknown values have the id 0. With "one_hot", all categorical
    columns form one vector of zeros and ones, with an entry for each known value, in the columns'
    order; missing and unknown values are all zeros. If the numbers are a single vector, the one-hot
    entries are appended to it; otherwise they are a separate input.

    Args:
        encoding: Form of categories: "one_hot" or "ids".
        categories: The known values of each categorical column; None for the store's.

    Attributes:
        features: The features of the store to read.
        categories: The known values of each categorical column; value k has the id k + 1.
        spec: Spec of x with a first dimension of None: a single spec, or a mapping of specs by
            name.
        described: Description of the inputs.
    """

    def __init__(
        self,
        store: Store,
        encoding: str,
        categories: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> None:
        stored, columns = store.description.features, store.description.categories
        self.categories = {name: tuple((categories or columns)[name]) for name in columns}
        self._ids = {
            column: {value.encode(): k for k, value in enumerate(values, start=1)}
            for column, values in self.categories.items()
        }
        self._numbers = {
            name: feature
            for name, feature in sorted(stored.items())
            if feature.dtype != "string" and name != LABEL
        }
        self.features = {**self._numbers, **{name: Feature("string") for name in columns}}
        if not self.features:
            raise UserError(
                f"{store.path}: expected texts ({TOKENS}), or a {LABEL} and numbers, found "
                f"{', '.join(stored)}"
            )
        specs = {name: feature_spec(feature) for name, feature in self._numbers.items()}
        inputs = {name: _described(store.description, name) for name in self._numbers}
        if columns and CATEGORIES in specs:
            raise UserError(f"{store.path}: expected no other input called {CATEGORIES}, found one")
        self._are_ids = encoding == "ids"
        self._vector = CATEGORIES
        if self._are_ids:
            specs |= {name: tf.TensorSpec([None], tf.int32) for name in columns}
            inputs |= {name: Whole(IDS, name, v) for name, v in self.categories.items()}
        elif columns:
            size, entries = sum(map(len, self._ids.values())), one_hot(self.categories)
            if len(specs) == 1:
                ((name, spec),) = specs.items()
                if spec.dtype == tf.float32 and spec.shape.rank == 2:
                    numbers = inputs[name]
                    assert isinstance(numbers, tuple)
                    self._vector, size, entries = name, spec.shape[1] + size, (*numbers, *entries)
            specs[self._vector] = tf.TensorSpec([None, size], tf.float32)
            inputs[self._vector] = entries
        self._is_single = len(specs) == 1
        if self._is_single:
            inputs = {ONLY: next(iter(inputs.values()))}
        self.described = ModelInputs(inputs, store.description.columns)
        self.spec: Any = next(iter(specs.values())) if self._is_single else specs

    def build_x(self, columns: Mapping[str, np.ndarray], where: str) -> Any:
        """Returns the inputs x of a client's examples.

        Args:
            columns: The client's columns.
            where: The client, for messages.
        """
        x = {name: in_32_bits(columns[name], name, where) for name in self._numbers}
        ids = {
            column: np.array([value_ids.get(value, 0) for value in columns[column]], np.int32)
            for column, value_ids in self._ids.items()
        }
        if self._are_ids:
            x |= ids
        elif ids:
            vectors = [x[self._vector]] if self._vector in x else []
            for column, column_ids in ids.items():
                known_ids = np.arange(1, len(self._ids[column]) + 1)
                vectors.append((column_ids[:, np.newaxis] == known_ids).astype(np.float32))
            x[self._vector] = np.concatenate(vectors, axis=1)
        return next(iter(x.values())) if self._is_single else x

    def names(self) -> Any:
        """Returns the names of the entries of x; see `ModelData.x_names`."""
        names = {
            name: None
            if isinstance(one, Whole) or any(entry.kind == UNKNOWN for entry in one)
            else tuple(entry.name for entry in one)
            for name, one in self.described.inputs.items()
        }
        return names[ONLY] if self._is_single else names

    def map_numbers(self, get_value: Callable[[Entry], float]) -> Any:
        """Returns one value for each entry of x, in the form of `ModelData.x_mean`."""
        specs = {ONLY: self.spec} if self._is_single else self.spec
        values = {
            name: _values(one, specs[name].shape[1:], get_value)
            for name, one in self.described.inputs.items()
        }
        return values[ONLY] if self._is_single else values

    def fingerprint(self) -> dict[str, str]:
        """Returns the categories' entry of a `Task.fingerprint`; empty without categories."""
        if not self.categories:
            return {}
        # The digest depends on the order of the columns, as it is the order of the inputs.
        return {CATEGORIES: digest(repr(list(self.categories.items())).encode())}


def _values(
    one: Input, shape: Sequence[int], get_value: Callable[[Entry], float]
) -> Optional[np.ndarray]:
    """Returns a value per entry of an input; None if some statistics are unknown."""
    if isinstance(one, Whole) or any(
        entry.kind in (NUMBER, UNKNOWN) and entry.statistics is None for entry in one
    ):
        return None
    return np.array([get_value(entry) for entry in one], np.float32).reshape(shape)


def _described(description: StoreDescription, name: str) -> Input:
    columns = description.columns
    if columns is not None and name in columns.images:
        return Whole(IMAGE, columns.images[name])
    is_vector = len(description.features[name].shape) == 1
    if is_vector or (columns is not None and name in columns.numbers):
        return input_vector(description, name)
    return Whole(UNKNOWN)


def feature_spec(feature: Feature) -> tf.TensorSpec:
    """Returns the spec of a numeric feature.

    Models receive integers as int32, which TensorFlow's embeddings and losses use.
    """
    dtype = tf.int32 if feature.dtype == "int64" else tf.float32
    return tf.TensorSpec([None, *feature.shape], dtype)


def in_32_bits(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Returns integers as int32, and other values unchanged.

    Args:
        name: Name of the feature, for messages.
        where: The client, for messages.
    """
    if values.dtype != np.int64:
        return values
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        row = int(np.argwhere(narrow != values)[0][0])
        raise UserError(
            f"{where}: {name}: expected whole numbers of 32 bits, found a larger one in row {row}"
        )
    return narrow


class StoredLabels:
    """The labels of a store.

    Attributes:
        name: Name of the feature to read.
        feature: Dtype and shape of this feature.
        spec: Spec of y with a first dimension of None: int32 [n] for classes and other integers,
            float32 [n] for real numbers.
        num_classes: Number of classes, if labels are classes in [0, num_classes); otherwise None.
        class_names: Names of the classes; None without names.
    """

    def __init__(self, store: Store) -> None:
        description = store.description
        if LABEL not in description.features:
            raise UserError(
                f"{store.path}: expected examples with a {LABEL}, found "
                f"{', '.join(description.features)}"
            )
        self.name = LABEL
        self.feature = description.features[LABEL]
        self.spec = feature_spec(self.feature)
        self.num_classes = description.num_classes
        self.class_names = description.class_names

    def build_y(self, columns: Mapping[str, np.ndarray], where: str) -> np.ndarray:
        """Returns the labels y of a client's examples.

        Args:
            columns: The client's columns.
            where: The client, for messages.
        """
        if self.num_classes is None:
            return in_32_bits(columns[LABEL], LABEL, where)
        return read_labels(columns, self.num_classes, where)

    def fingerprint(self) -> dict[str, str]:
        """Returns the classes' entry of a `Task.fingerprint`; empty if classes have no names."""
        return {} if self.class_names is None else {"classes": ", ".join(self.class_names)}


class ChosenLabels:
    """Classes from a feature other than the label, such as question or answer.

    Args:
        feature: Name of a string or integer feature; each of its values is a class.
        splits: Names of the splits that the task reads.

    Attributes:
        name: Name of the feature.
        feature: Dtype and shape of this feature.
        spec: Spec of y, int32 [n].
        num_classes: Number of classes; labels are in [0, num_classes).
        class_names: Names of the classes.
    """

    def __init__(self, store: Store, feature: str, splits: Sequence[str]) -> None:
        names = distinct_values(store, feature, splits, "label_feature", "classes")
        if len(names) < 2:
            only_value = Verbatim(f"{feature}={names[0]} in all examples of {store.path}")
            raise OptionError("label_feature", "at least 2 classes", only_value)
        self.name = feature
        self.feature = store.description.features[feature]
        self.spec = tf.TensorSpec([None], tf.int32)
        self.num_classes = len(names)
        self.class_names: Optional[tuple[str, ...]] = names
        self._ids = {name: i for i, name in enumerate(names)}

    def build_y(self, columns: Mapping[str, np.ndarray], where: str) -> np.ndarray:
        """Returns the classes of a client's examples; see `StoredLabels`."""
        del where
        return np.array([self._ids[name] for name in as_texts(columns[self.name])], np.int32)

    def fingerprint(self) -> dict[str, str]:
        """Returns the classes' entry of a `Task.fingerprint`."""
        return {"classes": ", ".join(self._ids)}


AnyLabels = Union[StoredLabels, ChosenLabels]


class Arrays(NamedTuple):
    """The examples of a split, client by client.

    Attributes:
        x: Inputs as in the task `custom`, with one-hot categories: an array [n, ...], or several by
            name. Texts are strings of words separated by spaces.
        y: Labels, [n]; None for texts without labels.
        domains: Domain name of each example, [n].
        clients: Client id of each example, [n].
        names: Names of the entries of x, by array if x has several arrays; None if unknown.
        class_names: Names of the classes; None without names.
    """

    x: Any
    y: Optional[np.ndarray]
    domains: np.ndarray
    clients: np.ndarray
    names: Any
    class_names: Optional[tuple[str, ...]]


def split_arrays(store: Store, split: str) -> Arrays:
    """Returns all examples of a split.

    Raises:
        UserError: If the store does not have the split.
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
        columns = store.columns(split, client, features)
        x.append(
            np.array(as_texts(columns[TOKENS]), object)
            if inputs is None
            else inputs.build_x(columns, where)
        )
        if labels is not None:
            y.append(labels.build_y(columns, where))
        domains += as_texts(columns[DOMAIN])
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
