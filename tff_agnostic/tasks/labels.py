"""Labels of stores as models learn them: classes, or numbers."""

from collections.abc import Mapping

import numpy as np

from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import LABEL, Feature
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.stored import labels_of
from tff_agnostic.tasks.stored_inputs import in_32_bits, spec_of


class StoredLabels:
    """The labels of a store.

    Args:
        store: The store.

    Attributes:
        feature: The feature to read.
        spec: Spec of y with a first dimension of None: int32 [n] of classes and other whole
            numbers, float32 [n] of real ones.
        num_classes: Labels are in [0, num_classes), or None if they are no classes.

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
        self.feature: Feature = description.features[LABEL]
        self.spec = spec_of(self.feature)
        self.num_classes = description.num_classes
        self._class_names = description.class_names

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
        return {} if self._class_names is None else {"classes": ", ".join(self._class_names)}
