"""Reads TFF's SQLite files (`tff.simulation.datasets`) as client stores, and writes them.

The table `examples` has a serialized `tf.train.Example` in each row, and `client_metadata` the
number of examples of each client and split. Files that `to_tff` writes have more tables, which TFF
ignores:

    client_domains    the number of examples of each domain of a client
    vocabulary        the words of a text store with their counts, the most frequent first
    sentence_lengths  the number of sentences of a text store by their number of words
    tff_agnostic      one row: the description in JSON; written last
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import file_digest, scratch_folder
from tff_agnostic.base.later import tf
from tff_agnostic.data.store import ArrowStore, Store
from tff_agnostic.data.store_format import (
    TEXT,
    Feature,
    StoreDescription,
    parse_description,
)

_TABLES = """
CREATE TABLE examples (
  split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
CREATE TABLE client_metadata (
  client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
CREATE TABLE client_domains (
  split_name TEXT NOT NULL, client_id TEXT NOT NULL, domain TEXT NOT NULL,
  num_examples INTEGER NOT NULL);
CREATE TABLE vocabulary (rank INTEGER PRIMARY KEY, word TEXT NOT NULL, count INTEGER NOT NULL);
CREATE TABLE sentence_lengths (
  split_name TEXT NOT NULL, domain TEXT NOT NULL, words INTEGER NOT NULL,
  num_sentences INTEGER NOT NULL);
CREATE TABLE tff_agnostic (description TEXT NOT NULL);
"""
# Commands that create indices, with which this module and TFF find a client's rows.
_INDICES = """
CREATE INDEX examples_by_client ON examples (client_id, split_name);
CREATE INDEX metadata_by_split ON client_metadata (split_name, client_id);
CREATE INDEX domains_by_split ON client_domains (split_name, client_id);
"""
# Columns of the tables that TFF reads.
_TFF_TABLES = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name", "num_examples"},
}
# Seconds to wait for a process that writes to the file.
_PATIENCE = 5.0
# First bytes of an SQLite file.
_SQLITE = b"SQLite format 3\0"
# No journal is needed: after a crash there is no file at the path that it could repair.
_PRAGMAS = "PRAGMA page_size=16384; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"


class TffStore(Store):
    """An SQLite file of TFF, opened read-only; TensorFlow parses its examples."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path)
        self._local = threading.local()
        self._counts: dict[str, dict[str, int]] = {}
        self._check_tables()
        self.description = self._read_description()

    def splits(self) -> tuple[str, ...]:
        """See `Store.splits`."""
        sql = "SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name"
        return tuple(name for (name,) in self._query(sql, kinds=(str,)))

    def client_counts(self, split: str) -> dict[str, int]:
        """See `Store.client_counts`."""
        if split in self._counts:
            return self._counts[split]
        counts: dict[str, int] = {}
        # The largest rowid is an upper bound of the number of rows, as deleted rows leave gaps.
        ((left,),) = self._query("SELECT coalesce(MAX(rowid), 0) FROM examples")
        # Clients are sorted as in Python, because SQLite compares strings by their UTF-8 bytes.
        for client, n in self._query(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? "
            "ORDER BY client_id COLLATE BINARY",
            [split],
            (str, int),
        ):
            if client in counts or not 0 <= n <= left:
                expected = f"one number of examples from 0 to {left}"
                raise self._wrong(client, split, expected, "two" if client in counts else str(n))
            counts[client] = n
            left -= n
        if not counts:
            raise self._no_clients(split)
        self._counts[split] = counts
        return counts

    def read(self, split: str, client_id: str) -> list[bytes]:
        """Returns the serialized examples of one client."""
        rows = self._query(
            "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?",
            [client_id, split],
            (bytes,),
        )
        examples = [example for (example,) in rows]
        self.check_unchanged()
        return examples

    def columns(
        self, split: str, client_id: str, features: Mapping[str, Feature]
    ) -> dict[str, np.ndarray]:
        """See `Store.columns`."""
        counts = self.client_counts(split)
        examples = self.read(split, client_id) if client_id in counts else []
        if not examples:
            raise self._no_examples(split, client_id, () if client_id in counts else counts)
        if len(examples) != counts[client_id]:
            expected = f"{counted(counts[client_id], 'example')}, as in client_metadata"
            raise self._wrong(client_id, split, expected, str(len(examples)))
        return parse_examples(examples, features, f"{self.path}: client {client_id}")

    def domain_table(self, split: str) -> Optional[np.ndarray]:
        """See `Store.domain_table`."""
        if self.description.kind is None:
            return None
        counts = self.client_counts(split)
        rows = {client: row for row, client in enumerate(counts)}
        domains = {name: k for k, name in enumerate(self.description.domains)}
        table = np.zeros([len(rows), len(domains)], np.int64)
        for client, domain, n in self._query(
            "SELECT client_id, domain, num_examples FROM client_domains WHERE split_name = ?",
            [split],
            (str, str, int),
        ):
            if not 0 <= n <= counts.get(client, -1) or domain not in domains:
                expected = f"0 to {counts.get(client, 0)} examples of each domain"
                raise self._wrong(client, split, expected, f"{n} of {domain!r:.60}")
            table[rows[client], domains[domain]] += n
        for (client, count), total in zip(counts.items(), table.sum(axis=1).tolist()):
            if total != count:
                expected = f"{counted(count, 'example')} in all domains together"
                raise self._wrong(client, split, expected, str(total))
        return table

    def sentence_lengths(self, split: str) -> dict[int, int]:
        """See `Store.sentence_lengths`."""
        rows = self._query(
            "SELECT words, SUM(num_sentences) FROM sentence_lengths WHERE split_name = ? "
            "GROUP BY words ORDER BY words",
            [split],
            (int, int),
        )
        lengths = dict(rows)
        if any(words < 0 or n < 0 for words, n in lengths.items()):
            raise UserError(f"{self.path}: expected numbers of sentences, found negative ones")
        return lengths

    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """See `Store.vocabulary`."""
        words: tuple[str, ...] = ()
        if self.description.kind is not None:
            sql = "SELECT word FROM vocabulary ORDER BY rank LIMIT ?"
            limit = -1 if size is None else size
            words = tuple(word for (word,) in self._query(sql, [limit], (str,)))
        if not words:
            raise UserError(f"{self.path}: expected a vocabulary, found a store without one")
        return words

    def digest(self) -> str:
        """See `Store.digest`."""
        name = _store_digest(self.path.absolute(), self._version)
        self.check_unchanged()
        return name

    def _wrong(self, client: str, split: str, expected: str, actual: str) -> UserError:
        where = f"{self.path}: client {client!r:.60} of split {split}"
        return UserError(f"{where}: expected {expected}, found {actual}")

    def _query(
        self, sql: str, parameters: Sequence[Any] = (), kinds: tuple[type, ...] = ()
    ) -> Iterator[Any]:
        """Yields rows one by one, as a million clients' rows would need much memory."""
        try:
            for row in self._connection().execute(sql, parameters):
                # Check the types of values, as a column of SQLite may contain values of any type.
                for value, kind in zip(row, kinds):
                    if type(value) is not kind:
                        raise UserError(
                            f"{self.path}: expected a client store with {kind.__name__} where it "
                            f"has {value!r:.60} ({type(value).__name__})"
                        )
                yield row
        except sqlite3.OperationalError as e:
            if "locked" in str(e):
                raise UserError(f"{self.path}: another process is writing to the store") from e
            raise UserError(f"{self.path}: cannot read the store: {e}") from e
        except sqlite3.DatabaseError as e:
            with open(self.path, "rb") as file:
                if file.read(len(_SQLITE)) == _SQLITE:
                    message = f"expected an SQLite file, found a damaged one: {e}"
                else:
                    message = (
                        "expected a client store, found a file of another format (./run "
                        "import_data makes a store of tables, texts and images)"
                    )
            raise UserError(f"{self.path}: {message}") from e

    def _connection(self) -> sqlite3.Connection:
        # Open a connection in each thread and after a fork, as SQLite forbids sharing connections.
        if getattr(self._local, "pid", None) != os.getpid():
            uri = self.path.absolute().as_uri() + "?mode=ro"
            self._local.connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE)
            # Follow SQLite's advice on untrusted files.
            self._local.connection.executescript(
                "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"
            )
            self._local.pid = os.getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def _check_tables(self) -> None:
        # Reject views, triggers and virtual tables, which run code when a file is read or written.
        for kind, name in self._query(
            "SELECT type, name FROM sqlite_master "
            "WHERE type NOT IN ('table', 'index') OR coalesce(rootpage, 0) <= 0"
        ):
            what = "virtual table" if kind == "table" else kind
            raise UserError(
                f"{self.path}: expected a client store of tables and indices, found the {what} "
                f"{name!r:.60}"
            )
        for table, columns in _TFF_TABLES.items():
            names = {row[1] for row in self._query(f"PRAGMA table_info({table})")}
            if not columns <= names:
                raise UserError(
                    f"{self.path}: expected a client store with the table {table} "
                    f"({', '.join(sorted(columns))}), found {', '.join(sorted(names)) or 'none'}"
                )
        # Without an index, this query reads all rows, but so does every read of a client.
        if [*self._query("SELECT 1 FROM examples WHERE client_id IS NULL LIMIT 1")]:
            raise UserError(f"{self.path}: expected a client of each example, found none (NULL)")

    def _read_description(self) -> StoreDescription:
        if [*self._query("SELECT name FROM sqlite_master WHERE name = 'tff_agnostic'")]:
            texts = [*self._query("SELECT description FROM tff_agnostic", kinds=(str,))]
            if not texts:
                raise UserError(f"{self.path}: expected a complete store, found an incomplete one")
            try:
                return parse_description(texts[0][0])[0]
            except ValueError as e:
                raise UserError(f"{self.path}: {e}") from e
        sql = "SELECT serialized_example_proto FROM examples LIMIT 1"
        first = [*self._query(sql, kinds=(bytes,))]
        if not first:
            raise UserError(f"{self.path}: expected examples, found none")
        return StoreDescription(kind=None, features=_example_features(first[0][0], self.path))


# Cache the digest: a store may have many gigabytes, and a comparison opens it for every trial.
@functools.lru_cache(maxsize=8)
def _store_digest(path: Path, version: tuple[int, int]) -> str:
    del version
    return file_digest(path)


def parse_examples(
    serialized: Sequence[bytes], features: Mapping[str, Feature], where: str
) -> dict[str, np.ndarray]:
    """Returns the columns of `tf.train.Example`s; see `Store.columns`.

    Args:
        serialized: Serialized examples, n of them.
        where: Name of the client, for messages.
    """
    if not features:
        return {}
    expected = ", ".join(f"{n} ({f.dtype} {list(f.shape)})" for n, f in features.items())
    smallest = min(map(len, serialized), default=0)
    for name, feature in features.items():
        # Reject impossible shapes, as TensorFlow allocates memory for any claimed shape.
        if serialized and math.prod(feature.shape) > smallest:
            raise UserError(
                f"{where}: expected examples with {expected}, found one of {smallest} bytes, which "
                f"cannot hold {name}"
            )
    spec = {
        name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype))
        for name, feature in features.items()
    }
    try:
        # This operation can only run on a CPU.
        with tf.device("CPU:0"):
            columns = tf.io.parse_example(tf.constant(list(serialized), tf.string), spec)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
        message = " ".join(str(getattr(e, "message", e)).split())
        raise UserError(f"{where}: expected examples with {expected}, found: {message}") from e
    return {name: column.numpy() for name, column in columns.items()}


def _example_features(serialized: bytes, path: Path) -> dict[str, Feature]:
    """Returns the features of an example, for stores without a description.

    Args:
        path: Path of its store, for messages.
    """
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception as e:  # protobuf's implementations have different error types.
        raise UserError(f"{path}: expected tf.train.Examples, found invalid bytes ({e})") from e
    names = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
    features = {}
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        length = len(getattr(feature, kind).value)
        features[name] = Feature(names[kind], () if length == 1 else (length,))
    return features


def to_tff(store: ArrowStore, path: Path) -> None:
    """Writes a store as an SQLite file that TFF, devices and nodes of a fleet can read.

    Args:
        path: The file, which must not exist yet.
    """
    if path.exists():
        raise UserError(f"{path}: expected no file there yet: stores are not overwritten")
    try:
        with scratch_folder(path) as folder:
            with contextlib.closing(sqlite3.connect(folder / "tff.sqlite")) as database:
                _write_tables(database, store)
            (folder / "tff.sqlite").rename(path)
    except (sqlite3.Error, OSError) as e:
        raise UserError(f"{path}: cannot write the file: {e}") from e


def _write_tables(database: sqlite3.Connection, store: ArrowStore) -> None:
    database.executescript(_PRAGMAS + _TABLES)
    domains = store.description.domains
    for split in store.splits():
        counts = store.client_counts(split)
        database.executemany(
            "INSERT INTO examples VALUES (?, ?, ?)",
            (
                (split, client, example)
                for client in counts
                for example in _serialized(store, split, client)
            ),
        )
        database.executemany(
            "INSERT INTO client_metadata VALUES (?, ?, ?)",
            ((client, split, count) for client, count in counts.items()),
        )
        database.executemany(
            "INSERT INTO client_domains VALUES (?, ?, ?, ?)",
            (
                (split, client, domain, n)
                for client, row in zip(counts, store.domain_table(split).tolist())
                for domain, n in sorted(zip(domains, row))
                if n
            ),
        )
    if store.description.kind == TEXT:
        words = [(rank, *word) for rank, word in enumerate(store.content.vocabulary, start=1)]
        database.executemany("INSERT INTO vocabulary VALUES (?, ?, ?)", words)
        lengths = store.content.sentence_lengths
        database.executemany("INSERT INTO sentence_lengths VALUES (?, ?, ?, ?)", lengths)
    database.executescript(_INDICES)
    database.execute("INSERT INTO tff_agnostic VALUES (?)", [store.description.to_json()])
    database.commit()


def _serialized(store: ArrowStore, split: str, client: str) -> Iterator[bytes]:
    columns = store.columns(split, client, store.description.features)
    for row in zip(*columns.values()):
        # Use a new message per row, as a message keeps the memory of all its parses.
        features = tf.train.Features(feature=dict(zip(columns, map(_feature, row))))
        yield tf.train.Example(features=features).SerializeToString(deterministic=True)


def _feature(value: Any) -> Any:
    """Converts the bytes of a string, or an array of numbers, to a `tf.train.Feature`."""
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=array))
