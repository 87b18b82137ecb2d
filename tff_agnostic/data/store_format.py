"""The description of a client store: its features, columns and statistics, as JSON; records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np

from plan_runner import client_store

# The feature that names an example's domain.
DOMAIN = client_store.DOMAIN
# The feature that holds a sentence, its words separated by single spaces.
TOKENS = "tokens"
LABEL = client_store.LABEL
# The split to train on: a store's description of its values is of this split's clients.
TRAIN = client_store.TRAIN
TEST = "test"
TEXT = "text"
FEATURES = "features"
KINDS = (TEXT, FEATURES)
# The category of missing values, where they have one.
MISSING = "<missing>"
# No category: the value of a categorical column that is left out of it.
NO_CATEGORY = ""
_DTYPES = ("string", "int64", "float32")


@dataclasses.dataclass(frozen=True)
class NumberStatistics:
    """What the values of one number are.

    Attributes:
        count: How many values there are.
        missing: How many examples lack it.
        mean: Their mean; 0 without values.
        deviation: Their standard deviation, of all of them and not of a sample: its square is the
            mean of squared differences from the mean.
        least: The smallest; None without values.
        most: The largest; None without values.
    """

    count: int
    missing: int
    mean: float
    deviation: float
    least: Optional[float]
    most: Optional[float]

    def to_json(self) -> list[Optional[float]]:
        """Returns the same as JSON values."""
        return [self.count, self.missing, self.mean, self.deviation, self.least, self.most]

    @classmethod
    def of_json(cls, value: Any) -> NumberStatistics:
        """Returns what `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        count, missing, mean, deviation, least, most = value
        found = cls(count, missing, mean, deviation, least, most)
        ends = [] if least is None and most is None and count == 0 else [least, most]
        are_numbers = all(
            isinstance(number, (int, float)) and math.isfinite(number)
            for number in (count, missing, mean, deviation, *ends)
        )
        if not are_numbers or min(count, missing, deviation) < 0:
            raise ValueError(f"expected the statistics of numbers, found {value!r:.100}")
        return found

    @property
    def size(self) -> float:
        """The root of the mean of squares: how large values are."""
        return float(np.hypot(self.mean, self.deviation))

    @property
    def unit(self) -> float:
        """What to divide by for a deviation of 1; 1 where all values are the same."""
        return self.deviation or 1.0


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of every example.

    Attributes:
        dtype: "string", "int64" or "float32", as in a `tf.train.Example`.
        shape: Shape of one example's value.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def kind(self) -> tuple[str, int]:
        """Type and number of the values; TFF's stores do not record shapes."""
        return self.dtype, math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class StoredColumns:
    """The columns of the table that a store was made of.

    Attributes:
        roles: The column of the client, the domain, the label and the text, where there is one, by
            these names.
        numbers: By input, the column of each of its numbers in their order; a column with lists
            comes once for each number of a list.
        images: The column of each input that is an image, by its name.
        missing_cells: What stands in a cell without a value; None where none may be missing.
        are_marked: Whether the numbers of an input are followed by a mark for each column, 1 where
            its value is missing, and a missing category is one.
        words: How a text became words: "pattern", of a word (None: what spaces separate), "letters"
            (whether other signs in it are left out), "case" and "punctuation".
    """

    roles: Mapping[str, str]
    numbers: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing_cells: Optional[tuple[str, ...]] = None
    are_marked: bool = False
    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class StoreDescription:
    """The description of a store.

    Attributes:
        kind: "text" or "features"; None in a store that TFF wrote.
        features: The features of every example, by name.
        domains: Names of all domains, sorted; empty in a store that TFF wrote.
        num_classes: Labels are whole numbers in [0, num_classes); None if they are not.
        class_names: Names of the classes that labels count, if they have any.
        source: Where it came from, for people.
        categories: The values that are known of each categorical column, a string feature: those
            of training clients, sorted; value k has the id k + 1.
        label_range: Smallest and largest label of training clients, where labels are real numbers;
            None where that is not known.
        columns: The columns that it was made of; None where that is not known.
        statistics: By input, those of its numbers, without marks, of training clients. They are of
            the values of the source.
        is_standardized: Whether the numbers were brought to mean 0 and deviation 1 by them.
    """

    kind: Optional[str]
    features: Mapping[str, Feature]
    domains: tuple[str, ...] = ()
    num_classes: Optional[int] = None
    class_names: Optional[tuple[str, ...]] = None
    source: str = ""
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    label_range: Optional[tuple[float, float]] = None
    columns: Optional[StoredColumns] = None
    statistics: Mapping[str, tuple[NumberStatistics, ...]] = dataclasses.field(default_factory=dict)
    is_standardized: bool = False

    def num_numbers(self, name: str) -> int:
        """Returns how many numbers an input has, without marks; 0 if there is none of that name."""
        if self.columns is not None and name in self.columns.numbers:
            return len(self.columns.numbers[name])
        return math.prod(self.features[name].shape) if name in self.features else 0

    def to_json(self) -> str:
        """Returns the description as JSON with its version."""
        value = dataclasses.asdict(self)
        value["statistics"] = {
            name: [one.to_json() for one in numbers] for name, numbers in self.statistics.items()
        }
        for name in ("categories", "label_range", "columns", "statistics", "is_standardized"):
            if not value[name]:
                del value[name]
        if "categories" in value:
            # Pairs: the order of columns is that of the inputs.
            value["categories"] = list(value["categories"].items())
        return json.dumps({"version": client_store.FORMAT_VERSION, **value}, sort_keys=True)


def description_from_json(text: str) -> StoreDescription:
    """Returns the description that `StoreDescription.to_json` wrote.

    Raises:
        ValueError: If it is of another version, or not a description.
    """
    return description_of(client_store.described_by(text))


def description_of(value: Mapping[str, Any]) -> StoreDescription:
    """Returns the description with that JSON; raises as `description_from_json` does."""
    try:
        names = value["class_names"]
        label_range = value.get("label_range")
        description = StoreDescription(
            kind=value["kind"],
            features={
                name: Feature(feature["dtype"], tuple(feature["shape"]))
                for name, feature in value["features"].items()
            },
            domains=tuple(value["domains"]),
            num_classes=value["num_classes"],
            class_names=None if names is None else tuple(names),
            source=value["source"],
            categories={k: tuple(v) for k, v in value.get("categories", ())},
            label_range=None if label_range is None else (label_range[0], label_range[1]),
            columns=_columns_of(value.get("columns")),
            statistics={
                name: tuple(map(NumberStatistics.of_json, numbers))
                for name, numbers in value.get("statistics", {}).items()
            },
            is_standardized=value.get("is_standardized", False),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise ValueError(f"expected the description of a store, found another one ({e!r})") from e
    _check_types(description)
    return description


def _columns_of(value: Any) -> Optional[StoredColumns]:
    if value is None:
        return None
    missing = value["missing_cells"]
    return StoredColumns(
        roles=dict(value["roles"]),
        numbers={name: tuple(columns) for name, columns in value["numbers"].items()},
        images=dict(value["images"]),
        missing_cells=None if missing is None else tuple(missing),
        are_marked=value["are_marked"],
        words=dict(value["words"]),
    )


def _check_types(found: StoreDescription) -> None:
    """Raises a `ValueError` that names a part of a description that is of another type."""
    has_right_type = {
        "kind": found.kind in KINDS,
        "features": all(
            feature.dtype in _DTYPES and all(map(_is_count, feature.shape))
            for feature in found.features.values()
        ),
        "domains": _are_texts(found.domains),
        "num_classes": found.num_classes is None or _is_count(found.num_classes),
        "class_names": found.class_names is None or _are_texts(found.class_names),
        "source": _are_texts([found.source]),
        "categories": all(map(_are_texts, [list(found.categories), *found.categories.values()])),
        "label_range": found.label_range is None or all(map(_is_number, found.label_range)),
        "columns": found.columns is None or _are_columns(found.columns, found.features),
        "statistics": all(
            len(numbers) == found.num_numbers(name) for name, numbers in found.statistics.items()
        ),
        "is_standardized": isinstance(found.is_standardized, bool),
    }
    for name, is_right in has_right_type.items():
        if not is_right:
            raise ValueError(
                "expected the description of a store, found another one "
                f"({name}: {getattr(found, name)!r:.100})"
            )


def _are_columns(found: StoredColumns, features: Mapping[str, Feature]) -> bool:
    texts = [*found.roles.values(), *found.images.values(), *(found.missing_cells or ())]
    return (
        all(map(_are_texts, [texts, *found.numbers.values()]))
        and isinstance(found.are_marked, bool)
        and all(
            name in features
            and math.prod(features[name].shape)
            == len(columns) + (len(set(columns)) if found.are_marked else 0)
            for name, columns in found.numbers.items()
        )
    )


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and -math.inf < value < math.inf


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


Value = Union[str, int, float, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Record:
    """One example of one client.

    Attributes:
        client: The client's id.
        domain: Name of the example's domain.
        features: Everything else: "tokens" (words separated by single spaces) of a sentence, or
            "label" and whatever it is told by.
        split: "train", "heldout" or "test" where the source determines it.
    """

    client: str
    domain: str
    features: Mapping[str, Value]
    split: Optional[str] = None
