"""Client stores, the SQLite files of `import_data`, read-only: the examples of one client.

The format is TFF's (`tff.simulation.datasets`): the table `examples` has a serialised
`tf.train.Example` in each row, and `client_metadata` how many a client has. Our stores have the
table `tff_agnostic`, too, with a description in JSON.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from tff_agnostic.base.errors import UserError, counted

FORMAT_VERSION = 1
# The features that name an example's domain, and its label.
DOMAIN = "domain"
LABEL = "label"
# The split to train on.
TRAIN = "train"
_TFF_TABLES = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name", "num_examples"},
}
# Seconds to wait for a process that writes to the file.
_PATIENCE = 5.0
# Rows that are looked at without an index.
_MAX_SCANNED = 1_000_000
_ROWS_AT_ONCE = 1000
# How a file of SQLite begins.
_SQLITE = b"SQLite format 3\0"


class ClientStore:
    """A store, opened read-only; may be used by several threads and processes at once.

    Attributes:
        path: The file.
        described: Its description, as JSON has it; None in a store that TFF wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._check_file()
        self._data_version = self._version()
        self.described = self._read_described()

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
        """Returns the number of examples of each client of a split, sorted by the clients' ids."""
        counts: dict[str, int] = {}
        num_rows = 0
        # The order of UTF-8's bytes is Python's order.
        for client, n in self._stream(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? "
            "ORDER BY client_id COLLATE BINARY",
            [split],
            (str, int),
        ):
            counts[client] = n
            num_rows += 1
        if not counts:
            raise UserError(
                f"{self.path}: expected clients in split {split}, found the splits "
                f"{', '.join(self.splits()) or '(none)'}"
            )
        if len(counts) < num_rows:
            raise UserError(f"{self.path}: expected each client of split {split} once")
        # Rows that were deleted may leave a gap, and none may come twice.
        ((most,),) = self._query("SELECT MAX(rowid) FROM examples")
        left = most or 0
        for client, n in counts.items():
            if not 0 <= n <= left:
                raise self._wrong_count(client, split, f"0 to {counted(left, 'example')}", n)
            left -= n
        return counts

    def read(self, split: str, client_id: str) -> list[bytes]:
        """Returns the serialized examples of one client."""
        rows = self._query(
            "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?",
            [client_id, split],
            (bytes,),
        )
        self.check_unchanged()
        return [row[0] for row in rows]

    def examples(self, split: str, client_id: str, counts: Mapping[str, int]) -> list[bytes]:
        """Returns the serialized examples of one client, which has to have some.

        Args:
            counts: Numbers of examples by client, from `client_counts`.
        """
        where = f"{self.path}: client {client_id}"
        count = counts.get(client_id)
        rows = [] if count is None else self.read(split, client_id)
        if not rows:
            nearest = difflib.get_close_matches(client_id, () if count is not None else counts)
            meant = f" (did you mean {' or '.join(nearest)}?)" if nearest else ""
            raise UserError(f"{where}: expected examples in split {split}, found none{meant}")
        if len(rows) != count:
            raise UserError(
                f"{where}: expected {counted(counts[client_id], 'example')} in split {split}, as "
                f"the table client_metadata has it, found {len(rows)}"
            )
        return rows

    def close(self) -> None:
        """Closes what this thread has opened."""
        self._connection().close()
        del self._local.pid

    def check_unchanged(self) -> None:
        """Checks that the file is as it was when it was opened."""
        if self._version() != self._data_version:
            raise UserError(
                f"{self.path}: the store was changed while it was read: let what writes to it end, "
                "and start again"
            )

    def _wrong_count(
        self, client: str, split: str, expected: str, actual: Union[int, str]
    ) -> UserError:
        return UserError(
            f"{self.path}: client {client!r:.60} of split {split}: expected {expected}, found "
            f"{actual}"
        )

    def _query(
        self, sql: str, parameters: Sequence[Any] = (), kinds: tuple[type, ...] = ()
    ) -> list[Any]:
        return list(self._stream(sql, parameters, kinds))

    def _stream(
        self, sql: str, parameters: Sequence[Any] = (), kinds: tuple[type, ...] = ()
    ) -> Iterator[Any]:
        """Yields rows one by one: of a million clients they would need much memory at once."""
        with self._errors():
            rows = self._connection().execute(sql, parameters)
        while True:
            with self._errors():
                block = rows.fetchmany(_ROWS_AT_ONCE)
            if not block:
                return
            # SQLite lets a column hold values of any type.
            for row in block:
                for value, kind in zip(row, kinds):
                    if type(value) is not kind:
                        raise UserError(
                            f"{self.path}: expected a client store with {kind.__name__} where it "
                            f"has {value!r:.60} ({type(value).__name__})"
                        )
            yield from block

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
                    f"{self.path}: expected a client store, found a file of another format (./run "
                    "import_data makes a store of tables, texts and images)"
                ) from e
            raise UserError(
                f"{self.path}: expected an SQLite file, found a damaged one: {e}"
            ) from e

    def _is_another_file(self) -> bool:
        with open(self.path, "rb") as file:
            return file.read(len(_SQLITE)) != _SQLITE

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise UserError(f"{self.path}: expected a client store, found no such file")
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
            names = {row[1] for row in self._query(f"PRAGMA table_info({table})")}
            if table not in tables or not columns <= names:
                raise UserError(
                    f"{self.path}: expected a client store with the table {table} "
                    f"({', '.join(sorted(columns))}), found {', '.join(sorted(names)) or 'none'}"
                )

        self._check_owners()

    def _check_owners(self) -> None:
        """Checks that every example has a client, where an index answers that at once."""
        columns = self._query("PRAGMA table_info(examples)")
        if any(name == "client_id" and is_never_null for _, name, _, is_never_null, *_ in columns):
            return
        without_client = "FROM examples WHERE client_id IS NULL"
        plan = self._query(f"EXPLAIN QUERY PLAN SELECT 1 {without_client}")
        ((most,),) = self._query("SELECT MAX(rowid) FROM examples")
        if (most or 0) > _MAX_SCANNED and not all(row[-1].startswith("SEARCH") for row in plan):
            # A store without an index: to see all of it takes too long.
            return
        if self._query(f"SELECT 1 {without_client} LIMIT 1"):
            raise UserError(f"{self.path}: expected a client of each example, found none (NULL)")

    def _read_described(self) -> Optional[dict[str, Any]]:
        if not self._query("SELECT name FROM sqlite_master WHERE name = 'tff_agnostic'"):
            return None
        rows = self._query("SELECT description FROM tff_agnostic", kinds=(str,))
        if not rows:
            raise UserError(f"{self.path}: expected a complete store, found one half-written")
        try:
            return described_by(rows[0][0])
        except ValueError as e:
            raise UserError(f"{self.path}: {e}") from e


def described_by(text: str) -> dict[str, Any]:
    """Returns the JSON of a description.

    Raises:
        ValueError: If it is of another version, or no JSON.
    """
    try:
        value: Any = json.loads(text)
        # JSON can write half a character, which no text can hold.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as e:
        raise ValueError(f"expected the description of a store, found invalid JSON ({e})") from e
    version = value.get("version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        is_newer = isinstance(version, int) and version > FORMAT_VERSION
        raise ValueError(
            f"expected a store of version {FORMAT_VERSION}, found {version!r}"
            + ("; a newer store needs a newer program" if is_newer else "")
        )
    description: dict[str, Any] = value
    return description
