"""Client stores read one client at a time, as datasets of parsed examples."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

import numpy as np

from tff_agnostic.data.store_format import Feature, StoreDescription, description_from_json
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest, file_digest
from tff_agnostic.later import tf
from tff_agnostic.models.model import Examples

_TFF_TABLES = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name", "num_examples"},
}
# Seconds to wait for a process that writes to the file.
_PATIENCE = 5.0
# Rows that are looked at without an index.
_MAX_SCANNED = 1_000_000
# Of parsed examples that the clients of a split keep: a run reads a client in many rounds. A
# comparison has as many such splits as seeds.
_KEPT_BYTES = 16 * 2**20
# How a file of SQLite begins.
_SQLITE = b"SQLite format 3\0"


class Store:
    """A store, opened read-only; may be used by several threads and processes at once.

    Attributes:
        path: The file.
        description: The store's description; for a store that TFF wrote, that of its first example.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._check_file()
        self._data_version = self._version()
        self.description = self._read_description()

    def splits(self) -> tuple[str, ...]:
        """Returns the names of the splits, sorted."""
        rows = self._query(
            "SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name", kinds=(str,)
        )
        return tuple(row[0] for row in rows)

    def client_ids(self, split: str) -> list[str]:
        """Returns the ids of a split's clients, sorted; see `client_counts`."""
        return list(self.client_counts(split))

    def client_counts(self, split: str) -> dict[str, int]:
        """Returns how many examples each client of a split has, sorted by the clients' ids."""
        rows = self._query(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?",
            [split],
            (str, int),
        )
        if not rows:
            raise UserError(
                f"{self.path}: expected clients in split {split}, found the splits "
                f"{', '.join(self.splits()) or '(none)'}"
            )
        counts = dict(sorted(rows))
        if len(counts) < len(rows):
            raise UserError(f"{self.path}: expected each client of split {split} once")
        # Rows that were deleted may leave a gap, and none may come twice.
        ((most,),) = self._query("SELECT MAX(rowid) FROM examples")
        left = most or 0
        for client, n in counts.items():
            if not 0 <= n <= left:
                raise self._wrong_count(client, split, f"0 to {left} examples", n)
            left -= n
        return counts

    def domain_counts(self, split: str) -> Optional[dict[str, dict[str, int]]]:
        """Returns {CLIENT: {DOMAIN: examples}} of a split; None in a store that TFF wrote."""
        if self.description.kind is None:
            return None
        expected = self.client_counts(split)
        counts: dict[str, dict[str, int]] = {}
        for client, domain, n in self._query(
            "SELECT client_id, domain, num_examples FROM client_domains WHERE split_name = ?",
            [split],
            (str, str, int),
        ):
            own = counts.setdefault(client, {})
            if n < 0:
                raise self._wrong_count(client, split, f"examples of domain {domain!r:.60}", n)
            if domain in own:
                raise self._wrong_count(client, split, f"domain {domain!r:.60} once", "it twice")
            own[domain] = n
        for client, own in counts.items():
            found = sum(own.values())
            if found != expected.get(client):
                in_all = f"{expected.get(client, 'no')} examples in all domains"
                raise self._wrong_count(client, split, in_all, found)
        return counts

    def _wrong_count(
        self, client: str, split: str, expected: str, found: Union[int, str]
    ) -> UserError:
        return UserError(
            f"{self.path}: client {client!r:.60} of split {split}: expected {expected}, found "
            f"{found}"
        )

    def sentence_lengths(self, split: str) -> Optional[dict[int, int]]:
        """Returns how many sentences of a split have how many words; None if that is not stored."""
        if not self._query("SELECT name FROM sqlite_master WHERE name = 'sentence_lengths'"):
            return None
        lengths = dict(
            self._query(
                "SELECT words, SUM(num_sentences) FROM sentence_lengths WHERE split_name = ? "
                "GROUP BY words ORDER BY words",
                [split],
                (int, int),
            )
        )
        if any(words < 0 or n < 0 for words, n in lengths.items()):
            raise UserError(f"{self.path}: expected numbers of sentences, found negative ones")
        return lengths

    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """Returns the most frequent words, the most frequent first.

        Args:
            size: How many; all if None.
        """
        if self.description.kind is None:
            raise UserError(f"{self.path}: expected a vocabulary, found a store without one")
        rows = self._query(
            "SELECT word FROM vocabulary ORDER BY rank LIMIT ?",
            [-1 if size is None else size],
            (str,),
        )
        if not rows:
            raise UserError(f"{self.path}: expected a vocabulary, found an empty one")
        return tuple(row[0] for row in rows)

    def read(self, split: str, client_id: str) -> list[bytes]:
        """Returns the serialized examples of one client."""
        rows = self._query(
            "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?",
            [client_id, split],
            (bytes,),
        )
        self.check_unchanged()
        return [row[0] for row in rows]

    def digest(self) -> str:
        """Returns a short name of the whole file, which changes with any example."""
        found = _digest_of(self.path.absolute(), self._data_version)
        self.check_unchanged()
        return found

    def _query(
        self, sql: str, parameters: Sequence[Any] = (), kinds: tuple[type, ...] = ()
    ) -> list[Any]:
        with self._errors():
            rows = self._connection().execute(sql, parameters).fetchall()
        # SQLite lets a column hold values of any type.
        for row in rows:
            for value, kind in zip(row, kinds):
                if type(value) is not kind:
                    raise UserError(
                        f"{self.path}: expected a client store with {kind.__name__} where it has "
                        f"{value!r:.60} ({type(value).__name__})"
                    )
        return rows

    def _connection(self) -> sqlite3.Connection:
        # SQLite's connections must not be carried into another thread, or through a fork.
        if getattr(self._local, "pid", None) != os.getpid():
            uri = self.path.absolute().as_uri() + "?mode=ro"
            self._local.connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE)
            # See SQLite's advice on untrusted files.
            self._local.connection.executescript(
                "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"
            )
            self._local.pid = os.getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def check_unchanged(self) -> None:
        """Checks that the file is as it was when it was opened."""
        if self._version() != self._data_version:
            raise UserError(
                f"{self.path}: the store was changed while it was read: let what writes to it end, "
                "and start again"
            )

    def _version(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except OSError as e:
            raise UserError(f"{self.path}: the store is gone ({e.strerror})") from e
        return status.st_mtime_ns, status.st_size

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as e:
            if "locked" in str(e):
                raise UserError(f"{self.path}: another process is writing to the store") from e
            raise UserError(f"{self.path}: cannot read the store: {e}") from e
        except sqlite3.DatabaseError as e:
            if self._is_another_file():
                raise UserError(
                    f"{self.path}: expected a client store, found another file (./run import_data "
                    "makes a store of tables, texts and images)"
                ) from e
            raise UserError(
                f"{self.path}: expected an SQLite file, found a damaged one: {e}"
            ) from e

    def _is_another_file(self) -> bool:
        with open(self.path, "rb") as file:
            return file.read(len(_SQLITE)) != _SQLITE

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise UserError(f"--data: expected a client store, found no file at {self.path}")
        # Views, triggers and virtual tables run code when the file is read or written.
        for kind, name in self._query(
            "SELECT type, name FROM sqlite_master "
            "WHERE type NOT IN ('table', 'index') OR coalesce(rootpage, 0) <= 0"
        ):
            what = "virtual table" if kind == "table" else kind
            raise UserError(
                f"{self.path}: expected a client store of tables and indices, found the {what} "
                f"{name!r:.60}"
            )
        tables = {row[0] for row in self._query("SELECT name FROM sqlite_master")}
        for table, columns in _TFF_TABLES.items():
            found = {row[1] for row in self._query(f"PRAGMA table_info({table})")}
            if table not in tables or not columns <= found:
                raise UserError(
                    f"{self.path}: expected a client store with the table {table} "
                    f"({', '.join(sorted(columns))}), found {', '.join(sorted(found)) or 'none'}"
                )

        self._check_owners()

    def _check_owners(self) -> None:
        """Checks that every example has a client, where an index answers that at once."""
        columns = self._query("PRAGMA table_info(examples)")
        if any(name == "client_id" and is_never_null for _, name, _, is_never_null, *_ in columns):
            return
        nobody = "FROM examples WHERE client_id IS NULL"
        plan = self._query(f"EXPLAIN QUERY PLAN SELECT 1 {nobody}")
        ((most,),) = self._query("SELECT MAX(rowid) FROM examples")
        if (most or 0) > _MAX_SCANNED and not all(row[-1].startswith("SEARCH") for row in plan):
            # A store without an index: to see all of it takes too long.
            return
        if self._query(f"SELECT 1 {nobody} LIMIT 1"):
            raise UserError(f"{self.path}: expected a client of each example, found none (NULL)")

    def _read_description(self) -> StoreDescription:
        is_ours = self._query("SELECT name FROM sqlite_master WHERE name = 'tff_agnostic'")
        if is_ours:
            rows = self._query("SELECT description FROM tff_agnostic", kinds=(str,))
            if not rows:
                raise UserError(f"{self.path}: expected a complete store, found one half-written")
            try:
                return description_from_json(rows[0][0])
            except ValueError as e:
                raise UserError(f"{self.path}: {e}") from e
        first = self._query("SELECT serialized_example_proto FROM examples LIMIT 1", kinds=(bytes,))
        if not first:
            raise UserError(f"{self.path}: expected examples, found none")
        return StoreDescription(kind=None, features=features_of(first[0][0], self.path))


def vocabulary_digest(words: Sequence[str]) -> str:
    """Returns a short name of a vocabulary: equal for equal words in equal order only."""
    return digest("\n".join(words).encode())


# A store may be of many gigabytes, and a comparison opens it for every trial.
@functools.lru_cache(maxsize=8)
def _digest_of(path: Path, version: tuple[int, int]) -> str:
    del version
    return file_digest(path)


# (client id, columns of the parsed features) -> examples.
ToExamples = Callable[[str, Mapping[str, np.ndarray]], Examples]


class StoreClients:
    """Clients of a split; reading one touches its rows only.

    The first clients that are read stay in memory, as many as fit into `_KEPT_BYTES`.

    Args:
        to_examples: Makes a client's examples of its columns.
        domain_names: Names of the task's domains, in the order of their ids.
        has_row_each: Whether every example of the store becomes one example.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        features: Mapping[str, Feature],
        to_examples: ToExamples,
        domain_names: Sequence[str],
        has_row_each: bool = True,
    ) -> None:
        self._store = store
        self._split = split
        self._features = features
        self._to_examples = to_examples
        self._domain_names = domain_names
        self._has_row_each = has_row_each
        self._counts = store.client_counts(split)
        self._ids = list(self._counts)
        self._kept: dict[str, Examples] = {}
        self._kept_bytes = 0

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples; see `ClientDataset.read`."""
        kept = self._kept.get(client_id)
        if kept is not None:
            self._store.check_unchanged()
            return kept
        examples = self._read(client_id)
        num_bytes = sum(np.asarray(column).nbytes for column in tf.nest.flatten(examples))
        if self._kept_bytes + num_bytes <= _KEPT_BYTES:
            self._kept_bytes += num_bytes
            self._kept[client_id] = examples
        return examples

    def _read(self, client_id: str) -> Examples:
        where = f"{self._store.path}: client {client_id}"
        count = self._counts.get(client_id)
        serialized = [] if count is None else self._store.read(self._split, client_id)
        if not serialized:
            raise UserError(f"{where}: expected examples in split {self._split}, found none")
        if len(serialized) != count:
            raise UserError(
                f"{where}: expected {count} examples in split {self._split}, as the table "
                f"client_metadata has it, found {len(serialized)}"
            )
        return self._to_examples(client_id, parse_examples(serialized, self._features, where))

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the examples of each client and domain, int64 [clients, p]; None if not known."""
        # A task may have domains that are not those of the store.
        if not self._has_row_each or not {*self._store.description.domains} <= {
            *self._domain_names
        }:
            return None
        counts = self._store.domain_counts(self._split)
        if counts is None:
            return None
        unknown = next((client for client in self._ids if client not in counts), None)
        if unknown is not None:
            raise UserError(
                f"{self._store.path}: expected the domains of every client in split {self._split}, "
                f"found none of client {unknown}"
            )
        return np.array(
            [[counts[client].get(name, 0) for name in self._domain_names] for client in self._ids],
            np.int64,
        )


def parse_examples(
    serialized: Sequence[bytes], features: Mapping[str, Feature], where: str
) -> dict[str, np.ndarray]:
    """Parses `tf.train.Example`s.

    Args:
        serialized: n examples.
        features: What to take from them.
        where: The client, for messages.

    Returns:
        A column of each feature, [n, *shape]; strings are bytes in object arrays.
    """
    if not features:
        return {}
    expected = ", ".join(f"{n} ({f.dtype} {list(f.shape)})" for n, f in features.items())
    smallest = min(map(len, serialized), default=0)
    for name, feature in features.items():
        # TensorFlow reserves what a shape needs before it looks; a value takes at least a byte.
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
        # The operation runs on CPUs only.
        with tf.device("CPU:0"):
            columns = tf.io.parse_example(tf.constant(list(serialized), tf.string), spec)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
        message = " ".join(str(getattr(e, "message", e)).split())
        raise UserError(f"{where}: expected examples with {expected}, found: {message}") from e
    return {name: column.numpy() for name, column in columns.items()}


def features_of(serialized: bytes, path: Path) -> dict[str, Feature]:
    """Returns what an example holds, for stores that do not describe themselves.

    Args:
        path: Its store, for messages.
    """
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception as e:  # protobuf's own error type differs between its implementations.
        raise UserError(f"{path}: expected tf.train.Examples, found something else ({e})") from e
    names = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
    features = {}
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        length = len(getattr(feature, kind).value)
        features[name] = Feature(names[kind], () if length == 1 else (length,))
    return features
