"""Counts of examples by unit and domain, in bounded memory."""

import sqlite3
from collections import Counter
from collections.abc import Iterator

# Pairs of a unit and a domain in memory.
_MAX_NEW = 100_000


class UnitCounts:
    """How many examples of each domain every unit has.

    A unit is what a split keeps together, such as a client, named by a signed number of 64 bits.

    Args:
        database: Where the counts go when there are many.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._new: Counter[tuple[int, str]] = Counter()
        database.execute(
            "CREATE TABLE unit_counts (unit INTEGER NOT NULL, domain TEXT NOT NULL, n INTEGER)"
        )

    def add(self, unit: int, domain: str) -> None:
        """Counts an example."""
        self._new[unit, domain] += 1

    def bound_memory(self) -> None:
        """Writes the counts to the database, if there are many."""
        if len(self._new) >= _MAX_NEW:
            self._write()

    def __iter__(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, examples), units in ascending order, their domains as well."""
        self._write()
        yield from self._database.execute(
            "SELECT unit, domain, SUM(n) FROM unit_counts GROUP BY unit, domain "
            "ORDER BY unit, domain"
        )

    def _write(self) -> None:
        self._database.executemany(
            "INSERT INTO unit_counts VALUES (?, ?, ?)",
            ((unit, domain, n) for (unit, domain), n in self._new.items()),
        )
        self._new.clear()
