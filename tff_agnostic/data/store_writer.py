"""Writes client stores, in one pass over records that come in any order."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.data.example_bytes import ExampleSerializer, parsed_features
from tff_agnostic.data.records import Record, Value
from tff_agnostic.data.scratch_database import ScratchDatabase
from tff_agnostic.data.store_format import (
    DOMAIN,
    INDICES,
    KINDS,
    LABEL,
    OWN_TABLES,
    TFF_TABLES,
    TOKENS,
    TRAIN,
    Feature,
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

    Attributes:
        counts: Examples so far, by (split, domain).

    Raises:
        UserError: If there is a file at `path`, or none can be made there.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise UserError(f"{path}: expected no file there yet: stores are not overwritten")
        self.counts: Counter[tuple[str, str]] = Counter()
        self._path = path
        self._unsorted = ScratchDatabase(path, "unsorted")
        self._sorted = ScratchDatabase(path, "sorted")
        self._features: dict[str, Feature] = {}
        self._known_looks: set[Any] = set()
        self._labels: Optional[tuple[int, int]] = None
        self._label_range: Optional[tuple[float, float]] = None
        self._serialize = ExampleSerializer()
        self._lengths: Counter[tuple[str, str, int]] = Counter()
        self._units: Optional[UnitCounts] = None
        self._rows: list[tuple[str, str, str, Optional[int], bytes]] = []
        self._connection: Optional[sqlite3.Connection] = None

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
        self._check(features)
        self._see_label(split, record.features.get(LABEL))
        self.counts[split, record.domain] += 1
        tokens = record.features.get(TOKENS)
        if tokens is not None:
            self._lengths[split, record.domain, str(tokens).count(" ") + 1] += 1
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
                self._move(old, new, record)
                on_moved(old, new, record)
            self._connection.execute(
                "UPDATE rows SET split_name = "
                "(SELECT new_split FROM moves WHERE moves.unit = rows.unit) "
                "WHERE unit IN (SELECT unit FROM moves)"
            )
            self._connection.execute("DROP TABLE moves")
            # Without the domains that a split has lost.
            self.counts = +self.counts
            if self._label_range is not None:
                self._label_range = self._training_label_range()

    def _move(self, old: str, new: str, record: Record) -> None:
        self.counts[old, record.domain] -= 1
        self.counts[new, record.domain] += 1
        tokens = record.features.get(TOKENS)
        if tokens is not None:
            words = str(tokens).count(" ") + 1
            self._lengths[old, record.domain, words] -= 1
            self._lengths[new, record.domain, words] += 1

    def _training_label_range(self) -> Optional[tuple[float, float]]:
        assert self._connection is not None
        found: Optional[tuple[float, float]] = None
        for (proto,) in self._connection.execute(
            "SELECT proto FROM rows WHERE split_name = ?", [TRAIN]
        ):
            label = float(np.asarray(parsed_features(proto)[LABEL]).item())
            least, most = found or (label, label)
            found = min(least, label), max(most, label)
        return found

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
        if not self.counts:
            raise UserError(f"{self._path}: expected at least one example to store, found none")
        description = StoreDescription(
            kind=kind,
            features=self._features,
            domains=tuple(sorted({domain for _, domain in self.counts})),
            num_classes=self._num_classes(class_names),
            class_names=None if class_names is None else tuple(class_names),
            source=source,
            categories={name: tuple(values) for name, values in (categories or {}).items()},
            label_range=self._label_range,
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
                ((*key, n) for key, n in sorted(self._lengths.items()) if n),
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

    def _see_label(self, split: str, label: Optional[Value]) -> None:
        feature = self._features.get(LABEL)
        if feature == Feature("int64"):
            value = int(np.asarray(label))
            low, high = self._labels or (value, value)
            self._labels = min(low, value), max(high, value)
        elif feature == Feature("float32") and split == TRAIN:
            number = float(np.asarray(label))
            least, most = self._label_range or (number, number)
            self._label_range = min(least, number), max(most, number)

    def _num_classes(self, class_names: Optional[Sequence[str]]) -> Optional[int]:
        if class_names is not None:
            return len(class_names)
        # Negative numbers are quantities, no classes.
        return self._labels[1] + 1 if self._labels and self._labels[0] >= 0 else None

    def _check(self, features: Mapping[str, Value]) -> None:
        # Most records are alike in this: looking at types alone saves time.
        look = tuple([(name, type(value)) for name, value in features.items()])
        if look in self._known_looks:
            return
        found = {name: _feature(name, value) for name, value in features.items()}
        if not self._features:
            self._features = found
        elif found != self._features:
            different = next(
                name
                for name in (*self._features, *found)
                if found.get(name) != self._features.get(name)
            )
            raise ValueError(
                f"{different}: expected {self._features.get(different, 'no such feature')}, as in "
                f"the first example, found {found.get(different, 'none')}"
            )
        if not any(isinstance(value, np.ndarray) for value in features.values()):
            self._known_looks.add(look)


def _feature(name: str, value: Value) -> Feature:
    if isinstance(value, str):
        return Feature("string")
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        return Feature("int64", array.shape)
    if array.dtype.kind == "f":
        return Feature("float32", array.shape)
    raise ValueError(f"{name}: expected text or numbers, found {type(value).__name__}")
