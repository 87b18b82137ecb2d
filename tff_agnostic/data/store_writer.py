"""Writes client stores, in one pass over records in any order and in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import scratch_folder
from tff_agnostic.data.store_examples import (
    ExampleSerializer,
    complete,
    inputs_with_statistics,
    parsed_features,
    statistics_of,
)
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
    Record,
    StoredColumns,
    StoreDescription,
    Value,
)

# Rows between two calls of SQLite.
_ROWS_AT_ONCE = 1000
# Pairs of a unit and a domain in memory.
_MAX_NEW = 100_000

# (split, client, domain, unit, example)
_Row = tuple[str, str, str, Optional[int], bytes]
# (split before, split now, the example)
OnMoved = Callable[[str, str, Record], object]


@dataclasses.dataclass
class Rows:
    """Sentences for a store, with all that is counted about them.

    Attributes:
        rows: (split, client, domain, unit, examples) of sentences of one text.
        features: Those of an example; None without one.
        counts: Examples by (split, domain).
        lengths: Examples by (split, domain, words).
        units: Examples by (unit, domain).
    """

    rows: list[tuple[str, str, str, Optional[int], list[bytes]]] = dataclasses.field(
        default_factory=list
    )
    features: Optional[dict[str, Value]] = None
    counts: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    lengths: Counter[tuple[str, str, int]] = dataclasses.field(default_factory=Counter)
    units: Counter[tuple[int, str]] = dataclasses.field(default_factory=Counter)

    def add(
        self,
        split: str,
        record: Record,
        unit: Optional[int],
        examples: list[bytes],
        words: Sequence[int],
    ) -> None:
        """Adds sentences of one client.

        Args:
            record: What they share.
            unit: See `StoreWriter.add`.
            words: How many words each has.
        """
        domain = record.domain
        self.rows.append((split, record.client, domain, unit, examples))
        self.counts[split, domain] += len(examples)
        for length in words:
            self.lengths[split, domain, length] += 1
        if unit is not None:
            self.units[unit, domain] += len(examples)

    def texts(self, split: str) -> Iterator[str]:
        """Yields the sentences of a split."""
        for of_split, _, _, _, examples in self.rows:
            if of_split == split:
                yield from (str(parsed_features(one)[TOKENS]) for one in examples)


class StoreWriter:
    """A store in the making; a context manager.

    Rows go to a scratch folder next to `path`, are sorted by client there (on the disk, in bounded
    memory) by `finish`, and come into place at the end of the block, all at once. Without `finish`,
    and after an exception, nothing is left behind.

    Args:
        path: The store's file.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise UserError(f"{path}: expected no file there yet: stores are not overwritten")
        self._contents = StoreContents()
        self._path = path
        self._scratch = contextlib.ExitStack()
        self._folder = path.parent
        self._is_complete = False
        self._serialize = ExampleSerializer()
        self._units: Optional[UnitCounts] = None
        self._rows: list[_Row] = []
        self._connection: Optional[sqlite3.Connection] = None

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Examples so far, by (split, domain)."""
        return self._contents.counts

    def __enter__(self) -> StoreWriter:
        """Creates the scratch folder, and a database in it."""
        with self._errors(), contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(scratch_folder(self._path))
            self._connection = _scratch_database(self._unsorted)
            self._connection.executescript(
                "CREATE TABLE rows (split_name TEXT, client_id TEXT, domain TEXT, unit INTEGER, "
                "proto BLOB);"
            )
            self._units = UnitCounts(self._connection)
            self._scratch = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Puts a finished store in its place, and removes the scratch folder."""
        with self._scratch, self._errors():
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._is_complete and exc_info[0] is None:
                _move(self._sorted, self._path)

    def add(self, split: str, record: Record, unit: Optional[int] = None) -> None:
        """Adds an example.

        Args:
            unit: What is in one split as a whole, if that may still become another one; see
                `reassign`. A signed number of 64 bits.

        Raises:
            ValueError: If its features differ from those of the first one in name, type or shape.
        """
        features = {**record.features, DOMAIN: record.domain}
        self._contents.add(split, record, features)
        if unit is not None:
            assert self._units is not None
            self._units.add(unit, record.domain)
        self._rows.append((split, record.client, record.domain, unit, self._serialize(features)))
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def add_rows(self, rows: Rows) -> None:
        """Adds sentences."""
        self._contents.add_rows(rows)
        assert self._units is not None
        self._units.update(rows.units)
        self._flush(
            (split, client, domain, unit, example)
            for split, client, domain, unit, examples in rows.rows
            for example in examples
        )

    def units(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, examples) of all units so far, in ascending order."""
        assert self._units is not None
        with self._errors():
            yield from self._units

    def reassign(self, splits: Mapping[int, str], on_moved: OnMoved) -> None:
        """Moves units to other splits.

        Args:
            splits: The split of each unit that moves.
            on_moved: Called with every example that moves.
        """
        if not splits:
            return
        self._flush()
        assert self._connection is not None
        with self._errors():
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
        columns: Optional[StoredColumns] = None,
        standardize: bool = False,
    ) -> Path:
        """Sorts, and describes the store.

        Args:
            kind: "text" or "features".
            vocabulary: Words and their counts, the most frequent first.
            class_names: Names of the classes that labels count.
            source: Human-readable origin of the examples.
            categories: The known values of each categorical column, in the order of their ids.
            columns: The columns of its features; where some may be missing, their numbers are NaN
                so far.
            standardize: Whether numbers get the mean 0 and the deviation 1 of training clients.

        Returns:
            The complete store, which is in the scratch folder until the end of the block.
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
            columns=columns,
            is_standardized=standardize,
        )
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        with self._errors():
            self._write_sorted(description, vocabulary or {})
        self._is_complete = True
        return self._sorted

    def _write_sorted(self, description: StoreDescription, vocabulary: Mapping[str, int]) -> None:
        connection = _scratch_database(self._sorted)
        try:
            connection.executescript(TFF_TABLES + OWN_TABLES)
            connection.execute("ATTACH ? AS unsorted", [str(self._unsorted)])
            # rowid keeps a client's examples in the order in which they came.
            connection.execute(
                "INSERT INTO examples SELECT split_name, client_id, proto FROM unsorted.rows "
                "ORDER BY split_name, client_id, rowid"
            )
            description = _with_numbers(connection, description)
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

    @property
    def _unsorted(self) -> Path:
        return self._folder / "unsorted.sqlite"

    @property
    def _sorted(self) -> Path:
        return self._folder / "sorted.sqlite"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of SQLite and of the file system into a `UserError` that names the store."""
        try:
            yield
        except (sqlite3.Error, OSError) as e:
            raise UserError(f"{self._path}: cannot write the store: {e}") from e

    def _flush(self, more: Iterable[_Row] = ()) -> None:
        assert self._connection is not None
        rows = itertools.chain(self._rows, more)
        with self._errors():
            self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
            if self._units is not None:
                self._units.bound_memory()
            self._connection.commit()
        self._rows = []


def _move(complete: Path, path: Path) -> None:
    """Gives a file another name, which no file has."""
    with open(complete, "rb") as file:
        os.fsync(file.fileno())
    try:
        # Unlike a rename, a link does not replace what another process put there meanwhile.
        os.link(complete, path)
    except FileExistsError:
        raise UserError(f"{path}: another process made a file there meanwhile") from None
    except OSError:
        # Not every file system has links.
        complete.rename(path)


def _with_numbers(database: sqlite3.Connection, description: StoreDescription) -> StoreDescription:
    """Completes the numbers of sorted examples; returns the description with their statistics."""
    sizes = inputs_with_statistics(description)
    statistics = statistics_of(database, sizes)
    columns = description.columns
    if description.is_standardized:
        complete(database, sizes, statistics)
    elif columns is not None and columns.missing_cells is not None:
        complete(database, {name: description.num_numbers(name) for name in columns.numbers}, None)
    return dataclasses.replace(description, statistics=statistics)


class StoreContents:
    """Counts and ranges over examples, kept as they are added and move between splits.

    Attributes:
        counts: Examples so far, by (split, domain).
        features: The type of each feature, that of the first example.
        label_range: Smallest and largest label of the training examples, if labels are float32.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.features: dict[str, Feature] = {}
        self.label_range: Optional[tuple[float, float]] = None
        self._lengths: Counter[tuple[str, str, int]] = Counter()
        self._labels: Optional[tuple[int, int]] = None
        self._known_looks: set[Any] = set()

    def add(self, split: str, record: Record, features: Mapping[str, Value]) -> None:
        """Counts an example.

        Args:
            features: Its stored features, and its domain.

        Raises:
            ValueError: If they differ from those of the first one in name, type or shape.
        """
        self._check(features)
        self._see_label(split, record.features.get(LABEL))
        self._count(split, record, 1)

    def add_rows(self, rows: Rows) -> None:
        """Counts sentences; raises as `add` does."""
        if rows.features is not None:
            self._check(rows.features)
        self.counts.update(rows.counts)
        self._lengths.update(rows.lengths)

    def move(self, old: str, new: str, record: Record) -> None:
        """Counts an example in another split; `end_moves` comes after the last."""
        self._count(old, record, -1)
        self._count(new, record, 1)

    def end_moves(self, training_labels: Iterable[Value]) -> None:
        """Forgets the domains that a split has lost, and ranges labels anew.

        Args:
            training_labels: Labels of the current training examples; read only if labels are
                float32.
        """
        self.counts = +self.counts
        if self.label_range is not None:
            self.label_range = None
            for label in training_labels:
                self._widen_label_range(label)

    def domains(self) -> tuple[str, ...]:
        """Returns the domains, in alphabetical order; if all are whole numbers, by these."""
        names = {domain for _, domain in self.counts}
        if all(name.isascii() and name.isdecimal() for name in names):
            return tuple(sorted(names, key=lambda name: (int(name), name)))
        return tuple(sorted(names))

    def lengths(self) -> Iterable[tuple[str, str, int, int]]:
        """Returns (split, domain, words, sentences), in ascending order."""
        return ((*key, n) for key, n in sorted(self._lengths.items()) if n)

    def num_classes(self, class_names: Optional[Sequence[str]]) -> Optional[int]:
        """Returns how many classes labels count; None if they count none."""
        if class_names is not None:
            return len(class_names)
        # Negative numbers are quantities, no classes.
        return self._labels[1] + 1 if self._labels and self._labels[0] >= 0 else None

    def _count(self, split: str, record: Record, by: int) -> None:
        self.counts[split, record.domain] += by
        tokens = record.features.get(TOKENS)
        if tokens is not None:
            self._lengths[split, record.domain, str(tokens).count(" ") + 1] += by

    def _see_label(self, split: str, label: Optional[Value]) -> None:
        feature = self.features.get(LABEL)
        if feature == Feature("int64"):
            value = int(np.asarray(label))
            low, high = self._labels or (value, value)
            self._labels = min(low, value), max(high, value)
        elif feature == Feature("float32") and split == TRAIN:
            assert label is not None
            self._widen_label_range(label)

    def _widen_label_range(self, label: Value) -> None:
        number = float(np.asarray(label).item())
        least, most = self.label_range or (number, number)
        self.label_range = min(least, number), max(most, number)

    def _check(self, features: Mapping[str, Value]) -> None:
        # Most records are alike in this: looking at types alone saves time.
        look = tuple([(name, type(value)) for name, value in features.items()])
        if look in self._known_looks:
            return
        found = {name: _feature(name, value) for name, value in features.items()}
        if not self.features:
            self.features = found
        elif found != self.features:
            different = next(
                name
                for name in (*self.features, *found)
                if found.get(name) != self.features.get(name)
            )
            raise ValueError(
                f"{different}: expected {self.features.get(different, 'no such feature')}, as in "
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


def _scratch_database(path: Path) -> sqlite3.Connection:
    """Creates a database, and opens it."""
    connection = sqlite3.connect(path)
    # A crash leaves no store anyway: no journal is needed to go back.
    connection.executescript(
        "PRAGMA page_size=16384; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
    )
    return connection


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

    def update(self, counts: Mapping[tuple[int, str], int]) -> None:
        """Counts examples, by (unit, domain)."""
        self._new.update(counts)

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
