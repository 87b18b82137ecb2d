"""How large clients and sentences are, from which limits such as --max_examples are chosen."""

import dataclasses
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A distribution of sizes.

    Attributes:
        count: How many things there are.
        total: Their sizes together.
        median: Half of them are at most as large.
        most: Nine in ten of them are.
        nearly_all: 99 in a hundred are.
        largest: All of them are.
    """

    count: int
    total: int
    median: int
    most: int
    nearly_all: int
    largest: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> "Sizes":
        """Returns the distribution of things by their size, at least one of them."""
        sizes = np.array(sorted(counts), np.int64)
        up_to = np.cumsum([counts[size] for size in sizes.tolist()])
        total = int(up_to[-1])

        def at(share: float) -> int:
            return int(sizes[np.searchsorted(up_to, share * total - 1e-9)])

        return cls(
            count=total,
            total=sum(size * count for size, count in counts.items()),
            median=at(0.5),
            most=at(0.9),
            nearly_all=at(0.99),
            largest=int(sizes[-1]),
        )

    def text(self, things: str, parts: str) -> str:
        """Returns a line for people, such as of sentences and their words."""
        return (
            f"{self.count} {things} have {self.total} {parts}: half of them at most {self.median}, "
            f"nine in ten {self.most}, 99% {self.nearly_all}, the largest {self.largest}."
        )
