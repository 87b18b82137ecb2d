"""Reads one client's examples from an SQLite file of TFF (`tff.simulation.datasets`).

The table `examples` has a serialised `tf.train.Example` in each row. The table `client_metadata`
has the number of examples of each client.
"""

import contextlib
import difflib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plan_runner.errors import PlanError, counted

# Names of the features with an example's domain and label.
DOMAIN, LABEL = "domain", "label"
# Name of the training split.
TRAIN = "train"
# Format version of the stores that `import_data` writes, which is in their table `tff_agnostic`.
_FORMAT_VERSION = 1
# Seconds to wait for another process that is writing to the file.
_PATIENCE = 5.0


class ClientStore:
    """A store, opened read-only; all queries run in one transaction."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise PlanError(f"{path}: expected a client store, found no such file")
        self.path = path
        uri = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE)
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            with self._errors():
                # SQLite's documentation recommends these settings for untrusted files.
                self._connection.executescript(
                    "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; BEGIN"
                )
            self._check_schema()
            stack.pop_all()

    def _check_schema(self) -> None:
        # Views, triggers and virtual tables could execute code from the file.
        others = self._query(
            "SELECT type, name FROM sqlite_master "
            "WHERE type NOT IN ('table', 'index') OR coalesce(rootpage, 0) <= 0"
        )
        for kind, name in others:
            raise PlanError(
                f"{self.path}: expected a client store of tables and indices, found the "
                f"{'virtual table' if kind == 'table' else kind} {name!r:.60}"
            )
        if self._query("SELECT 1 FROM sqlite_master WHERE name = 'tff_agnostic'"):
            sql = "SELECT json_extract(description, '$.version') FROM tff_agnostic"
            versions = [row[0] for row in self._query(sql)]
            if versions != [_FORMAT_VERSION]:
                raise PlanError(
                    f"{self.path}: expected a store of version {_FORMAT_VERSION}, found "
                    f"{', '.join(map(str, versions)) or 'none'}"
                )

    def client_counts(self, split: str) -> dict[str, int]:
        """Returns each client's number of examples in a split."""
        sql = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
        pairs = self._query(sql, split)
        for pair in pairs:
            if tuple(map(type, pair)) != (str, int):
                raise PlanError(
                    f"{self.path}: expected a client and its number of examples, found "
                    f"{pair!r:.100}"
                )
        counts = dict(pairs)
        if len(counts) < len(pairs):
            raise PlanError(f"{self.path}: expected each client of split {split} once, found two")
        sql = "SELECT 1 FROM examples WHERE split_name = ? AND client_id IS NULL LIMIT 1"
        if self._query(sql, split):
            raise PlanError(f"{self.path}: expected a client of each example, found none (NULL)")
        if not counts:
            rows = self._query(
                "SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name"
            )
            splits = ", ".join(row[0] for row in rows)
            raise PlanError(
                f"{self.path}: expected clients in split {split}, found the splits "
                f"{splits or '(none)'}"
            )
        return counts

    def examples(self, split: str, client: str, counts: Mapping[str, int]) -> list[bytes]:
        """Returns one client's serialised examples, and checks their number.

        Args:
            counts: Result of `client_counts` for the split.
        """
        where = f"{self.path}: client {client}"
        if not counts.get(client):
            names = " or ".join(difflib.get_close_matches(client, counts))
            meant = f" (did you mean {names}?)" if names and client not in counts else ""
            raise PlanError(f"{where}: expected examples in split {split}, found none{meant}")
        sql = "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?"
        records = [row[0] for row in self._query(sql, client, split)]
        for record in records:
            if not isinstance(record, bytes):
                raise PlanError(
                    f"{where}: expected serialised tf.train.Example messages, found "
                    f"{type(record).__name__}"
                )
        if len(records) != counts[client]:
            expected = f"{counted(counts[client], 'example')} in split {split}"
            raise PlanError(f"{where}: expected {expected}, found {len(records)}")
        return records

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _query(self, sql: str, *parameters: str) -> list[Any]:
        with self._errors():
            return self._connection.execute(sql, parameters).fetchall()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise PlanError(f"{self.path}: expected a client store, cannot read it: {e}") from e
