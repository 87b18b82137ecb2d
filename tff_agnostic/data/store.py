"""Client stores, read one client at a time as columns of examples.

A store is a folder of Arrow files, which `data.store_writer` writes:

    examples.arrow   the examples; a client's examples are consecutive; mapped into memory
    clients.parquet  split, client, first row, number of rows, number of examples of each domain
    store.json       description, digest, vocabulary, lengths of sentences; written last

`load_store` also opens the SQLite files of TFF, see `data.tff_store`.
"""

from __future__ import annotations

import abc
import difflib
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import digest
from tff_agnostic.base.later import tf
from tff_agnostic.data.clients import ListedClients
from tff_agnostic.data.store_format import (
    Feature,
    StoreDescription,
    described_by,
    description_of,
)
from tff_agnostic.models.model import Examples

# Maximum bytes of examples to keep in memory per split: runs read a client in many rounds, but a
# comparison has as many splits in memory as seeds.
KEPT_BYTES = 16 * 2**20
# Number of examples in memory during a pass over a store; a multiple of the rows per block of
# statistics.
_BATCH_ROWS = 16_000
EXAMPLES, CLIENTS, STORE = "examples.arrow", "clients.parquet", "store.json"


class Store(abc.ABC):
    """A store, opened read-only; may be used by several threads and processes at once.

    Attributes:
        path: Path of the store.
        description: The store's description; in a store that TFF wrote, the features of its first
            example.
    """

    path: Path
    description: StoreDescription

    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Returns the names of the splits, sorted."""

    @abc.abstractmethod
    def client_counts(self, split: str) -> dict[str, int]:
        """Returns the number of examples of each client of a split, sorted by client id."""

    def client_ids(self, split: str) -> list[str]:
        """Returns the ids of a split's clients, sorted."""
        return list(self.client_counts(split))

    @abc.abstractmethod
    def columns(
        self, split: str, client_id: str, features: Mapping[str, Feature]
    ) -> dict[str, np.ndarray]:
        """Returns the columns of one client's examples.

        Args:
            split: Name of the split.
            client_id: Id of the client.
            features: The features to read.

        Returns:
            A column of each feature, [n, *shape]; strings are bytes in object arrays.
        """

    @abc.abstractmethod
    def domain_table(self, split: str) -> Optional[np.ndarray]:
        """Returns the number of examples by client and domain, int64 [clients, domains].

        Clients are in the order of `client_counts`, domains in the order of the description. None
        in a store that TFF wrote.
        """

    @abc.abstractmethod
    def sentence_lengths(self, split: str) -> dict[int, int]:
        """Returns the number of sentences of a split by their number of words."""

    @abc.abstractmethod
    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """Returns the most frequent words, the most frequent first.

        Args:
            size: Number of words; all if None.
        """

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns a short name of the store's content, which changes with any example."""

    @abc.abstractmethod
    def check_unchanged(self) -> None:
        """Checks that the files have not changed since the store was opened."""


class SortedExamples:
    """The examples of a folder, mapped into memory, and the rows of each client.

    Attributes:
        table: All examples.
        rows: First row and number of rows of each client, by split; clients are sorted.
        domain_tables: Number of examples by client and domain, int64 [clients, domains], by split.
    """

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        # The file stays mapped as long as its columns are in use.
        with open(folder / EXAMPLES, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.table = pa.ipc.open_file(pa.py_buffer(self._map)).read_all()
        clients = parquet.read_table(folder / CLIENTS, memory_map=False)
        table = clients["domains"].combine_chunks().flatten().to_numpy()
        table = table.reshape(clients.num_rows, -1)
        split_names = np.array(clients["split"].to_pylist(), object)
        self.rows: dict[str, dict[str, tuple[int, int]]] = {}
        self.domain_tables: dict[str, np.ndarray] = {}
        for split in dict.fromkeys(split_names.tolist()):
            places = np.flatnonzero(split_names == split)
            start, end = int(places[0]), int(places[-1]) + 1
            part = clients.slice(start, end - start)
            rows = zip(part["first"].to_pylist(), part["count"].to_pylist())
            self.rows[split] = dict(zip(part["client"].to_pylist(), rows))
            self.domain_tables[split] = table[start:end]

    def batches(self, split: Optional[str] = None) -> Iterator[Any]:
        """Yields the examples of a split, or all of them, in parts and in the file's order."""
        for start, end in self._runs(split) if split else [(0, len(self.table))]:
            for first in range(start, end, _BATCH_ROWS):
                yield self.table.slice(first, min(_BATCH_ROWS, end - first))
                # Release pages, so that memory does not grow to the size of the file.
                self._map.madvise(mmap.MADV_DONTNEED)

    def _runs(self, split: str) -> list[tuple[int, int]]:
        """Returns the start and the end of each run of consecutive rows of a split."""
        runs: list[tuple[int, int]] = []
        for first, count in sorted(self.rows.get(split, {}).values()):
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], first + count)
            else:
                runs.append((first, first + count))
        return runs


class ArrowStore(Store):
    """A folder of Arrow files; see the module."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self.path = path
        self._version = self._current_version()
        try:
            self._content = described_by((path / STORE).read_text("utf-8"))
            self.description = description_of(self._content)
            self.examples = SortedExamples(path)
        except (OSError, ValueError, KeyError, pa.ArrowException) as e:
            reason = " ".join(str(e).split())
            raise UserError(
                f"{path}: expected a client store, found a damaged one: {reason}"
            ) from e

    def splits(self) -> tuple[str, ...]:
        """See `Store.splits`."""
        return tuple(sorted(self.examples.rows))

    def client_counts(self, split: str) -> dict[str, int]:
        """See `Store.client_counts`."""
        if split not in self.examples.rows:
            raise UserError(
                f"{self.path}: expected clients in split {split}, found the splits "
                f"{', '.join(self.splits())}"
            )
        return {client: count for client, (_, count) in self.examples.rows[split].items()}

    def columns(
        self, split: str, client_id: str, features: Mapping[str, Feature]
    ) -> dict[str, np.ndarray]:
        """See `Store.columns`."""
        self.check_unchanged()
        rows = self.examples.rows.get(split, {})
        if client_id not in rows:
            raise no_examples(self.path, split, client_id, rows)
        stored = self.description.features
        for name, feature in features.items():
            if name not in stored or stored[name].kind != feature.kind:
                raise UserError(
                    f"{self.path}: client {client_id}: expected examples with {name} "
                    f"({feature.dtype} {list(feature.shape)}), found {stored.get(name)}"
                )
        first, count = rows[client_id]
        part = self.examples.table.slice(first, count)
        return {name: column_of(part[name], f.shape) for name, f in features.items()}

    def domain_table(self, split: str) -> np.ndarray:
        """See `Store.domain_table`."""
        return self.examples.domain_tables[split]

    def sentence_lengths(self, split: str) -> dict[int, int]:
        """See `Store.sentence_lengths`."""
        total: Counter[int] = Counter()
        for name, _, words, n in self.domain_sentence_lengths():
            total[words] += n if name == split else 0
        return {words: n for words, n in sorted(total.items()) if n}

    def domain_sentence_lengths(self) -> list[tuple[str, str, int, int]]:
        """Returns (split, domain, words, sentences) of a store of texts, in ascending order."""
        return [(*key, n) for *key, n in self._content["sentence_lengths"]]

    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """See `Store.vocabulary`."""
        words = tuple(self.word_counts())[:size]
        if not words:
            raise UserError(f"{self.path}: expected a vocabulary, found an empty one")
        return words

    def word_counts(self) -> dict[str, int]:
        """Returns the words of the vocabulary with their counts, the most frequent first."""
        return dict(self._content["vocabulary"])

    def notes(self) -> dict[str, Any]:
        """Returns the facts that the import keeps for reports; empty if the store has none.

        Returns:
            "class_shares": Fraction of each class in each split, by split and name; None without
                classes.
            "remarks": Warnings of the import, `Remark.to_json` each.
        """
        return dict(self._content.get("notes", {}))

    def digest(self) -> str:
        """See `Store.digest`."""
        self.check_unchanged()
        name: str = self._content["digest"]
        return name

    def check_unchanged(self) -> None:
        """See `Store.check_unchanged`."""
        if self._current_version() != self._version:
            raise changed(self.path)

    def _current_version(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path / EXAMPLES)
        except OSError as e:
            raise UserError(
                f"{self.path}: expected a client store with {EXAMPLES}, found none ({e.strerror})"
            ) from e
        return status.st_mtime_ns, status.st_size


def no_examples(path: Path, split: str, client: str, clients: Iterable[str]) -> UserError:
    """Returns the error for a client without examples.

    Args:
        path: The store.
        split: Name of the split.
        client: Id of the client.
        clients: Ids of the clients with examples.
    """
    nearest = difflib.get_close_matches(client, clients)
    meant = f" (did you mean {' or '.join(nearest)}?)" if nearest else ""
    return UserError(
        f"{path}: client {client}: expected examples in split {split}, found none{meant}"
    )


def changed(path: Path) -> UserError:
    """Returns the error for a store that is no longer the one that was opened."""
    return UserError(
        f"{path}: the store was changed while it was read: let what writes to it end, and start "
        "again"
    )


def load_store(path: Path) -> Store:
    """Returns an opened store: a folder that an import wrote, or an SQLite file of TFF's."""
    if path.is_dir():
        return ArrowStore(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a client store, found nothing")
    # Import on demand, as stores of Arrow files do not need it.
    from tff_agnostic.data.tff_store import TffStore

    return TffStore(path)


def column_of(column: Any, shape: Sequence[int]) -> np.ndarray:
    """Returns a column of Arrow as an array [n, *shape]; strings as bytes."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        flat = pa.chunked_array(
            [chunk.flatten() for chunk in column.chunks], type=column.type.value_type
        )
        return np.array(flat.to_numpy()).reshape(len(column), *shape)
    if pa.types.is_string(column.type):
        values = np.empty([len(column)], object)
        values[:] = column.cast(pa.binary()).to_pylist()
        return values.reshape(len(column), *shape)
    return np.array(column.to_numpy()).reshape(len(column), *shape)


def vocabulary_digest(words: Sequence[str]) -> str:
    """Returns a short name of a vocabulary: equal for equal words in equal order only."""
    return digest("\n".join(words).encode())


# (client id, columns of the features) -> examples.
ToExamples = Callable[[str, Mapping[str, np.ndarray]], Examples]


class StoreClients(ListedClients):
    """Clients of a split; reading a client only reads its rows.

    Args:
        store: The store.
        split: Name of the split.
        features: The features to read.
        to_examples: Called with a client's id and columns; returns its examples.
        domain_names: Names of the task's domains, in the order of their ids.
        has_row_each: Whether every example of the store becomes one example.
        max_kept_bytes: Maximum bytes of cached examples; the first clients read are cached.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        features: Mapping[str, Feature],
        to_examples: ToExamples,
        domain_names: Sequence[str],
        has_row_each: bool = True,
        max_kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._store = store
        self._split = split
        self._features = features
        self._to_examples = to_examples
        self._domain_names = domain_names
        self._has_row_each = has_row_each
        self._max_kept_bytes = max_kept_bytes
        self._ids = store.client_ids(split)
        self._kept: dict[str, Examples] = {}
        self._kept_bytes = 0

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples; see `ClientDataset.read`."""
        kept = self._kept.get(client_id)
        if kept is not None:
            self._store.check_unchanged()
            return kept
        columns = self._store.columns(self._split, client_id, self._features)
        examples = self._to_examples(client_id, columns)
        num_bytes = sum(np.asarray(column).nbytes for column in tf.nest.flatten(examples))
        if self._kept_bytes + num_bytes <= self._max_kept_bytes:
            self._kept_bytes += num_bytes
            self._kept[client_id] = examples
        return examples

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the examples of each client and domain, int64 [clients, p]; None if unknown."""
        stored = {name: k for k, name in enumerate(self._store.description.domains)}
        # A task's domains may differ from the store's.
        if not self._has_row_each or not {*stored} <= {*self._domain_names}:
            return None
        table = self._store.domain_table(self._split)
        if table is None:
            return None
        counts = np.zeros([len(table), len(self._domain_names)], np.int64)
        for k, name in enumerate(self._domain_names):
            if name in stored:
                counts[:, k] = table[:, stored[name]]
        return counts
