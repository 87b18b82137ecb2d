"""Writes client stores from examples in any order, in bounded memory.

Rows go into buckets by a hash of their client, in memory or, beyond a limit, on the disk. When the
splits are decided, one bucket after another is sorted by split, client and order of arrival.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import digest, file_digest, scratch_folder
from tff_agnostic.data.statistics import (
    Standardization,
    inputs_with_statistics,
    label_range,
    number_statistics,
    sentence_lengths,
)
from tff_agnostic.data.store import CLIENTS, EXAMPLES, STORE, SortedExamples, column_of
from tff_agnostic.data.store_format import (
    DOMAIN,
    KINDS,
    LABEL,
    TOKENS,
    Feature,
    Record,
    StoredColumns,
    StoreDescription,
    Value,
)
from tff_agnostic.data.unit_counts import UnitCounts

# Bytes of rows in memory before they go into buckets on the disk.
_MEMORY = 8 * 2**20
# Buckets of 16 MB each hold 4 GB of rows.
_NUM_BUCKETS = 256
# Number of records to collect before they become columns.
_RECORDS_AT_ONCE = 1000
# Rows of a batch in the store's file.
_BATCH_ROWS = 1 << 14
# Columns that are not features.
SPLIT, CLIENT, UNIT = "split", "client", "unit"
_PREFIX = "\0"
_KEYS = tuple(_PREFIX + name for name in (SPLIT, CLIENT, UNIT))

Columns = Mapping[str, Any]


class StoreWriter:
    """A store in the making; a context manager.

    Rows go to a scratch folder next to `path`. The store comes into place at the end of the block,
    all at once. Without `finish`, and after an exception, nothing is left behind.

    Args:
        path: The store's folder.
        memory: Bytes of rows in memory.

    Attributes:
        features: Type of each feature, from the first example.
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
        self._records: list[tuple[str, Record, Optional[int]]] = []
        self._parts: list[pa.RecordBatch] = []
        self._num_bytes = 0
        self._buckets: list[Any] = []
        self._units = UnitCounts()
        self._domains: set[str] = set()
        self._labels: Optional[tuple[int, int]] = None
        self._sorted: Optional[SortedExamples] = None

    def __enter__(self) -> StoreWriter:
        """Creates the scratch folder."""
        with self._errors(), contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(scratch_folder(self._path))
            self._store.mkdir()
            self._scratch = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Puts a finished store in its place, and removes the scratch folder."""
        with self._scratch, self._errors():
            for bucket in self._buckets:
                bucket.close()
            if self._is_complete and exc_info[0] is None:
                self._put_in_place()

    def add(self, split: str, record: Record, unit: Optional[int] = None) -> None:
        """Adds an example.

        Args:
            split: Its split.
            record: The example.
            unit: Name of the examples that stay in one split, if `sort` may still move them to
                another one: a signed number of 64 bits.

        Raises:
            ValueError: If its features differ from the first example's in name, type or shape.
        """
        features = {**record.features, DOMAIN: record.domain}
        self._check({name: _value_feature(name, value) for name, value in features.items()})
        self._records.append((split, record, unit))
        if len(self._records) >= _RECORDS_AT_ONCE:
            self._add_records()

    def add_columns(self, columns: Columns) -> None:
        """Adds examples.

        Args:
            columns: A NumPy array [n, *shape] or an Arrow array for each feature, including
                "domain", and for "split", "client" and "unit"; see `add`.

        Raises:
            ValueError: If the features differ from the first example's in name, type or shape.
        """
        self._add_records()
        keys = {name: columns[name] for name in (SPLIT, CLIENT, UNIT)}
        features = {name: column for name, column in columns.items() if name not in keys}
        self._add(keys, features)

    def _add_records(self) -> None:
        if not self._records:
            return
        splits, records, units = zip(*self._records)
        self._records = []
        keys = {
            SPLIT: pa.array(splits, pa.string()),
            CLIENT: pa.array([record.client for record in records], pa.string()),
            UNIT: pa.array(units, pa.int64()),
        }
        features: dict[str, Any] = {DOMAIN: pa.array([record.domain for record in records])}
        for name in records[0].features:
            features[name] = column_from([record.features[name] for record in records])
        self._add(keys, features)

    def _add(self, keys: Columns, features: Columns) -> None:
        self._check({name: _column_feature(name, column) for name, column in features.items()})
        arrays = {_PREFIX + name: _arrow(column) for name, column in keys.items()}
        # Use the first example's order, as all batches of a store have one schema.
        arrays |= {name: _arrow(features[name]) for name in self.features}
        batch = pa.RecordBatch.from_pydict(arrays)
        self._domains.update(batch.column(DOMAIN).unique().to_pylist())
        units = batch.column(_PREFIX + UNIT)
        if units.null_count < len(units):
            is_unit = pc.is_valid(units)
            self._units.add(units.filter(is_unit), batch.column(DOMAIN).filter(is_unit))
        if self.features.get(LABEL) == Feature("int64") and len(batch):
            ends = pc.min_max(batch.column(LABEL)).as_py()
            low, high = self._labels or (ends["min"], ends["max"])
            self._labels = min(low, ends["min"]), max(high, ends["max"])
        self._parts.append(batch)
        self._num_bytes += batch.nbytes
        if self._num_bytes > self._memory:
            with self._errors():
                self._spill()

    def _spill(self) -> None:
        """Moves the rows in memory to their buckets on the disk."""
        table = pa.Table.from_batches(self._parts)
        self._parts, self._num_bytes = [], 0
        if not self._buckets:
            self._buckets = [
                pa.ipc.new_stream(str(self._bucket_path(k)), table.schema)
                for k in range(_NUM_BUCKETS)
            ]
        clients = pc.dictionary_encode(table[_PREFIX + CLIENT].combine_chunks())
        names = clients.dictionary.to_pylist()
        bucket_of_name = [
            zlib.crc32(n.encode("utf-8", "surrogatepass")) % _NUM_BUCKETS for n in names
        ]
        buckets = np.array(bucket_of_name)[np.asarray(clients.indices)]
        order = np.argsort(buckets, kind="stable")
        starts = np.searchsorted(buckets[order], np.arange(_NUM_BUCKETS + 1))
        # Join chunks once here, instead of for each bucket.
        table = table.combine_chunks().take(pa.array(order))
        for k, bucket in enumerate(self._buckets):
            if starts[k + 1] > starts[k]:
                bucket.write_table(table.slice(starts[k], starts[k + 1] - starts[k]))

    def units(self) -> Iterator[tuple[int, str, int]]:
        """Yields (unit, domain, examples) of all units so far, in ascending order."""
        self._add_records()
        yield from self._units

    def sort(self, splits: Mapping[int, str]) -> SortedExamples:
        """Sorts all examples; none can be added afterwards.

        Args:
            splits: The split of each unit that moves to another one.
        """
        self._add_records()
        if not self._domains:
            raise UserError(f"{self._path}: expected at least one example to store, found none")
        moved = pa.array(splits.keys(), pa.int64()), pa.array(splits.values(), pa.string())
        index, num_rows = [], 0
        with self._errors(), contextlib.ExitStack() as stack:
            file = None
            for bucket in self._read_buckets():
                table = _sorted(bucket, *moved)
                index.append(_split_clients(table, self.domains, num_rows))
                num_rows += len(table)
                table = table.drop_columns(list(_KEYS))
                if file is None:
                    path = str(self._store / EXAMPLES)
                    file = stack.enter_context(pa.ipc.new_file(path, table.schema))
                file.write_table(table.combine_chunks(), max_chunksize=_BATCH_ROWS)
        keys = [(SPLIT, "ascending"), (CLIENT, "ascending")]
        with self._errors():
            parquet.write_table(pa.concat_tables(index).sort_by(keys), self._store / CLIENTS)
            self._sorted = SortedExamples(self._store)
        return self._sorted

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains in alphabetical order; in numerical order if all are whole numbers."""
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
        """Sorts, if `sort` was not called, and describes the store.

        Args:
            kind: "text" or "features".
            vocabulary: Words and their counts, the most frequent first.
            class_names: Names of the classes that labels count.
            source: Human-readable origin of the examples.
            categories: The known values of each categorical column, in the order of their ids.
            columns: The columns of its features; missing numbers in them are still NaN.
            standardize: Whether numbers get the mean 0 and the deviation 1 of training clients.

        Returns:
            The complete store, which is in the scratch folder until the end of the block.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, found {kind!r}")
        examples = self._sorted or self.sort({})
        description = StoreDescription(
            kind=kind,
            features=self.features,
            domains=self.domains,
            num_classes=self._num_classes(class_names),
            class_names=None if class_names is None else tuple(class_names),
            source=source,
            categories={name: tuple(values) for name, values in (categories or {}).items()},
            label_range=label_range(examples, self.features),
            columns=columns,
            is_standardized=standardize,
        )
        sizes = inputs_with_statistics(description)
        description = dataclasses.replace(
            description, statistics=number_statistics(examples, sizes)
        )
        with self._errors():
            self._complete_numbers(examples, description, sizes)
            self._write_description(description, vocabulary or {}, examples)
        self._is_complete = True
        self._sorted = None
        return self._store

    def add_notes(self, notes: Mapping[str, Any]) -> None:
        """Adds JSON values for the reports of runs to a finished store; see `ArrowStore.notes`."""
        with self._errors():
            content = json.loads((self._store / STORE).read_text("utf-8"))
            text = json.dumps({**content, "notes": notes}, sort_keys=True)
            (self._store / STORE).write_text(text, "utf-8")

    def _num_classes(self, class_names: Optional[Sequence[str]]) -> Optional[int]:
        """Returns the number of classes that labels count; None if they count none."""
        if class_names is not None:
            return len(class_names)
        # Negative numbers are quantities, not classes.
        return self._labels[1] + 1 if self._labels and self._labels[0] >= 0 else None

    def _complete_numbers(
        self, examples: SortedExamples, description: StoreDescription, sizes: Mapping[str, int]
    ) -> None:
        """Puts 0 where a number is missing, and standardizes if the description says so."""
        columns = description.columns
        if not description.is_standardized and (columns is None or columns.missing_cells is None):
            return
        if not description.is_standardized:
            assert columns is not None
            sizes = {name: description.num_numbers(name) for name in columns.numbers}
        change: dict[str, Callable[[np.ndarray], np.ndarray]] = dict.fromkeys(sizes, _filled)
        if description.is_standardized:
            change = {name: Standardization(description.statistics[name]) for name in sizes}
        complete = self._folder / EXAMPLES
        with pa.ipc.new_file(str(complete), examples.table.schema) as file:
            for table in examples.batches():
                for name, size in sizes.items():
                    values = column_of(table[name], self.features[name].shape)
                    flat = values.reshape(len(values), -1)
                    flat[:, :size] = change[name](flat[:, :size])
                    place = table.column_names.index(name)
                    table = table.set_column(place, table.schema.field(name), _arrow(values))
                file.write_table(table.combine_chunks())
        complete.replace(self._store / EXAMPLES)

    def _write_description(
        self,
        description: StoreDescription,
        vocabulary: Mapping[str, int],
        examples: SortedExamples,
    ) -> None:
        facts = repr([file_digest(self._store / EXAMPLES), examples.rows, vocabulary])
        content = {
            **json.loads(description.to_json()),
            "digest": digest((facts + description.to_json()).encode("utf-8", "surrogatepass")),
            "vocabulary": list(vocabulary.items()),
            "sentence_lengths": sentence_lengths(examples) if TOKENS in self.features else [],
        }
        (self._store / STORE).write_text(json.dumps(content, sort_keys=True), "utf-8")

    @property
    def _store(self) -> Path:
        return self._folder / "store"

    def _bucket_path(self, number: int) -> Path:
        return self._folder / f"bucket_{number}.arrows"

    def _read_buckets(self) -> Iterator[pa.Table]:
        """Yields the rows of each bucket; without buckets on the disk, all rows."""
        if not self._buckets:
            parts, self._parts = self._parts, []
            yield pa.Table.from_batches(parts)
            return
        if self._parts:
            self._spill()
        for number, bucket in enumerate(self._buckets):
            bucket.close()
            path = self._bucket_path(number)
            table = pa.ipc.open_stream(str(path)).read_all()
            path.unlink()
            if len(table):
                yield table

    def _check(self, features: dict[str, Feature]) -> None:
        if not self.features:
            self.features = features
        elif features != self.features:
            different = next(
                name
                for name in (*self.features, *features)
                if features.get(name) != self.features.get(name)
            )
            raise ValueError(
                f"{different}: expected {self.features.get(different, 'no such feature')}, as in "
                f"the first example, found {features.get(different, 'none')}"
            )

    def _put_in_place(self) -> None:
        for path in self._store.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        try:
            # A rename does not replace a file, or a folder with files.
            self._store.rename(self._path)
        except OSError:
            if not self._path.exists():
                raise
            raise UserError(f"{self._path}: another process made a file there meanwhile") from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of Arrow and of the file system into a `UserError` that names the store."""
        try:
            yield
        except (pa.ArrowException, OSError) as e:
            raise UserError(f"{self._path}: cannot write the store: {e}") from e


def _filled(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.float32(0), values)


def _value_feature(name: str, value: Value) -> Feature:
    if isinstance(value, str):
        return Feature("string")
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        return Feature("int64", array.shape)
    if array.dtype.kind == "f":
        return Feature("float32", array.shape)
    raise ValueError(f"{name}: expected text or numbers, found {type(value).__name__}")


def _column_feature(name: str, column: Any) -> Feature:
    if isinstance(column, np.ndarray):
        return _value_feature(name, np.empty(column.shape[1:], column.dtype))
    return Feature("string") if pa.types.is_string(column.type) else Feature("int64")


def column_from(values: Sequence[Value]) -> Any:
    """Returns the values of one feature, at least one, as a column; see `add_columns`."""
    return pa.array(values, pa.string()) if isinstance(values[0], str) else np.asarray(values)


def _arrow(column: Any) -> pa.Array:
    """Returns a column as an Arrow array; a column of arrays becomes lists of a fixed size."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind in "iub":
        column = column.astype(np.int64, copy=False)
    elif column.dtype.kind == "f":
        with np.errstate(over="ignore"):
            column = column.astype(np.float32, copy=False)
    if column.ndim == 1:
        return pa.array(column)
    flat = pa.array(np.ascontiguousarray(column).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(column.shape[1:])))


def _sorted(table: pa.Table, units: pa.Array, splits: pa.Array) -> pa.Table:
    """Returns rows by split, client and order of arrival; some units have another split."""
    if len(units):
        place = pc.index_in(table[_PREFIX + UNIT], units)
        moved = splits.take(place.combine_chunks())
        names = pc.coalesce(moved, table[_PREFIX + SPLIT].combine_chunks())
        table = table.set_column(0, _PREFIX + SPLIT, names)
    order = pa.array(np.arange(len(table)))
    keys = pa.table([table[key].combine_chunks() for key in _KEYS[:2]] + [order], ["s", "c", "o"])
    by = [(name, "ascending") for name in keys.column_names]
    return table.combine_chunks().take(pc.sort_indices(keys, by))


def _split_clients(table: pa.Table, domains: Sequence[str], num_before: int) -> pa.Table:
    """Returns the clients of sorted rows: first row, number of rows, examples of each domain."""
    split, client = (table[key].combine_chunks() for key in _KEYS[:2])
    is_other = [np.asarray(pc.not_equal(one[1:], one[:-1])) for one in (split, client)]
    is_first = np.append(True, np.any(is_other, axis=0))
    starts = np.flatnonzero(is_first)
    codes = np.asarray(pc.index_in(table[DOMAIN].combine_chunks(), pa.array(domains)))
    places = (np.cumsum(is_first) - 1) * len(domains) + codes
    counts = np.bincount(places, minlength=len(starts) * len(domains)).astype(np.int64)
    return pa.table(
        {
            SPLIT: split.take(pa.array(starts)),
            CLIENT: client.take(pa.array(starts)),
            "first": pa.array(starts + num_before),
            "count": pa.array(np.diff(np.append(starts, len(table)))),
            "domains": pa.FixedSizeListArray.from_arrays(pa.array(counts), len(domains)),
        }
    )
