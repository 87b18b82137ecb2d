"""Categorical columns: the values that training clients have, and how many others do not."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from tff_agnostic.data.records import Record
from tff_agnostic.data.store_format import TRAIN
from tff_agnostic.importing.columns.missing import NO_CATEGORY
from tff_agnostic.importing.vocabulary import WordCounts


@dataclasses.dataclass(frozen=True)
class CategorySummary:
    """What became of the values of one categorical column.

    Attributes:
        size: Values that are known.
        different: Different values of the training clients.
        coverage: Share of the training examples with a value that have a known one.
        unknown: Examples with a value that is not known, by split, where there are any.
    """

    size: int
    different: int
    coverage: float
    unknown: Mapping[str, int]

    def text(self, column: str) -> str:
        """Returns a line for people."""
        line = f"{column}: {self.size} known values"
        if self.size < self.different:
            line += (
                f" of {self.different} (--max_categories), in {self.coverage:.1%} of the training "
                "examples"
            )
        if self.unknown:
            counts = ", ".join(f"{count} of {split}" for split, count in self.unknown.items())
            line += f"; examples with another value: {counts}"
        return f"{line}."


class CategoryCounts:
    """Counts the values of categorical columns in bounded memory; see `WordCounts`.

    Args:
        columns: Names of the columns, which are features of the records.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._counts: dict[str, dict[str, WordCounts]] = {column: {} for column in columns}
        self._examples: dict[str, Counter[str]] = {column: Counter() for column in columns}

    def add(self, split: str, record: Record) -> None:
        """Counts the values of a record."""
        for column, splits in self._counts.items():
            value = str(record.features[column])
            if value != NO_CATEGORY:
                if split not in splits:
                    splits[split] = WordCounts()
                splits[split].add([value])
                self._examples[column][split] += 1

    def move(self, old: str, new: str, record: Record) -> None:
        """Counts a record that was counted in one split in another one instead."""
        for column, splits in self._counts.items():
            value = str(record.features[column])
            if value != NO_CATEGORY:
                splits[old].remove([value])
                self._examples[column][old] -= 1
        self.add(new, record)

    def known(self, size: int) -> dict[str, tuple[str, ...]]:
        """Returns the most frequent values of each column among training clients, sorted.

        Args:
            size: How many of each column at most.
        """
        return {
            column: tuple(sorted(splits.get(TRAIN, WordCounts()).top(size)))
            for column, splits in self._counts.items()
        }

    def summaries(self, known: Mapping[str, Sequence[str]]) -> dict[str, CategorySummary]:
        """Returns what became of each column's values, given those that are known."""
        return {column: self._summary(column, frozenset(known[column])) for column in self._counts}

    def _summary(self, column: str, known: "frozenset[str]") -> CategorySummary:
        splits = self._counts[column]
        unknown = {
            split: self._examples[column][split] - counts.total_of(known)
            for split, counts in splits.items()
        }
        train = self._examples[column][TRAIN]
        return CategorySummary(
            size=len(known),
            different=len(splits.get(TRAIN, WordCounts())),
            coverage=1 - unknown.get(TRAIN, 0) / max(1, train),
            unknown={split: count for split, count in sorted(unknown.items()) if count},
        )
