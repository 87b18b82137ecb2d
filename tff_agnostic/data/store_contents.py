"""What the examples of a store in the making have been found to hold: types, classes, lengths."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.data.records import Record, Value
from tff_agnostic.data.store_format import LABEL, TOKENS, TRAIN, Feature


class StoreContents:
    """Counts and ranges over examples, kept as they are added and move between splits.

    Attributes:
        counts: Examples so far, by (split, domain).
        features: The type of each feature, that of the first example.
        label_range: Smallest and largest label of the training examples, if labels are float32.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.features: dict[str, Feature] = {}
        self.label_range: Optional[tuple[float, float]] = None
        self._lengths: Counter[tuple[str, str, int]] = Counter()
        self._labels: Optional[tuple[int, int]] = None
        self._known_looks: set[Any] = set()

    def add(self, split: str, record: Record, features: Mapping[str, Value]) -> None:
        """Counts an example.

        Args:
            split: Name of its split.
            record: The example.
            features: What is stored of it: its features and its domain.

        Raises:
            ValueError: If they differ from those of the first one in name, type or shape.
        """
        self._check(features)
        self._see_label(split, record.features.get(LABEL))
        self._count(split, record, 1)

    def move(self, old: str, new: str, record: Record) -> None:
        """Counts an example in another split; `end_moves` comes after the last."""
        self._count(old, record, -1)
        self._count(new, record, 1)

    def end_moves(self, training_labels: Iterable[Value]) -> None:
        """Forgets the domains that a split has lost, and ranges labels anew.

        Args:
            training_labels: Of the examples that are trained on by now; read only if labels are
                float32.
        """
        self.counts = +self.counts
        if self.label_range is not None:
            self.label_range = None
            for label in training_labels:
                self._widen_label_range(label)

    def domains(self) -> tuple[str, ...]:
        """Returns the domains, in alphabetical order."""
        return tuple(sorted({domain for _, domain in self.counts}))

    def lengths(self) -> Iterable[tuple[str, str, int, int]]:
        """Returns (split, domain, words, sentences), in ascending order."""
        return ((*key, n) for key, n in sorted(self._lengths.items()) if n)

    def num_classes(self, class_names: Optional[Sequence[str]]) -> Optional[int]:
        """Returns how many classes labels count; None if they count none."""
        if class_names is not None:
            return len(class_names)
        # Negative numbers are quantities, no classes.
        return self._labels[1] + 1 if self._labels and self._labels[0] >= 0 else None

    def _count(self, split: str, record: Record, by: int) -> None:
        self.counts[split, record.domain] += by
        tokens = record.features.get(TOKENS)
        if tokens is not None:
            self._lengths[split, record.domain, str(tokens).count(" ") + 1] += by

    def _see_label(self, split: str, label: Optional[Value]) -> None:
        feature = self.features.get(LABEL)
        if feature == Feature("int64"):
            value = int(np.asarray(label))
            low, high = self._labels or (value, value)
            self._labels = min(low, value), max(high, value)
        elif feature == Feature("float32") and split == TRAIN:
            assert label is not None
            self._widen_label_range(label)

    def _widen_label_range(self, label: Value) -> None:
        number = float(np.asarray(label).item())
        least, most = self.label_range or (number, number)
        self.label_range = min(least, number), max(most, number)

    def _check(self, features: Mapping[str, Value]) -> None:
        # Most records are alike in this: looking at types alone saves time.
        look = tuple([(name, type(value)) for name, value in features.items()])
        if look in self._known_looks:
            return
        found = {name: _feature(name, value) for name, value in features.items()}
        if not self.features:
            self.features = found
        elif found != self.features:
            different = next(
                name
                for name in (*self.features, *found)
                if found.get(name) != self.features.get(name)
            )
            raise ValueError(
                f"{different}: expected {self.features.get(different, 'no such feature')}, as in "
                f"the first example, found {found.get(different, 'none')}"
            )
        if not any(isinstance(value, np.ndarray) for value in features.values()):
            self._known_looks.add(look)


def _feature(name: str, value: Value) -> Feature:
    if isinstance(value, str):
        return Feature("string")
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        return Feature("int64", array.shape)
    if array.dtype.kind == "f":
        return Feature("float32", array.shape)
    raise ValueError(f"{name}: expected text or numbers, found {type(value).__name__}")
