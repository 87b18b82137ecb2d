"""Numbers of examples by unit and domain, in little memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

# Number of new pairs of a unit and a domain after which the counts are merged.
_MAX_NEW = 1 << 18
_KEYS = ["unit", "domain"]


class UnitCounts:
    """The number of examples of each unit and domain.

    A unit is a group of examples in one split, such as a client's, named by a signed number of 64
    bits.
    """

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self._num_counted = self._num_new = 0

    def add(self, units: pa.Array, domains: pa.Array) -> None:
        """Counts examples.

        Args:
            units: Unit of each example, int64 [n].
            domains: Name of each example's domain, strings [n].
        """
        ones = np.ones(len(units), np.int64)
        self._parts.append(_summed(pa.table([units, domains, ones], [*_KEYS, "n"])))
        self._num_new += len(self._parts[-1])
        if self._num_new > max(_MAX_NEW, self._num_counted):
            self._merge()

    def __iter__(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, examples), sorted by unit and then by domain."""
        self._merge()
        for table in self._parts:
            for batch in table.sort_by([(key, "ascending") for key in _KEYS]).to_batches(_MAX_NEW):
                yield from zip(*(column.to_pylist() for column in batch.columns))

    def _merge(self) -> None:
        if self._parts:
            self._parts = [_summed(pa.concat_tables(self._parts))]
            self._num_counted, self._num_new = len(self._parts[0]), 0


def _summed(table: pa.Table) -> pa.Table:
    """Returns each pair of unit and domain once, with its sum."""
    # Use one thread, as each of Arrow's threads keeps memory.
    return (
        table.group_by(_KEYS, use_threads=False)
        .aggregate([("n", "sum")])
        .select([*_KEYS, "n_sum"])
        .rename_columns([*_KEYS, "n"])
    )
