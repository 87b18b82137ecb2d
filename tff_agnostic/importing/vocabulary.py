"""Counting words in bounded memory, and what became of them."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

_MAX_WORDS = 2_000_000
# In texts whose rare words were replaced, as in the Penn Treebank: any other word.
UNKNOWN = "<unk>"


class WordCounts:
    """Counts words; when there are too many different ones, the rarest are forgotten.

    A forgotten word that comes again starts at zero: its count is then too small by at most
    `max_undercount`.

    Args:
        max_words: How many different words are held at most.

    Attributes:
        max_undercount: By how much any count may be too small; 0 means that all are exact.
    """

    def __init__(self, max_words: int = _MAX_WORDS) -> None:
        self.max_undercount = 0
        self._max_words = max_words
        self._counts: Counter[str] = Counter()

    def add(self, words: Iterable[str]) -> None:
        """Counts words."""
        self._counts.update(words)
        if len(self._counts) > self._max_words:
            self._forget()

    def remove(self, words: Iterable[str]) -> None:
        """Takes words back that were counted; those that were forgotten meanwhile stay at zero."""
        for word, count in Counter(words).items():
            if self._counts[word] > count:
                self._counts[word] -= count
            else:
                del self._counts[word]

    def top(self, size: int) -> dict[str, int]:
        """Returns the most frequent words with their counts, ties in alphabetical order."""
        order = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return dict(order[:size])

    def __len__(self) -> int:
        return len(self._counts)

    def total_of(self, words: Iterable[str]) -> int:
        """Returns how many of these, which are different words, were counted."""
        return sum(self._counts[word] for word in words)

    def total(self) -> int:
        """Returns how many words were counted and not forgotten."""
        return sum(self._counts.values())

    def vocabulary(self, size: int) -> dict[str, int]:
        """Returns `top`, without the word that stands for words that are not known."""
        known = self.top(size + 1)
        known.pop(UNKNOWN, None)
        return dict(list(known.items())[:size])

    def _forget(self) -> None:
        """Forgets the rarest, so that at most half of the places are taken."""
        threshold = sorted(self._counts.values(), reverse=True)[self._max_words // 2]
        self._counts = Counter(
            {word: count for word, count in self._counts.items() if count > threshold}
        )
        self.max_undercount += threshold


@dataclasses.dataclass(frozen=True)
class VocabularySummary:
    """What became of the words of the training clients.

    Attributes:
        size: Words kept.
        different: Different words.
        coverage: Share of all occurrences that the kept words have.
        rarest_count: Occurrences of the rarest word that was kept.
        max_undercount: By how much counts may be too small; 0 if they are exact.
        unknown: Occurrences of <unk>, which is no word of the vocabulary.
    """

    size: int
    different: int
    coverage: float
    rarest_count: int
    max_undercount: int
    unknown: int

    @classmethod
    def of(cls, kept: Mapping[str, int], words: WordCounts) -> "VocabularySummary":
        """Returns the summary of a vocabulary and all words that it was chosen from."""
        return cls(
            size=len(kept),
            different=len(words),
            coverage=sum(kept.values()) / max(1, words.total()),
            rarest_count=min(kept.values(), default=0),
            max_undercount=words.max_undercount,
            unknown=words.total_of([UNKNOWN]),
        )

    def text(self) -> str:
        """Returns a line for people."""
        line = (
            f"Vocabulary: {self.size} of {self.different} words of the training clients, "
            f"{self.coverage:.1%} of what they wrote; the rarest has a count of "
            f"{self.rarest_count}."
        )
        if self.unknown:
            line += f" {UNKNOWN}, {self.unknown} times, stands for any other word."
        if self.max_undercount:
            line += f" Rare words were forgotten: counts may be up to {self.max_undercount} short."
        return line
