"""Token ids of TFF's Stack Overflow baseline."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """The ids of a vocabulary of K words: padding 0, words 1 to K, then three more.

    Those are K + 1 for every word out of the vocabulary, K + 2 for the begin of a sentence and
    K + 3 for its end, as `tff.simulation.baselines.stackoverflow` has them.

    Attributes:
        vocabulary_size: K, at least 1.
    """

    vocabulary_size: int

    def __post_init__(self) -> None:
        """Checks the range."""
        if self.vocabulary_size < 1:
            raise ValueError(
                f"vocabulary_size: expected at least 1 word, found {self.vocabulary_size}"
            )

    @property
    def pad(self) -> int:
        """Padding: 0."""
        return 0

    @property
    def oov(self) -> int:
        """A word out of the vocabulary: K + 1."""
        return self.vocabulary_size + 1

    @property
    def bos(self) -> int:
        """The begin of a sentence: K + 2."""
        return self.vocabulary_size + 2

    @property
    def eos(self) -> int:
        """The end of a sentence: K + 3."""
        return self.vocabulary_size + 3

    @property
    def num_ids(self) -> int:
        """How many ids there are: K + 4."""
        return self.vocabulary_size + 4


__all__ = ["TokenIds"]
