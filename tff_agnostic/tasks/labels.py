"""Labels of stores as models learn them: classes, or numbers."""

from collections.abc import Mapping, Sequence
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import LABEL, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.stored import labels_of
from tff_agnostic.tasks.stored_inputs import in_32_bits, spec_of
from tff_agnostic.tasks.stored_values import distinct_values, texts_of


class StoredLabels:
    """The labels of a store.

    Args:
        store: The store.

    Attributes:
        name: Name of the feature to read.
        feature: That feature.
        spec: Spec of y with a first dimension of None: int32 [n] of classes and other whole
            numbers, float32 [n] of real ones.
        num_classes: Labels are in [0, num_classes), or None if they are no classes.
        class_names: Names of the classes, if they have any.

    Raises:
        UserError: If the store has none.
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
            columns: Their features.
            where: Which client, for messages.

        Raises:
            UserError: If a class is out of range, or a whole number needs more than 32 bits.
        """
        if self.num_classes is None:
            return in_32_bits(columns[LABEL], LABEL, where)
        return labels_of(columns, self.num_classes, where)

    def fingerprint(self) -> dict[str, str]:
        """Returns what a `Task.fingerprint` says of the classes, if they have names."""
        return {} if self.class_names is None else {"classes": ", ".join(self.class_names)}


class ChosenLabels:
    """Classes that another feature than the label names: question or answer, say.

    Args:
        store: The store.
        feature: Name of the feature, of texts or whole numbers; every value is a class.
        splits: Names of the splits that are read.
        flag: What names the feature, for messages.

    Attributes:
        name: Name of the feature.
        feature: That feature.
        spec: Spec of y, int32 [n].
        num_classes: Classes are in [0, num_classes).
        class_names: Their names.

    Raises:
        UserError: If the store has no such feature, or it has one value or too many.
    """

    def __init__(self, store: Store, feature: str, splits: Sequence[str], flag: str) -> None:
        names = distinct_values(store, feature, splits, flag, "classes")
        if len(names) < 2:
            raise UserError(
                f"{flag}: expected at least 2 classes, found that {feature} is {names[0]} in all "
                f"examples of {store.path}"
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
        """Returns what a `Task.fingerprint` says of the classes."""
        return {"classes": ", ".join(self._ids)}


AnyLabels = Union[StoredLabels, ChosenLabels]
