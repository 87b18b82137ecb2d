"""Model inputs from stores of features, and their labels; a split as arrays for other libraries."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

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
    one_hot,
    vector_of,
)
from tff_agnostic.data.store import Store, parse_examples
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEXT, TOKENS, Feature, StoreDescription
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry
from tff_agnostic.tasks.stored import distinct_values, labels_of, texts_of

# The one-hot categories, where they are no part of the only vector.
CATEGORIES = "categories"


class CategoryEncoding(abc.ABC):
    """How categories are numbers. An id is 0 where the value is missing or not known.

    Args:
        categories: The known values of each categorical column; value k has the id k + 1.
    """

    def __init__(self, categories: Mapping[str, Sequence[str]]) -> None:
        self._categories = categories
        self._ids = {
            column: {value.encode(): k for k, value in enumerate(values, start=1)}
            for column, values in categories.items()
        }

    @abc.abstractmethod
    def specs(self, others: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
        """Returns the specs of all inputs, given those that hold no categories."""

    @abc.abstractmethod
    def inputs(
        self, columns: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns all inputs, given a client's categories as bytes [n], and its other inputs."""

    @abc.abstractmethod
    def described(
        self, others: Mapping[str, tf.TensorSpec], inputs: Mapping[str, Input]
    ) -> dict[str, Input]:
        """Returns what all inputs are, given the specs and the meaning of the others."""

    def ids(self, columns: Mapping[str, np.ndarray], column: str) -> np.ndarray:
        """Returns the ids of a column's values, int32 [n]."""
        known = self._ids[column]
        return np.array([known.get(value, 0) for value in columns[column]], np.int32)


class CategoryIds(CategoryEncoding):
    """Each column is an input int32 [n] of ids, for an embedding of its own."""

    def specs(self, others: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
        """Returns the others', and one called as each column."""
        return {**others, **{name: tf.TensorSpec([None], tf.int32) for name in self._categories}}

    def inputs(
        self, columns: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns the others, and the ids of each column."""
        return {**others, **{name: self.ids(columns, name) for name in self._categories}}

    def described(
        self, others: Mapping[str, tf.TensorSpec], inputs: Mapping[str, Input]
    ) -> dict[str, Input]:
        """Returns what the others are, and that each column is ids."""
        del others
        ids = {name: Whole(IDS, name, tuple(v)) for name, v in self._categories.items()}
        return {**inputs, **ids}


class OneHot(CategoryEncoding):
    """All columns are one vector, with an entry for each known value, in the columns' order.

    It follows the numbers where these are a vector and the only other input, as one vector; and is
    an input of its own otherwise.
    """

    def specs(self, others: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
        """Returns the others', or the only one's, with the entries of the categories."""
        size = sum(map(len, self._categories.values()))
        name = _only_vector(others)
        if name is None:
            return {**others, CATEGORIES: tf.TensorSpec([None, size], tf.float32)}
        return {name: tf.TensorSpec([None, others[name].shape[1] + size], tf.float32)}

    def inputs(
        self, columns: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns the others, or the only one, with the entries of the categories."""
        parts = [self._one_hot(columns, column) for column in self._categories]
        name = _only_vector(others)
        if name is None:
            return {**others, CATEGORIES: np.concatenate(parts, axis=1)}
        return {name: np.concatenate([others[name], *parts], axis=1)}

    def described(
        self, others: Mapping[str, tf.TensorSpec], inputs: Mapping[str, Input]
    ) -> dict[str, Input]:
        """Returns what the others are, or the only one, with the entries of the categories."""
        entries, name = one_hot(self._categories), _only_vector(others)
        if name is None:
            return {**inputs, CATEGORIES: entries}
        numbers = inputs[name]
        assert isinstance(numbers, tuple)
        return {name: (*numbers, *entries)}

    def _one_hot(self, columns: Mapping[str, np.ndarray], column: str) -> np.ndarray:
        ids = self.ids(columns, column)
        known = np.arange(1, len(self._categories[column]) + 1)
        return (ids[:, np.newaxis] == known).astype(np.float32)


CATEGORY_ENCODINGS: Registry[type[CategoryEncoding]] = Registry(
    "encoding of categories", {"one_hot": OneHot, "ids": CategoryIds}
)


class StoredInputs:
    """The inputs of a model, from a store of features.

    Args:
        encoding: A name of `CATEGORY_ENCODINGS`.
        categories: The known values of each categorical column; the store's own if None.

    Attributes:
        features: The features to read.
        categories: The known values of each categorical column.
        spec: Spec of x with a first dimension of None: one, or a mapping of them by name.
        described: What they are.
    """

    def __init__(
        self,
        store: Store,
        encoding: str,
        categories: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> None:
        found = store.description.features
        columns = store.description.categories
        self.categories = {name: tuple((categories or columns)[name]) for name in columns}
        self._numbers = {
            name: feature
            for name, feature in sorted(found.items())
            if feature.dtype != "string" and name != LABEL
        }
        self.features = {**self._numbers, **{name: Feature("string") for name in columns}}
        if not self.features:
            raise UserError(
                f"{store.path}: --task=custom needs texts (tokens), or a {LABEL} and numbers, "
                f"found {', '.join(found)}"
            )
        self._encoding = CATEGORY_ENCODINGS[encoding](self.categories)
        specs = {name: spec_of(feature) for name, feature in self._numbers.items()}
        inputs = {name: _described(store.description, name) for name in self._numbers}
        if columns:
            if CATEGORIES in specs:
                raise UserError(
                    f"{store.path}: expected no other input called {CATEGORIES}, found one"
                )
            inputs = self._encoding.described(specs, inputs)
            specs = self._encoding.specs(specs)
        self._is_single = len(specs) == 1
        if self._is_single:
            inputs = {ONLY: next(iter(inputs.values()))}
        self.described = ModelInputs(inputs, store.description.columns)
        self.spec: Any = next(iter(specs.values())) if self._is_single else specs

    def x_of(self, columns: Mapping[str, np.ndarray], where: str) -> Any:
        """Returns x of a client's examples.

        Args:
            where: Which client, for messages.
        """
        x = {name: in_32_bits(columns[name], name, where) for name in self._numbers}
        if self.categories:
            x = self._encoding.inputs(columns, x)
        return next(iter(x.values())) if self._is_single else x

    def names(self) -> Any:
        """Returns what `ModelData.x_names` holds."""
        found = {
            name: None
            if isinstance(one, Whole) or any(entry.kind == UNKNOWN for entry in one)
            else tuple(entry.name for entry in one)
            for name, one in self.described.inputs.items()
        }
        return found[ONLY] if self._is_single else found

    def of_numbers(self, value_of: Callable[[Entry], float]) -> Any:
        """Returns a value of each number, as `ModelData.x_mean` has the mean."""
        specs = {ONLY: self.spec} if self._is_single else self.spec
        found = {
            name: _values(one, specs[name].shape[1:], value_of)
            for name, one in self.described.inputs.items()
        }
        return found[ONLY] if self._is_single else found

    def fingerprint(self) -> dict[str, str]:
        """Returns the categories' part of a `Task.fingerprint`, empty without categories."""
        if not self.categories:
            return {}
        # In the order of the columns, which is the order of the inputs.
        return {CATEGORIES: digest(json.dumps(list(self.categories.items())).encode())}


def _values(
    one: Input, shape: Sequence[int], value_of: Callable[[Entry], float]
) -> Optional[np.ndarray]:
    """Returns a value of each number of an input; None where statistics are not known."""
    if isinstance(one, Whole) or any(
        entry.kind in (NUMBER, UNKNOWN) and entry.statistics is None for entry in one
    ):
        return None
    return np.array([value_of(entry) for entry in one], np.float32).reshape(shape)


def _described(description: StoreDescription, name: str) -> Input:
    """Returns what an input of numbers is."""
    columns = description.columns
    if columns is not None and name in columns.images:
        return Whole(IMAGE, columns.images[name])
    is_vector = len(description.features[name].shape) == 1
    if is_vector or (columns is not None and name in columns.numbers):
        return vector_of(description, name)
    return Whole(UNKNOWN)


def spec_of(feature: Feature) -> tf.TensorSpec:
    """Returns the spec of a feature of numbers.

    Whole numbers are int32 to models, as to TensorFlow's embeddings and losses.
    """
    dtype = tf.int32 if feature.dtype == "int64" else tf.float32
    return tf.TensorSpec([None, *feature.shape], dtype)


def in_32_bits(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Returns whole numbers as int32, and others unchanged.

    Args:
        name: Name of their feature, for messages.
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


def _only_vector(others: Mapping[str, Any]) -> Optional[str]:
    """Returns the name of the only input, if that is a vector of real numbers for each example."""
    if len(others) != 1:
        return None
    ((name, other),) = others.items()
    is_real = other.dtype in (tf.float32, np.float32)
    return name if is_real and len(other.shape) == 2 else None


class StoredLabels:
    """The labels of a store.

    Attributes:
        name: Name of the feature to read.
        feature: That feature.
        spec: Spec of y with a first dimension of None: int32 [n] of classes and other whole
            numbers, float32 [n] of real ones.
        num_classes: Labels are in [0, num_classes), or None if they are no classes.
        class_names: Names of the classes, if they have any.
    """

    def __init__(self, store: Store) -> None:
        description = store.description
        if LABEL not in description.features:
            raise UserError(
                f"{store.path}: expected examples with a {LABEL}, found "
                f"{', '.join(description.features)}"
            )
        self.name = LABEL
        self.feature: Feature = description.features[LABEL]
        self.spec = spec_of(self.feature)
        self.num_classes = description.num_classes
        self.class_names = description.class_names

    def y_of(self, columns: Mapping[str, np.ndarray], where: str) -> np.ndarray:
        """Returns y of a client's examples.

        Args:
            where: Which client, for messages.
        """
        if self.num_classes is None:
            return in_32_bits(columns[LABEL], LABEL, where)
        return labels_of(columns, self.num_classes, where)

    def fingerprint(self) -> dict[str, str]:
        """Returns the classes' part of a `Task.fingerprint`, empty if they have no names."""
        return {} if self.class_names is None else {"classes": ", ".join(self.class_names)}


class ChosenLabels:
    """Classes of another feature than the label, such as question or answer.

    Args:
        feature: Name of the feature, of texts or whole numbers; every value is a class.
        splits: Names of the splits that are read.

    Attributes:
        name: Name of the feature.
        feature: That feature.
        spec: Spec of y, int32 [n].
        num_classes: Classes are in [0, num_classes).
        class_names: Their names.
    """

    def __init__(self, store: Store, feature: str, splits: Sequence[str]) -> None:
        names = distinct_values(store, feature, splits, "--label_feature", "classes")
        if len(names) < 2:
            raise UserError(
                f"--label_feature: expected at least 2 classes, found that {feature} is {names[0]} "
                f"in all examples of {store.path}"
            )
        self.name = feature
        self.feature = store.description.features[feature]
        self.spec = tf.TensorSpec([None], tf.int32)
        self.num_classes = len(names)
        self.class_names: Optional[tuple[str, ...]] = tuple(names)
        self._ids = {name: i for i, name in enumerate(names)}

    def y_of(self, columns: Mapping[str, np.ndarray], where: str) -> np.ndarray:
        """Returns the classes of a client's examples; see `StoredLabels`."""
        del where
        return np.array([self._ids[name] for name in texts_of(columns[self.name])], np.int32)

    def fingerprint(self) -> dict[str, str]:
        """Returns the classes' part of a `Task.fingerprint`."""
        return {"classes": ", ".join(self._ids)}


AnyLabels = Union[StoredLabels, ChosenLabels]


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
