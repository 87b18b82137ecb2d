"""Counts words and categories in bounded memory, and selects the most frequent."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from tff_agnostic.data.store import SortedExamples
from tff_agnostic.data.store_format import NO_CATEGORY, TOKENS, TRAIN

_MAX_WORDS = 2_000_000
# Replacement of rare words in texts such as the Penn Treebank.
UNKNOWN = "<unk>"


class WordCounts:
    """Counts of words; if there are too many different words, the rarest are forgotten.

    A forgotten word that occurs again is counted from 0. Its count is then too small by at most
    `max_undercount`.

    Args:
        max_words: Maximum number of different words in memory.

    Attributes:
        max_undercount: Maximum by which a count is too small; 0 if all counts are exact.
    """

    def __init__(self, max_words: int = _MAX_WORDS) -> None:
        self.max_undercount = 0
        self._max_words = max_words
        self._counts: Counter[str] = Counter()

    def add(self, words: Any) -> None:
        """Counts the words in an Arrow array of strings."""
        for entry in pc.value_counts(words).to_pylist():
            self._counts[entry["values"]] += entry["counts"]
        if len(self._counts) > self._max_words:
            self._forget()

    def top(self, size: int) -> dict[str, int]:
        """Returns the most frequent words with their counts, ties in alphabetical order."""
        order = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return dict(order[:size])

    def __len__(self) -> int:
        return len(self._counts)

    def total_count(self, words: Iterable[str]) -> int:
        """Returns the sum of the counts of the given words, which must differ from one another."""
        return sum(self._counts[word] for word in words)

    def total(self) -> int:
        """Returns the sum of all counts, without forgotten words."""
        return sum(self._counts.values())

    def vocabulary(self, size: int) -> dict[str, int]:
        """Returns the most frequent words with their counts, like `top`, but without `UNKNOWN`."""
        known_values = self.top(size + 1)
        known_values.pop(UNKNOWN, None)
        return dict(list(known_values.items())[:size])

    def _forget(self) -> None:
        """Forgets the rarest words, and keeps at most half of `max_words`."""
        threshold = sorted(self._counts.values(), reverse=True)[self._max_words // 2]
        kept = {word: count for word, count in self._counts.items() if count > threshold}
        self._counts = Counter(kept)
        self.max_undercount += threshold


def count_words(examples: SortedExamples) -> WordCounts:
    """Counts the words of the training clients."""
    counts = WordCounts()
    for table in examples.batches(TRAIN):
        counts.add(pc.list_flatten(pc.split_pattern(table[TOKENS], " ")))
    return counts


@dataclasses.dataclass(frozen=True)
class VocabularySummary:
    """Statistics of a vocabulary, which has the most frequent words of the training clients.

    Attributes:
        size: Number of kept words.
        different: Number of different words.
        coverage: Fraction of the texts' words that the vocabulary contains.
        rarest_count: Number of occurrences of the rarest kept word.
        max_undercount: Maximum by which a count is too small; 0 if all counts are exact.
        unknown: Number of occurrences of <unk>, which the vocabulary does not contain.
    """

    size: int
    different: int
    coverage: float
    rarest_count: int
    max_undercount: int
    unknown: int

    @classmethod
    def from_counts(cls, kept: Mapping[str, int], words: WordCounts) -> VocabularySummary:
        """Returns the summary of a vocabulary, `kept`, chosen from all counted words."""
        return cls(
            size=len(kept),
            different=len(words),
            coverage=sum(kept.values()) / max(1, words.total()),
            rarest_count=min(kept.values(), default=0),
            max_undercount=words.max_undercount,
            unknown=words.total_count([UNKNOWN]),
        )

    def text(self) -> str:
        """Describes the vocabulary in a line for the terminal."""
        line = (
            f"Vocabulary: {self.size} of {self.different} words of the training clients, "
            f"{self.coverage:.1%} of their text; the rarest has a count of {self.rarest_count}."
        )
        if self.unknown:
            line += f" {UNKNOWN}, {self.unknown} times, stands for any other word."
        if self.max_undercount:
            line += f" Rare words were forgotten: counts may be up to {self.max_undercount} short."
        return line


@dataclasses.dataclass(frozen=True)
class CategorySummary:
    """Statistics of a categorical column's known and unknown values.

    Attributes:
        size: Number of known values.
        different: Number of different values of the training clients.
        coverage: Fraction of known values among the training examples' values that are not missing.
        unknown: Number of examples with an unknown value, by split.
    """

    size: int
    different: int
    coverage: float
    unknown: Mapping[str, int]

    def text(self, column: str) -> str:
        """Describes the column in a line for the terminal."""
        line = f"{column}: {self.size} known values"
        if self.size < self.different:
            line += (
                f" of {self.different} (max_categories), in {self.coverage:.1%} of the training "
                "examples"
            )
        if self.unknown:
            counts = ", ".join(f"{count} of {split}" for split, count in self.unknown.items())
            line += f"; examples with another value: {counts}"
        return f"{line}."


class CategoryCounts:
    """Counts of the values of one categorical column in each split.

    Args:
        examples: The examples of a store.
        column: Name of the column, a feature of the examples.
    """

    def __init__(self, examples: SortedExamples, column: str) -> None:
        self._counts = {TRAIN: WordCounts()}
        self._examples: Counter[str] = Counter()
        for split in examples.rows:
            for table in examples.batches(split):
                values = table[column].filter(pc.not_equal(table[column], NO_CATEGORY))
                self._counts.setdefault(split, WordCounts()).add(values)
                self._examples[split] += len(values)

    def frequent(self, size: int) -> tuple[str, ...]:
        """Returns the most frequent values among training clients, sorted.

        Args:
            size: Maximum number of values.
        """
        return tuple(sorted(self._counts[TRAIN].top(size)))

    def summary(self, known_values: Sequence[str]) -> CategorySummary:
        """Returns the summary of the column, given its known values."""
        unknown = {
            split: self._examples[split] - counts.total_count(known_values)
            for split, counts in sorted(self._counts.items())
        }
        return CategorySummary(
            size=len(known_values),
            different=len(self._counts[TRAIN]),
            coverage=1 - unknown[TRAIN] / max(1, self._examples[TRAIN]),
            unknown={split: count for split, count in unknown.items() if count},
        )
