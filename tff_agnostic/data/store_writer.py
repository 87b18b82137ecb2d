"""Writes client stores from examples in any order, in bounded memory.

Rows beyond a memory limit go to buckets on disk, by a hash of their client. When the splits are
final, one bucket after another is sorted by split, client and order of arrival.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import digest, file_digest, scratch_folder
from tff_agnostic.data.statistics import (
    label_range,
    number_statistics,
    sentence_lengths,
    standardized,
)
from tff_agnostic.data.store import (
    CLIENTS,
    EXAMPLES,
    STORE,
    SortedExamples,
    arrow_type,
    column_array,
)
from tff_agnostic.data.store_format import (
    DOMAIN,
    LABEL,
    TOKENS,
    TRAIN,
    Feature,
    StoredColumns,
    StoreDescription,
    Value,
)

# Maximum bytes of rows in memory; further rows go to buckets on disk.
_MEMORY = 8 * 2**20
# Maximum number of batches in memory, as each batch adds some kilobytes.
_MAX_PARTS = 1000
# Number of buckets: with 16 MB in each, they hold 4 GB of rows.
_NUM_BUCKETS = 256
# Rows of a batch in the store's file.
_BATCH_ROWS = 1 << 14
# Number of units that `units` converts to Python objects at once.
_UNITS_AT_ONCE = 1 << 18
# Columns of a bucket that are not features; no feature has such a name.
_SPLIT, _CLIENT, _UNIT = "\0split", "\0client", "\0unit"


class StoreWriter:
    """A writer of a store; a context manager.

    The writer uses a scratch folder next to `path`. At the end of the block, it moves the finished
    store to `path` in one step. Without `finish`, or after an exception, it leaves no files.

    Args:
        path: The store's folder.
        memory: Maximum bytes of rows in memory.

    Attributes:
        features: Type of each feature, from the first examples.
    """

    def __init__(self, path: Path, memory: int = _MEMORY) -> None:
        if path.exists():
            raise UserError(f"{path}: expected no file there yet: stores are not overwritten")
        self.features: dict[str, Feature] = {}
        self._path = path
        self._memory = memory
        self._scratch = contextlib.ExitStack()
        self._folder = path.parent
        self._is_complete = False
        self._parts: list[pa.RecordBatch] = []
        self._num_bytes = 0
        self._buckets: list[Any] = []
        self._domains: set[str] = set()
        self._sorted: Optional[SortedExamples] = None

    def __enter__(self) -> StoreWriter:
        """Creates the scratch folder."""
        with self._errors(), contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(scratch_folder(self._path))
            self._store.mkdir()
            self._scratch = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Moves a finished store to its path, and removes the scratch folder."""
        with self._scratch, self._errors():
            for bucket in self._buckets:
                bucket.close()
            if self._is_complete and exc_info[0] is None:
                self._put_in_place()

    def add(
        self, split: Any, client: Any, features: Mapping[str, Any], unit: Optional[Any] = None
    ) -> None:
        """Adds a batch of n examples.

        Args:
            split: Split of each example, an Arrow array of strings [n].
            client: Client of each example, an Arrow array of strings [n].
            features: Columns of features by name, including "domain", each a NumPy array [n,
                *shape] or an Arrow array.
            unit: Unit of each example, int64 [n]; `sort` may move units to another split. None if
                no example may move.

        Raises:
            ValueError: If names, types or shapes of features differ from the first batch.
        """
        self._check({name: _feature(name, column) for name, column in features.items()})
        keys = {_SPLIT: split, _CLIENT: client}
        keys[_UNIT] = pa.nulls(len(split), pa.int64()) if unit is None else unit
        # Use the order of the first batch, as all batches of a file have one schema.
        columns = {name: _arrow(features[name], one) for name, one in self.features.items()}
        batch = pa.RecordBatch.from_pydict({**keys, **columns})
        self._domains.update(batch.column(DOMAIN).unique().to_pylist())
        self._parts.append(batch)
        if len(self._parts) > _MAX_PARTS:
            self._parts = pa.Table.from_batches(self._parts).combine_chunks().to_batches()
        self._num_bytes += batch.nbytes
        if self._num_bytes > self._memory:
            with self._errors():
                self._spill()

    def _check(self, features: dict[str, Feature]) -> None:
        self.features = self.features or features
        for name in (*self.features, *features):
            expected, result = self.features.get(name), features.get(name)
            if expected != result:
                raise ValueError(
                    f"{name}: expected {expected or 'no such feature'}, as in the first example, "
                    f"found {result or 'none'}"
                )

    def _spill(self) -> None:
        """Moves the rows in memory to their buckets on the disk."""
        table = pa.Table.from_batches(self._parts)
        self._parts, self._num_bytes = [], 0
        if not self._buckets:
            self._buckets = [
                pa.ipc.new_stream(str(self._bucket_path(k)), table.schema)
                for k in range(_NUM_BUCKETS)
            ]
        clients = pc.dictionary_encode(table[_CLIENT].combine_chunks())
        names = clients.dictionary.to_pylist()
        name_bucket = [zlib.crc32(n.encode("utf-8", "surrogatepass")) % _NUM_BUCKETS for n in names]
        buckets = np.array(name_bucket)[np.asarray(clients.indices)]
        order = np.argsort(buckets, kind="stable")
        starts = np.searchsorted(buckets[order], np.arange(_NUM_BUCKETS + 1))
        # Join chunks once here, instead of for each bucket.
        table = table.combine_chunks().take(pa.array(order))
        for k, bucket in enumerate(self._buckets):
            if starts[k + 1] > starts[k]:
                bucket.write_table(table.slice(starts[k], starts[k + 1] - starts[k]))

    def _read_buckets(self) -> Iterator[pa.Table]:
        """Yields the rows of each bucket; without buckets on the disk, all rows."""
        if self._buckets and self._parts:
            self._spill()
        if self._parts:
            yield pa.Table.from_batches(self._parts)
        for number, bucket in enumerate(self._buckets):
            bucket.close()
            yield pa.ipc.open_stream(pa.memory_map(str(self._bucket_path(number)))).read_all()

    def units(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, number of examples), sorted by unit; allows no further `add`."""
        with self._errors():
            counts = [_unit_counts(bucket) for bucket in self._read_buckets()]
        if counts:
            # Sum over buckets, as the clients of one unit may be in several buckets.
            total = _summed(pa.concat_tables(counts), "n", "sum")
            total = total.sort_by([("unit", "ascending"), ("domain", "ascending")])
            for batch in total.to_batches(_UNITS_AT_ONCE):
                yield from zip(*(column.to_pylist() for column in batch.columns))

    def sort(self, splits: Mapping[int, str]) -> SortedExamples:
        """Sorts all examples; allows no further `add`.

        Args:
            splits: New split of each unit that moves.
        """
        moved = pa.array(splits.keys(), pa.int64()), pa.array(splits.values(), pa.string())
        index, num_rows = [], 0
        with self._errors(), contextlib.ExitStack() as stack:
            file = None
            for number, bucket in enumerate(self._read_buckets()):
                if len(bucket):
                    table = _sorted(bucket, *moved)
                    index.append(_split_clients(table, self.domains, num_rows))
                    num_rows += len(table)
                    table = table.drop_columns([_SPLIT, _CLIENT, _UNIT])
                    if file is None:
                        path = str(self._store / EXAMPLES)
                        file = stack.enter_context(pa.ipc.new_file(path, table.schema))
                    file.write_table(table.combine_chunks(), max_chunksize=_BATCH_ROWS)
                self._bucket_path(number).unlink(missing_ok=True)
        if not index:
            raise UserError(f"{self._path}: expected at least one example to store, found none")
        keys = [("split", "ascending"), ("client", "ascending")]
        with self._errors():
            parquet.write_table(pa.concat_tables(index).sort_by(keys), self._store / CLIENTS)
            self._sorted = SortedExamples(self._store)
        return self._sorted

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains in alphabetical order, or in numerical order if all are integers."""
        if all(name.isascii() and name.isdecimal() for name in self._domains):
            return tuple(sorted(self._domains, key=lambda name: (int(name), name)))
        return tuple(sorted(self._domains))

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
        """Completes the store: sorts it if `sort` was not called, and writes its description.

        Args:
            kind: "text" or "features".
            vocabulary: Words and their counts, the most frequent first.
            class_names: Names of the classes, in the order of their labels.
            source: Human-readable origin of the examples.
            categories: The known values of each categorical column, in the order of their ids.
            columns: The source columns of the features; missing numbers of features are still NaN.
            standardize: Whether to scale numbers to mean 0 and standard deviation 1 over training
                clients.

        Returns:
            Path of the complete store, in the scratch folder until the end of the block.
        """
        examples = self._sorted or self.sort({})
        label = self.features.get(LABEL)
        num_classes = None if class_names is None else len(class_names)
        if class_names is None and label == Feature("int64"):
            ends = label_range(examples)
            # Integer labels are quantities instead of classes if some are negative.
            num_classes = int(ends[1]) + 1 if ends and ends[0] >= 0 else None
        description = StoreDescription(
            kind=kind,
            features=self.features,
            domains=self.domains,
            num_classes=num_classes,
            class_names=None if class_names is None else tuple(class_names),
            source=source,
            categories={name: tuple(values) for name, values in (categories or {}).items()},
            label_range=label_range(examples, TRAIN) if label == Feature("float32") else None,
            columns=columns,
            is_standardized=standardize,
        )
        description = dataclasses.replace(
            description, statistics=number_statistics(examples, description)
        )
        with self._errors():
            self._complete_numbers(examples, description)
            facts = repr([file_digest(self._store / EXAMPLES), examples.rows, vocabulary or {}])
            text = description.to_json()
            content = {
                **json.loads(text),
                "digest": digest((facts + text).encode("utf-8", "surrogatepass")),
                "vocabulary": list((vocabulary or {}).items()),
                "sentence_lengths": sentence_lengths(examples) if TOKENS in self.features else [],
            }
            (self._store / STORE).write_text(json.dumps(content, sort_keys=True), "utf-8")
        self._is_complete = True
        self._sorted = None
        return self._store

    def add_notes(self, notes: Mapping[str, Any]) -> None:
        """Adds `StoreContent.notes` to a finished store."""
        with self._errors():
            content = json.loads((self._store / STORE).read_text("utf-8"))
            text = json.dumps({**content, "notes": notes}, sort_keys=True)
            (self._store / STORE).write_text(text, "utf-8")

    def _complete_numbers(self, examples: SortedExamples, description: StoreDescription) -> None:
        """Replaces missing numbers by 0, and standardizes if the description requires it."""
        columns = description.columns
        if description.is_standardized:
            names = list(description.statistics)
        elif columns is not None and columns.missing_cells is not None:
            names = list(columns.numbers)
        else:
            return
        complete = self._folder / EXAMPLES
        with pa.ipc.new_file(str(complete), examples.table.schema) as file:
            for table in examples.batches():
                for name in names:
                    values = column_array(table[name], [-1])
                    numbers = values[:, : description.num_numbers(name)]
                    if description.is_standardized:
                        numbers[:] = standardized(numbers, description.statistics[name])
                    else:
                        numbers[np.isnan(numbers)] = 0
                    place = table.column_names.index(name)
                    column = _arrow(values, self.features[name])
                    table = table.set_column(place, table.schema.field(name), column)
                file.write_table(table.combine_chunks())
        complete.replace(self._store / EXAMPLES)

    @property
    def _store(self) -> Path:
        return self._folder / "store"

    def _bucket_path(self, number: int) -> Path:
        return self._folder / f"bucket_{number}.arrows"

    def _put_in_place(self) -> None:
        for path in self._store.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        try:
            # The rename fails if there is a file, or a folder with files, at the path.
            self._store.rename(self._path)
        except OSError:
            if not self._path.exists():
                raise
            raise UserError(f"{self._path}: another process made a file there meanwhile") from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts errors of Arrow and the file system to a `UserError` with the store's path."""
        try:
            yield
        except (pa.ArrowException, OSError) as e:
            raise UserError(f"{self._path}: cannot write the store: {e}") from e


def column_from(values: Sequence[Value]) -> Any:
    """Returns one or more values of a feature as a column; see `StoreWriter.add`."""
    return pa.array(values, pa.string()) if isinstance(values[0], str) else np.asarray(values)


def _feature(name: str, column: Any) -> Feature:
    if not isinstance(column, np.ndarray):
        return Feature("string") if pa.types.is_string(column.type) else Feature("int64")
    if column.dtype.kind in "iub":
        return Feature("int64", column.shape[1:])
    if column.dtype.kind == "f":
        return Feature("float32", column.shape[1:])
    raise ValueError(f"{name}: expected text or numbers, found {column.dtype.name}")


def _arrow(column: Any, feature: Feature) -> pa.Array:
    """Returns a column as an Arrow array; a column of arrays becomes lists of a fixed size."""
    if not isinstance(column, np.ndarray):
        return column
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(column.astype(feature.dtype, copy=False)).reshape(-1)
    values = pa.array(flat)
    if not feature.shape:
        return values
    return pa.FixedSizeListArray.from_arrays(values, type=arrow_type(feature))


def _unit_counts(bucket: pa.Table) -> pa.Table:
    """Counts a bucket's examples by unit and domain, in the columns unit, domain and n."""
    rows = pa.table({"unit": bucket[_UNIT], "domain": bucket[DOMAIN]})
    return _summed(rows.filter(pc.is_valid(rows["unit"])), [], "count_all")


def _summed(table: pa.Table, column: Any, function: str) -> pa.Table:
    # Use one thread, as each of Arrow's threads keeps memory.
    counts = table.group_by(["unit", "domain"], use_threads=False).aggregate([(column, function)])
    return counts.rename_columns(["unit", "domain", "n"])


def _sorted(table: pa.Table, units: pa.Array, splits: pa.Array) -> pa.Table:
    """Moves `units` to `splits`, then sorts rows by split, client and order of arrival."""
    if len(units):
        place = pc.index_in(table[_UNIT], units)
        moved = splits.take(place.combine_chunks())
        names = pc.coalesce(moved, table[_SPLIT].combine_chunks())
        table = table.set_column(0, _SPLIT, names)
    columns = [table[_SPLIT].combine_chunks(), table[_CLIENT].combine_chunks()]
    keys = pa.table([*columns, np.arange(len(table))], ["split", "client", "order"])
    by = [(name, "ascending") for name in keys.column_names]
    return table.combine_chunks().take(pc.sort_indices(keys, by))


def _split_clients(table: pa.Table, domains: Sequence[str], num_before: int) -> pa.Table:
    """Returns a table of the clients of sorted rows, with the columns of `clients.parquet`."""
    split, client = table[_SPLIT].combine_chunks(), table[_CLIENT].combine_chunks()
    is_other = [np.asarray(pc.not_equal(one[1:], one[:-1])) for one in (split, client)]
    is_first = np.append(True, np.any(is_other, axis=0))
    starts = np.flatnonzero(is_first)
    codes = np.asarray(pc.index_in(table[DOMAIN].combine_chunks(), pa.array(domains)))
    places = (np.cumsum(is_first) - 1) * len(domains) + codes
    counts = np.bincount(places, minlength=len(starts) * len(domains)).astype(np.int64)
    return pa.table(
        {
            "split": split.take(pa.array(starts)),
            "client": client.take(pa.array(starts)),
            "first": pa.array(starts + num_before),
            "count": pa.array(np.diff(np.append(starts, len(table)))),
            "domains": pa.FixedSizeListArray.from_arrays(pa.array(counts), len(domains)),
        }
    )
