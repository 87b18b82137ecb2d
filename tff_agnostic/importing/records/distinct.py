"""Sets of very many strings, in eight bytes each."""

import hashlib

import numpy as np

_MAX_NEW = 100_000


def hash64(text: str) -> int:
    """Returns 64 bits of a hash that is the same in every process and version of Python."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class DistinctKeys:
    """A set of strings of which only hashes are kept.

    Two of ten million strings have the same 64 bits with a probability of one in 300,000.
    """

    def __init__(self) -> None:
        self._last = ""
        self._new: set[int] = set()
        self._sorted = np.empty([0], np.uint64)

    def add(self, key: str) -> None:
        """Adds a string."""
        # Sources often have one client's records one after another.
        if key == self._last:
            return
        self._last = key
        self._new.add(hash64(key))
        if len(self._new) >= _MAX_NEW:
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return len(self._sorted)

    def num_missing_in(self, other: "DistinctKeys") -> int:
        """Returns how many of these are not in another set."""
        self._merge()
        other._merge()
        return len(np.setdiff1d(self._sorted, other._sorted, assume_unique=True))

    def _merge(self) -> None:
        new = np.fromiter(self._new, np.uint64, len(self._new))
        self._sorted = np.union1d(self._sorted, new)
        self._new = set()
