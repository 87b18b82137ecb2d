"""The JSON description of a client store (features, columns, statistics), and its records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Optional, Union, get_args, get_origin, get_type_hints

import numpy as np

FORMAT_VERSION = 1
# The feature with the name of an example's domain.
DOMAIN = "domain"
# The feature with a sentence, whose words are separated by single spaces.
TOKENS = "tokens"
LABEL = "label"
# The training split, whose clients determine statistics and known categories.
TRAIN = "train"
TEST = "test"
TEXT = "text"
FEATURES = "features"
# Category of missing values, if they have a separate one.
MISSING = "<missing>"
# Category of unknown values, and of missing values without a separate category.
NO_CATEGORY = ""
_DTYPES = ("string", "int64", "float32")


@dataclasses.dataclass(frozen=True)
class NumberStatistics:
    """Statistics of one number of an input over many examples.

    Attributes:
        count: Number of values.
        missing: Number of examples without a value.
        mean: Mean of the values; 0 without values.
        deviation: Standard deviation of the values (the population's, with divisor n).
        least: Smallest value; None without values.
        most: Largest value; None without values.
    """

    count: int
    missing: int
    mean: float
    deviation: float
    least: Optional[float]
    most: Optional[float]

    @property
    def size(self) -> float:
        """Root mean square of the values."""
        return float(np.hypot(self.mean, self.deviation))

    @property
    def unit(self) -> float:
        """Divisor that makes the standard deviation 1; 1 if all values are equal."""
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
        """Dtype and number of the values, without the shape, which TFF's stores do not record."""
        return self.dtype, math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class StoredColumns:
    """The columns of the table from which a store was made.

    Attributes:
        roles: Column of each role: "client", "domain", "label" and "text".
        numbers: For each input, the column of each of its numbers; a column of lists occurs once
            for each number in a list.
        images: Column of each image input, by name of the input.
        missing_cells: Strings that represent a missing value; None if no value may be missing.
        are_marked: Whether the store records which values were missing. The numbers of an input are
            then followed by an indicator for each column, 1 if the column's value is missing;
            missing values of a categorical column are a separate category.
        words: Rule that splits text into words: "pattern", regular expression of a word, None to
            split at spaces; "letters", whether only letters of a word are kept; "case"; and
            "punctuation".
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
        kind: "text" or "features"; None if TFF wrote the store.
        features: The features of every example, by name.
        domains: Names of all domains, sorted; empty if TFF wrote the store.
        num_classes: Number of classes; labels are integers in [0, num_classes). None if labels are
            not classes.
        class_names: Names of the classes, in the order of labels; None if they have no names.
        source: Human-readable origin of the data.
        categories: Known values of each categorical column, sorted; value k has the id k + 1.
        label_range: Smallest and largest label of training clients, if labels are real numbers;
            None if unknown.
        columns: The columns of the source; None if unknown.
        statistics: Statistics of each input's numbers over training clients, before
            standardisation.
        is_standardized: Whether the numbers are standardised by these statistics.
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
        """Returns the length of an input without missing-value indicators; 0 if unknown."""
        if self.columns is not None and name in self.columns.numbers:
            return len(self.columns.numbers[name])
        return math.prod(self.features[name].shape) if name in self.features else 0

    def to_json(self) -> str:
        """Returns the description as JSON with its version."""
        value = dataclasses.asdict(self)
        value["statistics"] = {
            name: [list(one.values()) for one in numbers]
            for name, numbers in value["statistics"].items()
        }
        for name in ("categories", "label_range", "columns", "statistics", "is_standardized"):
            if not value[name]:
                del value[name]
        if "categories" in value:
            # Write pairs, as `sort_keys` would lose the order of the columns, and so of inputs.
            value["categories"] = list(value["categories"].items())
        return json.dumps({"version": FORMAT_VERSION, **value}, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class StoreContent:
    """The content of `store.json`, except the description.

    Attributes:
        digest: Digest of the store's content.
        vocabulary: Words of a text store with their counts, the most frequent first.
        sentence_lengths: Tuples (split, domain, words per sentence, number of sentences) of a text
            store, in ascending order.
        notes: Facts from the import for the reports of runs. "class_shares" is the fraction of each
            class by split and name, None without classes. "remarks" has the warnings of the import,
            in the form of `Remark.to_json`.
    """

    digest: str
    vocabulary: tuple[tuple[str, int], ...]
    sentence_lengths: tuple[tuple[str, str, int, int], ...]
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def parse_description(text: str) -> tuple[StoreDescription, dict[str, Any]]:
    """Parses the JSON of a store; returns its description, and all of the JSON's entries.

    Raises:
        ValueError: If the version is unknown, or an entry is missing or has another type.
    """
    try:
        content = json.loads(text)
        # Reject lone surrogates, which JSON can encode but which are not valid text.
        json.dumps(content, ensure_ascii=False).encode()
        version = content.get("version")
        if version == FORMAT_VERSION:
            pairs = {**content, "categories": dict(content.get("categories", ()))}
            description: StoreDescription = typed(StoreDescription, pairs)
            for feature in description.features.values():
                if feature.dtype not in _DTYPES or min(feature.shape, default=0) < 0:
                    raise ValueError(f"features: {feature}")
            return description, content
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise ValueError(
            f"expected the description of a store, found an invalid one ({e!s:.200})"
        ) from e
    is_newer = isinstance(version, int) and version > FORMAT_VERSION
    raise ValueError(
        f"expected a store of version {FORMAT_VERSION}, found {version!r:.60}"
        + ("; a newer store needs a newer program" if is_newer else "")
    )


def typed(kind: Any, value: Any) -> Any:
    """Converts a JSON value to a type of this module; raises a `ValueError` for other values."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and type(None) in arguments):
        return value
    if origin is Union:
        return typed(arguments[0], value)
    if origin is tuple and isinstance(value, list):
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(typed(one, entry) for one, entry in zip(kinds, value, strict=True))
    if origin is not None and origin is not tuple:
        return {key: typed(arguments[1], entry) for key, entry in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        # The JSON of `NumberStatistics` is a list, in the order of the fields.
        entries = dict(zip(hints, value, strict=True)) if isinstance(value, list) else value
        names = [name for name in hints if name in entries]
        return kind(**{name: typed(hints[name], entries[name]) for name in names})
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"expected {getattr(kind, '__name__', kind)}, found {value!r:.100}")
    return value


Value = Union[str, int, float, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Record:
    """One example of one client.

    Attributes:
        client: Id of the client.
        domain: Name of the example's domain.
        features: The example's values by name: "tokens", the words of a sentence separated by
            single spaces; or "label" and the inputs of a model.
        split: Split of the example, "train", "heldout" or "test", if the source determines it.
    """

    client: str
    domain: str
    features: Mapping[str, Value]
    split: Optional[str] = None
