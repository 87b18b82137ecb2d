"""Interface of the formats' readers: rows of examples, and a log of skipped records."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.data.store_writer import column_from
from tff_agnostic.importing.cells import CellError
from tff_agnostic.importing.options import ImportOptions

Item = TypeVar("Item")
_MAX_SPELLINGS = 1000
_EXAMPLES_AT_ONCE = 1000


def hash64(key: Any) -> int:
    """Returns a 64-bit hash, which is the same in every process and version of Python.

    Args:
        key: A string, or an array of bytes.
    """
    content = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples of a source as columns.

    Attributes:
        client: Client of each example, an array of strings [n].
        domain: Domain of each example, strings [n].
        split: Split of each example if the source names it ("train", "heldout" or "test"),
            otherwise null, strings [n].
        features: Column of each feature, by name: a NumPy array [n, *shape] or an Arrow array of
            strings [n].
        place: Called with the index of an example; returns its unique location in the source, such
            as "users.csv:17".
        group: Group of each example, which `split_by="group"` keeps in one split, strings [n]; None
            if the format has no groups.
    """

    client: pa.Array
    domain: pa.Array
    split: pa.Array
    features: Mapping[str, Any]
    place: Callable[[int], str]
    group: Optional[pa.Array] = None

    def __len__(self) -> int:
        return len(self.client)

    def selected(self, is_selected: np.ndarray) -> Rows:
        """Returns the rows where `is_selected` is true."""
        return self if is_selected.all() else self.taken(np.flatnonzero(is_selected))

    def taken(self, indices: np.ndarray) -> Rows:
        """Returns the rows with the given indices."""
        taken, places = pa.array(indices), indices.tolist()
        return Rows(
            client=self.client.take(taken),
            domain=self.domain.take(taken),
            split=self.split.take(taken),
            features={
                name: column[indices] if isinstance(column, np.ndarray) else column.take(taken)
                for name, column in self.features.items()
            },
            place=lambda k: self.place(places[k]),
            group=None if self.group is None else self.group.take(taken),
        )


@dataclasses.dataclass(frozen=True)
class SourceExample:
    """An example, and its location in the source.

    Attributes:
        place: Location of the example in the source; see `Rows.place`.
        group: Group that `split_by="group"` keeps in one split; None if the format has no groups.
    """

    record: Record
    place: str
    group: Optional[str] = None


class ReadLog:
    """The log of a reader: counts of skipped records, and progress.

    Args:
        skip_bad: Whether to skip and count bad records; otherwise the first one ends the import.
        advance: Called with the number of bytes that were read.
        say: Called with the name of each step that follows the reading.

    Attributes:
        skipped: Number of skipped records by reason.
        num_records: Number of records read.
        missing: Number of examples without a value, by column.
        numbers: For each input, the column of each of its numbers, if known.
        renamed: For each column, the stored name of every spelling that differs from it.
        rounded: Number of integers that float32 rounds, by column.
        rows_are_clients: Whether each row is a separate client.
        controls: Number of control characters replaced by spaces.
        skipped_clients: Clients of skipped records.
    """

    def __init__(
        self,
        skip_bad: bool = False,
        advance: Callable[[int], object] = id,
        say: Callable[[str], object] = id,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.num_records = 0
        self.missing: Counter[str] = Counter()
        self.numbers: dict[str, Sequence[str]] = {}
        self.renamed: dict[str, dict[str, str]] = {}
        self.rounded: Counter[str] = Counter()
        self.rows_are_clients = False
        self.controls = 0
        # By default these functions are Python's `id`, whose call has no effect.
        self.advance = advance
        self.say = say
        self._skips_bad = skip_bad
        self.skipped_clients: set[str] = set()

    def skip(self, reason: str, client: Optional[str] = None) -> None:
        """Counts a record that is skipped on purpose."""
        self.skipped[reason] += 1
        if client is not None:
            self.skipped_clients.add(client)

    def bad(self, place: str, error: CellError, client: Optional[str] = None) -> None:
        """Counts an invalid record.

        Raises:
            UserError: If the import does not skip bad records.
        """
        if not self._skips_bad:
            raise UserError(f"{place}: {error.detail}")
        self.skip(error.reason, client)

    def rename(self, column: str, spelling: str, name: str) -> None:
        """Records a spelling that differs from the name in the store."""
        spellings = self.renamed.setdefault(column, {})
        if len(spellings) < _MAX_SPELLINGS:
            spellings[spelling] = name


Read = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[Rows]]
ReadExamples = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[SourceExample]]


@dataclasses.dataclass(frozen=True)
class Format:
    """A registry entry for a public format.

    Attributes:
        read: Called with options, input paths and a log; yields examples. It reports to the log
            which records are skipped, and how many bytes are read.
        find_inputs: Called with input paths; returns the files to read.
        check: Raises a `UserError` if options are missing or contradict one another.
        has_groups: Whether examples may have a group.
    """

    read: Read
    find_inputs: Callable[[Sequence[Path]], list[Path]]
    check: Callable[[ImportOptions], None] = lambda options: None
    has_groups: bool = False


def in_blocks(
    items: Iterable[Item], begins_block: Callable[[list[Item], Item], bool]
) -> Iterator[list[Item]]:
    """Groups items into lists.

    If `items` raises a `UserError`, the list of the items before the error is yielded first.

    Args:
        begins_block: Called with the list so far and each item; returns whether the item starts a
            new list.
    """
    block: list[Item] = []
    try:
        for item in items:
            if begins_block(block, item) and block:
                yield block
                block = []
            block.append(item)
    except UserError:
        if block:
            yield block
        raise
    if block:
        yield block


def in_rows(read: ReadExamples) -> Read:
    """Converts a reader of single examples to a reader of rows."""

    def examples(
        options: ImportOptions, paths: Sequence[Path], log: ReadLog
    ) -> Iterator[SourceExample]:
        for example in read(options, paths, log):
            if options.max_records is not None and log.num_records > options.max_records:
                log.num_records = options.max_records
                return
            yield example

    def read_rows(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        return map(rows_of, in_blocks(examples(options, paths, log), _begins_rows))

    return read_rows


def _begins_rows(block: list[SourceExample], example: SourceExample) -> bool:
    # Start new rows if types or shapes change, so that the store's error shows this example.
    is_other = bool(block) and _look(block[-1]) != _look(example)
    return is_other or len(block) >= _EXAMPLES_AT_ONCE


def _look(example: SourceExample) -> list[tuple[str, Any]]:
    features = example.record.features.items()
    return [(name, getattr(value, "shape", type(value))) for name, value in features]


def rows_of(examples: Sequence[SourceExample]) -> Rows:
    """Converts examples, whose features must have equal types and shapes, to columns."""
    records = [example.record for example in examples]
    places = [example.place for example in examples]
    groups = [example.group for example in examples]
    return Rows(
        client=pa.array([record.client for record in records], pa.string()),
        domain=pa.array([record.domain for record in records], pa.string()),
        split=pa.array([record.split for record in records], pa.string()),
        features={
            name: column_from([record.features[name] for record in records])
            for name in records[0].features
        },
        place=places.__getitem__,
        group=None if groups[0] is None else pa.array(groups, pa.string()),
    )
