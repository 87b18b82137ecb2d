"""Texts as ids of their words, for models that are told a text and learn its label."""

from collections.abc import Sequence

import numpy as np

from tff_agnostic.data.text_ids import TokenIds


class TextEncoder:
    """Encodes texts as the ids of their first words; what is missing is padding.

    Args:
        words: The vocabulary; word k has the id k + 1.
        sequence_length: T.
    """

    def __init__(self, words: Sequence[str], sequence_length: int) -> None:
        self._ids = TokenIds(len(words))
        self._length = sequence_length
        # Bytes, as stores hold them: nothing has to be decoded.
        self._id_of = {word.encode(): k for k, word in enumerate(words, start=1)}

    def encode(self, texts: np.ndarray) -> np.ndarray:
        """Returns ids, int32 [n, T], of n texts: bytes, words separated by spaces."""
        ids = np.full([len(texts), self._length], self._ids.pad, np.int32)
        oov, id_of = self._ids.oov, self._id_of
        for row, text in zip(ids, texts):
            known = [id_of.get(word, oov) for word in text.split()[: self._length]]
            row[: len(known)] = known
        return ids
