"""Client stores, read one client at a time as columns of examples.

A store is a folder of Arrow files, which `data.store_writer` writes:

    examples.arrow   the examples; a client's examples are consecutive; mapped into memory
    clients.parquet  split, client, first row, number of rows, number of examples of each domain
    store.json       description, digest, vocabulary, lengths of sentences; written last

`load_store` opens these folders, and the SQLite files of TFF; see `data.tff_store`.
"""

from __future__ import annotations

import abc
import difflib
import math
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
    StoreContent,
    StoreDescription,
    parse_description,
    typed,
)
from tff_agnostic.models.model import Examples

# Maximum bytes of examples to cache per split. Runs need a cache, as they read a client in many
# rounds, but a comparison has a cache for each split and each seed.
KEPT_BYTES = 16 * 2**20
# Number of examples in memory during a pass over a store, a multiple of `statistics._BLOCK_ROWS`.
_BATCH_ROWS = 16_000
EXAMPLES, CLIENTS, STORE = "examples.arrow", "clients.parquet", "store.json"


class Store(abc.ABC):
    """A store, opened read-only, which several threads and processes may use at once.

    Args:
        examples: Path of the file with the examples.

    Attributes:
        description: Description of the store. If TFF wrote the store, it only has the features of
            the first example.
    """

    description: StoreDescription

    def __init__(self, path: Path, examples: Path) -> None:
        self.path = path
        self._examples_path = examples
        self._version = self._current_version()

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
        """Returns the given features of one client's examples.

        Returns:
            One column per feature, [n, *shape]; strings are bytes in object arrays.
        """

    @abc.abstractmethod
    def domain_table(self, split: str) -> Optional[np.ndarray]:
        """Returns the number of examples by client and domain, int64 [clients, domains].

        Clients are in the order of `client_counts`, domains in the order of the description. None
        if TFF wrote the store.
        """

    @abc.abstractmethod
    def sentence_lengths(self, split: str) -> dict[int, int]:
        """Returns the number of a split's sentences, by number of words in a sentence."""

    @abc.abstractmethod
    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """Returns the `size` most frequent words, or all words, the most frequent first."""

    @abc.abstractmethod
    def digest(self) -> str:
        """Returns a digest of the store's content, which changes if any example does."""

    def check_unchanged(self) -> None:
        """Raises a `UserError` if the examples have changed since the store was opened."""
        if self._current_version() != self._version:
            raise UserError(
                f"{self.path}: the store was changed while it was read: start again when no "
                "process writes to it"
            )

    def _current_version(self) -> tuple[int, int]:
        try:
            status = os.stat(self._examples_path)
        except OSError as e:
            raise UserError(
                f"{self.path}: expected a client store, cannot read {self._examples_path.name} "
                f"({e.strerror})"
            ) from e
        return status.st_mtime_ns, status.st_size

    def _no_clients(self, split: str) -> UserError:
        return UserError(
            f"{self.path}: expected clients in split {split}, found the splits "
            f"{', '.join(self.splits()) or '(none)'}"
        )

    def _no_examples(self, split: str, client: str, clients: Iterable[str]) -> UserError:
        """Returns the error for a client without examples, with similar ids among `clients`."""
        nearest = difflib.get_close_matches(client, clients)
        meant = f" (did you mean {' or '.join(nearest)}?)" if nearest else ""
        return UserError(
            f"{self.path}: client {client}: expected examples in split {split}, found none{meant}"
        )


class SortedExamples:
    """The examples of a store's folder, mapped into memory, with the rows of each client.

    Attributes:
        table: Arrow table of all examples.
        rows: By split and client, (first row, number of rows); clients are sorted.
        domain_tables: For each split, the number of examples by client and domain, int64 [clients,
            domains].

    Raises:
        ValueError: If the files of examples and of clients contradict each other.
    """

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        # Do not close the map: the file must stay mapped as long as its columns are in use.
        with open(folder / EXAMPLES, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.table = pa.ipc.open_file(pa.py_buffer(self._map)).read_all()
        clients = parquet.read_table(folder / CLIENTS, memory_map=False)
        first, count = clients["first"].to_numpy(), clients["count"].to_numpy()
        table = clients["domains"].combine_chunks().flatten().to_numpy().reshape(len(first), -1)
        order = np.argsort(first)
        ends = np.cumsum(count[order])
        if (
            {clients["split"].type, clients["client"].type} != {pa.string()}
            or any(column.null_count for column in (*clients.columns, *self.table.columns))
            or not np.all(count > 0)
            or not np.array_equal(np.append(0, ends), np.append(first[order], len(self.table)))
            or not np.array_equal(table.sum(axis=1), count)
        ):
            raise ValueError(f"expected each example of {EXAMPLES} once in {CLIENTS}")
        splits = np.array(clients["split"].to_pylist(), object)
        names = clients["client"].to_pylist()
        places = list(zip(first.tolist(), count.tolist()))
        self.rows: dict[str, dict[str, tuple[int, int]]] = {}
        self.domain_tables: dict[str, np.ndarray] = {}
        for split in dict.fromkeys(splits.tolist()):
            numbers = np.flatnonzero(splits == split)
            part = slice(int(numbers[0]), int(numbers[-1]) + 1)
            self.rows[split] = dict(zip(names[part], places[part]))
            self.domain_tables[split] = table[part]
        if sum(map(len, self.rows.values())) != len(names):
            raise ValueError(f"expected each client once in {CLIENTS}, sorted by split")

    def batches(self, split: Optional[str] = None) -> Iterator[Any]:
        """Yields batches of examples, of one split or of the whole store, in the file's order."""
        for start, end in self._runs(split) if split else [(0, len(self.table))]:
            for first in range(start, end, _BATCH_ROWS):
                yield self.table.slice(first, min(_BATCH_ROWS, end - first))
                # Release pages, so that memory does not grow to the size of the file.
                self._map.madvise(mmap.MADV_DONTNEED)

    def _runs(self, split: str) -> list[tuple[int, int]]:
        """Returns (start, end) of each run of consecutive rows of a split."""
        runs: list[tuple[int, int]] = []
        for first, count in sorted(self.rows.get(split, {}).values()):
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], first + count)
            else:
                runs.append((first, first + count))
        return runs


class ArrowStore(Store):
    """A store that is a folder of Arrow files; see the module.

    Attributes:
        content: Content of `store.json`, except the description.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        super().__init__(path, path / EXAMPLES)
        try:
            self.description, content = parse_description((path / STORE).read_text("utf-8"))
            self.content: StoreContent = typed(StoreContent, content)
            self.examples = SortedExamples(path)
            schema = self.examples.table.schema
            types = {name: arrow_type(f) for name, f in self.description.features.items()}
            if dict(zip(schema.names, schema.types)) != types:
                raise ValueError(f"expected the features of {STORE} in {EXAMPLES}")
            widths = {table.shape[1] for table in self.examples.domain_tables.values()}
            if widths != {len(self.description.domains)}:
                raise ValueError(f"expected the domains of {STORE} in {CLIENTS}")
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            pa.ArrowException,
        ) as e:
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
            raise self._no_clients(split)
        return {client: count for client, (_, count) in self.examples.rows[split].items()}

    def columns(
        self, split: str, client_id: str, features: Mapping[str, Feature]
    ) -> dict[str, np.ndarray]:
        """See `Store.columns`."""
        self.check_unchanged()
        rows = self.examples.rows.get(split, {})
        if client_id not in rows:
            raise self._no_examples(split, client_id, rows)
        stored = self.description.features
        for name, feature in features.items():
            if name not in stored or stored[name].kind != feature.kind:
                raise UserError(
                    f"{self.path}: client {client_id}: expected examples with {name} "
                    f"({feature.dtype} {list(feature.shape)}), found {stored.get(name)}"
                )
        part = self.examples.table.slice(*rows[client_id])
        return {name: column_array(part[name], f.shape) for name, f in features.items()}

    def domain_table(self, split: str) -> np.ndarray:
        """See `Store.domain_table`."""
        return self.examples.domain_tables[split]

    def sentence_lengths(self, split: str) -> dict[int, int]:
        """See `Store.sentence_lengths`."""
        total: Counter[int] = Counter()
        for name, _, words, n in self.content.sentence_lengths:
            total[words] += n if name == split else 0
        return {words: n for words, n in sorted(total.items()) if n}

    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """See `Store.vocabulary`."""
        words = tuple(word for word, _ in self.content.vocabulary[:size])
        if not words:
            raise UserError(f"{self.path}: expected a vocabulary, found a store without one")
        return words

    def digest(self) -> str:
        """See `Store.digest`."""
        self.check_unchanged()
        return self.content.digest


def load_store(path: Path) -> Store:
    """Opens a store: a folder that an import wrote, or an SQLite file of TFF."""
    if path.is_dir():
        return ArrowStore(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a client store, found nothing")
    # Import on demand, as stores of Arrow files do not need it.
    from tff_agnostic.data.tff_store import TffStore

    return TffStore(path)


def arrow_type(feature: Feature) -> Any:
    """Returns the Arrow type of a feature's column in the file of examples."""
    import pyarrow as pa

    one = {"string": pa.string(), "int64": pa.int64(), "float32": pa.float32()}[feature.dtype]
    return pa.list_(one, math.prod(feature.shape)) if feature.shape else one


def column_array(column: Any, shape: Sequence[int]) -> np.ndarray:
    """Converts an Arrow column to a NumPy array [n, *shape]; strings become bytes."""
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
    """Returns a digest of a vocabulary's words and of their order."""
    return digest("\n".join(words).encode())


# Function that maps (client id, columns of the features) to examples.
ToExamples = Callable[[str, Mapping[str, np.ndarray]], Examples]


class StoreClients(ListedClients):
    """The clients of a split; only the rows of the requested client are read.

    Args:
        to_examples: Called with a client's id and columns; returns its examples.
        domain_names: Names of the task's domains, in the order of their ids.
        has_row_each: Whether each stored example becomes exactly one example.
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
        """Returns the examples by client and domain, int64 [clients, p]; None if unknown."""
        stored = {name: k for k, name in enumerate(self._store.description.domains)}
        # The store's counts are of no use if the task has other domains.
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
