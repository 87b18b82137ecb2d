"""Sentences and texts as ids of their words, as in TFF's Stack Overflow baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np

from tff_agnostic.base.registry import Registry

# Default number T of ids per example, from TFF's Stack Overflow baseline.
SEQUENCE_LENGTH = 20


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """The ids of a vocabulary of K words: 0 for padding, 1 to K for words, then three more.

    The three further ids are K + 1 for every out-of-vocabulary word, K + 2 for the beginning and K
    + 3 for the end of a sentence, as in `tff.simulation.baselines.stackoverflow`.

    Attributes:
        vocabulary_size: Number K of words, at least 1.
    """

    vocabulary_size: int

    def __post_init__(self) -> None:
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
        """Out-of-vocabulary word: K + 1."""
        return self.vocabulary_size + 1

    @property
    def bos(self) -> int:
        """Beginning of a sentence: K + 2."""
        return self.vocabulary_size + 2

    @property
    def eos(self) -> int:
        """End of a sentence: K + 3."""
        return self.vocabulary_size + 3

    @property
    def num_ids(self) -> int:
        """Number of ids: K + 4."""
        return self.vocabulary_size + 4


class EncodedSentences(NamedTuple):
    """Examples of a next-word model.

    Attributes:
        x: Ids of words, int32 [n, T].
        y: Ids of the next words, int32 [n, T].
        sentence: Index of the sentence of each example, int64 [n].
    """

    x: np.ndarray
    y: np.ndarray
    sentence: np.ndarray


class _WordEncoder:
    """Base class of the sentence encoder and the text encoder.

    Args:
        words: The vocabulary; word k has the id k + 1.
        sequence_length: Number T of ids per example.
    """

    def __init__(self, words: Sequence[str], sequence_length: int) -> None:
        self.ids = TokenIds(len(words))
        self._length = sequence_length
        # Keep words as bytes, as in stores, so that no decoding is needed.
        self._id_by_word = {word.encode(): k for k, word in enumerate(words, start=1)}

    def _look_up(self, words: Sequence[bytes]) -> list[int]:
        oov, id_by_word = self.ids.oov, self._id_by_word
        return [id_by_word.get(word, oov) for word in words]


class SentenceEncoder(_WordEncoder):
    """Encodes sentences as in TFF's Stack Overflow baseline.

    A sentence has the ids of its beginning, its words and its end. x omits the last id, y the first
    id; both are padded to T.
    """

    def encode(self, sentences: np.ndarray) -> EncodedSentences:
        """Returns one example per sentence, truncated after T + 1 ids.

        Args:
            sentences: Sentences as bytes, with words separated by spaces.
        """
        ids = np.full([len(sentences), self._length + 1], self.ids.pad, np.int32)
        ids[:, 0] = self.ids.bos
        for row, sentence in zip(ids, sentences):
            encoded = self._after_begin(sentence)[: self._length]
            row[1 : len(encoded) + 1] = encoded
        return EncodedSentences(ids[:, :-1], ids[:, 1:], np.arange(len(sentences)))

    def encode_chunks(self, sentences: np.ndarray) -> EncodedSentences:
        """Returns as many examples per sentence as its words need.

        Every word and the end of a sentence are predicted once. If an example continues a sentence,
        its x starts with the last id that the previous example predicts.

        Args:
            sentences: Sentences as bytes, with words separated by spaces.
        """
        length, pad = self._length, self.ids.pad
        rows, owners = [], []
        for k, sentence in enumerate(sentences):
            ids = [self.ids.bos, *self._after_begin(sentence)]
            for start in range(0, len(ids) - 1, length):
                row = ids[start : start + length + 1]
                rows.append(row + [pad] * (length + 1 - len(row)))
                owners.append(k)
        chunks = np.array(rows, np.int32).reshape(-1, length + 1)
        return EncodedSentences(chunks[:, :-1], chunks[:, 1:], np.array(owners, np.int64))

    def _after_begin(self, sentence: bytes) -> list[int]:
        return [*self._look_up(sentence.split()), self.ids.eos]


# Methods for sentences with more words than fit into an example.
LONG_SENTENCES: Registry[Callable[[SentenceEncoder, np.ndarray], EncodedSentences]] = Registry(
    "treatment of long sentences",
    {"cut": SentenceEncoder.encode, "chunk": SentenceEncoder.encode_chunks},
)


class TextEncoder(_WordEncoder):
    """Encodes texts as the ids of their first words, followed by padding."""

    def encode(self, texts: np.ndarray) -> np.ndarray:
        """Returns the ids of n texts, int32 [n, T]; texts are bytes with words between spaces."""
        ids = np.full([len(texts), self._length], self.ids.pad, np.int32)
        for row, text in zip(ids, texts):
            word_ids = self._look_up(text.split()[: self._length])
            row[: len(word_ids)] = word_ids
        return ids
