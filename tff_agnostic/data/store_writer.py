"""Writes client stores, in one pass over records that come in any order."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from tff_agnostic.data.example_bytes import ExampleSerializer, parsed_features
from tff_agnostic.data.records import Record, Value
from tff_agnostic.data.scratch_database import ScratchDatabase
from tff_agnostic.data.store_contents import StoreContents
from tff_agnostic.data.store_format import (
    DOMAIN,
    INDICES,
    KINDS,
    LABEL,
    OWN_TABLES,
    TFF_TABLES,
    TRAIN,
    StoreDescription,
)
from tff_agnostic.data.unit_counts import UnitCounts
from tff_agnostic.errors import UserError

# Rows between two calls of SQLite.
_ROWS_AT_ONCE = 1000

# (split before, split now, the example)
OnMoved = Callable[[str, str, Record], object]


class StoreWriter:
    """A store in the making; a context manager.

    Rows go to a temporary file beside `path`, are sorted by client there (on the disk, in bounded
    memory), and come into place with `finish`, all at once. Without it nothing is left behind.

    Args:
        path: The store's file.

    Raises:
        UserError: If there is a file at `path`, or none can be made there.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise UserError(f"{path}: expected no file there yet: stores are not overwritten")
        self._contents = StoreContents()
        self._path = path
        self._unsorted = ScratchDatabase(path, "unsorted")
        self._sorted = ScratchDatabase(path, "sorted")
        self._serialize = ExampleSerializer()
        self._units: Optional[UnitCounts] = None
        self._rows: list[tuple[str, str, str, Optional[int], bytes]] = []
        self._connection: Optional[sqlite3.Connection] = None

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Examples so far, by (split, domain)."""
        return self._contents.counts

    def __enter__(self) -> "StoreWriter":
        """Makes the temporary file."""
        self._connection = self._unsorted.create()
        self._connection.executescript(
            "CREATE TABLE rows (split_name TEXT, client_id TEXT, domain TEXT, unit INTEGER, "
            "proto BLOB);"
        )
        self._units = UnitCounts(self._connection)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Removes what is temporary."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._unsorted.remove()
        self._sorted.remove()

    def add(self, split: str, record: Record, unit: Optional[int] = None) -> None:
        """Adds an example.

        Args:
            split: Name of its split.
            record: The example.
            unit: What is in one split as a whole, if that may still become another one; see
                `reassign`. A signed number of 64 bits.

        Raises:
            ValueError: If its features differ from those of the first one in name, type or shape.
            UserError: If the disk is full.
        """
        features = {**record.features, DOMAIN: record.domain}
        self._contents.add(split, record, features)
        if unit is not None:
            assert self._units is not None
            self._units.add(unit, record.domain)
        self._rows.append((split, record.client, record.domain, unit, self._serialize(features)))
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def units(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, examples) of all units so far, in ascending order.

        Raises:
            UserError: If the disk is full.
        """
        assert self._units is not None
        with self._unsorted.errors():
            yield from self._units

    def reassign(self, splits: Mapping[int, str], on_moved: OnMoved) -> None:
        """Moves units to other splits.

        Args:
            splits: The split of each unit that moves.
            on_moved: Called with every example that moves.

        Raises:
            UserError: If the disk is full.
        """
        if not splits:
            return
        self._flush()
        assert self._connection is not None
        with self._unsorted.errors():
            self._connection.execute(
                "CREATE TEMP TABLE moves (unit INTEGER PRIMARY KEY, new_split TEXT)"
            )
            self._connection.executemany("INSERT INTO moves VALUES (?, ?)", splits.items())
            for old, new, client, domain, proto in self._connection.execute(
                "SELECT split_name, new_split, client_id, domain, proto FROM rows "
                "JOIN moves USING (unit)"
            ):
                record = Record(client, domain, parsed_features(proto))
                self._contents.move(old, new, record)
                on_moved(old, new, record)
            self._connection.execute(
                "UPDATE rows SET split_name = "
                "(SELECT new_split FROM moves WHERE moves.unit = rows.unit) "
                "WHERE unit IN (SELECT unit FROM moves)"
            )
            self._connection.execute("DROP TABLE moves")
            self._contents.end_moves(self._training_labels())

    def _training_labels(self) -> Iterator[Value]:
        assert self._connection is not None
        for (proto,) in self._connection.execute(
            "SELECT proto FROM rows WHERE split_name = ?", [TRAIN]
        ):
            yield parsed_features(proto)[LABEL]

    def finish(
        self,
        kind: str,
        vocabulary: Optional[Mapping[str, int]] = None,
        class_names: Optional[Sequence[str]] = None,
        source: str = "",
        categories: Optional[Mapping[str, Sequence[str]]] = None,
    ) -> None:
        """Sorts, describes the store, and puts it in its place.

        Args:
            kind: "text" or "features".
            vocabulary: Words and their counts, the most frequent first.
            class_names: Names of the classes that labels count.
            source: Where it came from, for people.
            categories: The known values of each categorical column, in the order of their ids.

        Raises:
            UserError: If there is no example, or the file cannot be written.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, found {kind!r}")
        self._flush()
        contents = self._contents
        if not contents.counts:
            raise UserError(f"{self._path}: expected at least one example to store, found none")
        description = StoreDescription(
            kind=kind,
            features=contents.features,
            domains=contents.domains(),
            num_classes=contents.num_classes(class_names),
            class_names=None if class_names is None else tuple(class_names),
            source=source,
            categories={name: tuple(values) for name, values in (categories or {}).items()},
            label_range=contents.label_range,
        )
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        with self._sorted.errors():
            self._write_sorted(description, vocabulary or {})
            self._sorted.move_to(self._path)

    def _write_sorted(self, description: StoreDescription, vocabulary: Mapping[str, int]) -> None:
        connection = self._sorted.create()
        try:
            connection.executescript(TFF_TABLES + OWN_TABLES)
            connection.execute("ATTACH ? AS unsorted", [str(self._unsorted.path)])
            # rowid keeps a client's examples in the order in which they came.
            connection.execute(
                "INSERT INTO examples SELECT split_name, client_id, proto FROM unsorted.rows "
                "ORDER BY split_name, client_id, rowid"
            )
            connection.execute(
                "INSERT INTO client_domains SELECT split_name, client_id, domain, COUNT(*) "
                "FROM unsorted.rows GROUP BY split_name, client_id, domain"
            )
            connection.execute(
                "INSERT INTO client_metadata SELECT client_id, split_name, SUM(num_examples) "
                "FROM client_domains GROUP BY split_name, client_id"
            )
            connection.executemany(
                "INSERT INTO vocabulary VALUES (?, ?, ?)",
                ((rank, word, n) for rank, (word, n) in enumerate(vocabulary.items(), start=1)),
            )
            connection.executemany(
                "INSERT INTO sentence_lengths VALUES (?, ?, ?, ?)",
                self._contents.lengths(),
            )
            connection.executescript(INDICES)
            connection.execute("INSERT INTO tff_agnostic VALUES (?)", [description.to_json()])
            connection.commit()
        finally:
            connection.close()

    def _flush(self) -> None:
        assert self._connection is not None
        with self._unsorted.errors():
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", self._rows)
            if self._units is not None:
                self._units.bound_memory()
            self._connection.commit()
        self._rows = []
