"""Sentences as the ids that next-word models learn from."""

from collections.abc import Sequence

import numpy as np

from tff_agnostic.data.text_ids import TokenIds


class SentenceEncoder:
    """Encodes sentences as TFF's Stack Overflow baseline does.

    A sentence is begin, its words, end; what exceeds T + 1 ids is cut off, what is missing is
    padding. x is all but the last id, y all but the first.

    Args:
        words: The vocabulary; word k has the id k + 1.
        sequence_length: T.
    """

    def __init__(self, words: Sequence[str], sequence_length: int) -> None:
        self.ids = TokenIds(len(words))
        self._length = sequence_length
        # Bytes, as stores hold them: nothing has to be decoded.
        self._id_of = {word.encode(): k for k, word in enumerate(words, start=1)}

    def encode(self, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns x and y, int32 [n, T], of n sentences: bytes, words separated by spaces."""
        ids = np.full([len(sentences), self._length + 1], self.ids.pad, np.int32)
        ids[:, 0] = self.ids.bos
        oov, eos, id_of = self.ids.oov, self.ids.eos, self._id_of
        for row, sentence in zip(ids, sentences):
            known = [id_of.get(word, oov) for word in sentence.split()]
            encoded = [*known, eos][: self._length]
            row[1 : len(encoded) + 1] = encoded
        return ids[:, :-1], ids[:, 1:]
