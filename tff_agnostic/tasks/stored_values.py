"""The different values that a feature of a store has: names of domains, or of classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_agnostic.data.store import Store
from tff_agnostic.data.stored_examples import parse_examples
from tff_agnostic.errors import UserError

# More than anybody looks at one by one; a feature with more groups nothing.
_MAX_VALUES = 1000
_DTYPES = ("string", "int64")


def distinct_values(
    store: Store, feature: str, splits: Sequence[str], flag: str, what: str
) -> tuple[str, ...]:
    """Returns the values of a feature, in alphabetical order, or numbers in ascending order.

    To find them, every example of the splits is read once.

    Args:
        store: The store.
        feature: Name of the feature.
        splits: Names of the splits to read.
        flag: What names the feature, for messages.
        what: What its values are to be, for messages.

    Raises:
        UserError: If the store has no such feature, or it has too many values.
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
