"""The interface of a format: rows of examples, bad records, and a log of the reading."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.options import ImportOptions

_MAX_NEW = 100_000
_MAX_SPELLINGS = 1000
_EXAMPLES_AT_ONCE = 1000


def hash64(key: Any) -> int:
    """Returns 64 bits of a hash that is the same in every process and version of Python.

    Args:
        key: A string, or an array of bytes.
    """
    content = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class DistinctKeys:
    """A set of strings, kept as hashes only.

    Two of ten million strings have the same 64 bits with a probability of one in 300,000.
    """

    def __init__(self) -> None:
        self._last = ""
        self._new: set[int] = set()
        self._sorted = np.empty([0], np.uint64)

    def add(self, key: str) -> None:
        """Adds a string."""
        # Sources often have one client's records one after another.
        if key == self._last:
            return
        self._last = key
        self._new.add(hash64(key))
        if len(self._new) >= _MAX_NEW:
            self._merge()

    def merge(self, other: DistinctKeys) -> None:
        """Adds the strings of another set."""
        other._merge()
        self._new.update(other._sorted.tolist())
        if len(self._new) >= _MAX_NEW:
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return len(self._sorted)

    def num_missing_in(self, other: DistinctKeys) -> int:
        """Returns the number of strings that are not in another set."""
        self._merge()
        other._merge()
        return len(np.setdiff1d(self._sorted, other._sorted, assume_unique=True))

    def _merge(self) -> None:
        new = np.fromiter(self._new, np.uint64, len(self._new))
        self._sorted = np.union1d(self._sorted, new)
        self._new = set()


@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples of a source as columns.

    Attributes:
        client: The client of each example, an array of strings [n].
        domain: The domain of each example, strings [n].
        split: "train", "heldout" or "test" where the source names the split, otherwise null, [n].
        features: The other columns, [n, *shape] of NumPy or strings of Arrow, by feature.
        place: Called with the index of an example; returns its place in the source, such as
            "users.csv:17", which is different for every example.
        group: The group that `split_by="group"` keeps together, strings [n]; None where the format
            has no groups.
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
        """Returns the rows where an array is true."""
        if is_selected.all():
            return self
        mask, indices = pa.array(is_selected), np.flatnonzero(is_selected).tolist()
        return Rows(
            client=self.client.filter(mask),
            domain=self.domain.filter(mask),
            split=self.split.filter(mask),
            features={
                name: column[is_selected] if isinstance(column, np.ndarray) else column.filter(mask)
                for name, column in self.features.items()
            },
            place=lambda k: self.place(indices[k]),
            group=None if self.group is None else self.group.filter(mask),
        )


@dataclasses.dataclass(frozen=True)
class SourceExample:
    """An example, and its place.

    Attributes:
        record: The record for the store.
        place: The example's place in the source; see `Rows.place`.
        group: The group that `split_by="group"` keeps together; None where the format has none.
    """

    record: Record
    place: str
    group: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class SourceText:
    """A text whose sentences are examples.

    Attributes:
        record: The shared values of the examples.
        place: Which text of the source it is; `place#k` is its sentence k, from 0.
        group: The group of the examples, as a `SourceExample` has it.
        text: The text, with markup.
    """

    record: Record
    place: str
    group: Optional[str]
    text: str


class RecordError(UserError):
    """A record that cannot become an example, in a source that may be whole otherwise.

    Args:
        reason: The kind of error, the same text for all errors of the kind.
        detail: The expected and the found value of this record.
    """

    def __init__(self, place: str, reason: str, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.reason = reason
        self._parts = place, reason, detail

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, str, str]]:
        """Returns the constructor and its arguments, for other processes."""
        return RecordError, self._parts


class ReadLog:
    """Counts records that are left out, and reports the progress of reading.

    Args:
        skip_bad: Whether bad records are counted instead of ending the import.
        advance: Called with the number of bytes that were read.
        say: Called with the name of the current step, after reading.

    Attributes:
        skipped: How many records were left out, by reason.
        num_records: How many records were read.
        missing: How many examples lack the value of a column, by column.
        numbers: The column of each number of an input, by input, where they are known.
        renamed: Spellings of names that differ from the name in the store, by column.
        rounded: How many whole numbers float32 rounds, by column.
        rows_are_clients: Whether each row is a client.
        controls: How many control characters became spaces.
        skips_bad: Whether bad records are counted instead of ending the import.
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
        # The defaults have no effect, and can be pickled.
        self.advance = advance
        self.say = say
        self.skips_bad = skip_bad
        self._clients_of_skipped = DistinctKeys()
        self._clients_of_kept = DistinctKeys()

    def skip(self, reason: str, client: Optional[str] = None) -> None:
        """Counts a record that is left out, as it should be."""
        self.skipped[reason] += 1
        if client is not None:
            self._clients_of_skipped.add(client)

    def bad(self, error: RecordError, client: Optional[str] = None) -> None:
        """Counts a record that is wrong.

        Raises:
            RecordError: If bad records end the import.
        """
        if not self.skips_bad:
            raise error
        self.skip(error.reason, client)

    def keep(self, clients: Iterable[str]) -> None:
        """Notes that clients have an example."""
        for client in clients:
            self._clients_of_kept.add(client)

    def rename(self, column: str, spelling: str, name: str) -> None:
        """Notes that the names of a column have another spelling."""
        spellings = self.renamed.setdefault(column, {})
        if len(spellings) < _MAX_SPELLINGS:
            spellings[spelling] = name

    def merge(self, other: ReadLog) -> None:
        """Adds the counts of the log of another process."""
        self.skipped.update(other.skipped)
        self._clients_of_skipped.merge(other._clients_of_skipped)
        self._clients_of_kept.merge(other._clients_of_kept)

    def clients_without_examples(self) -> int:
        """Returns the number of clients all of whose records were skipped."""
        return self._clients_of_skipped.num_missing_in(self._clients_of_kept)


Read = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[Rows]]
ReadExamples = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[SourceExample]]


def _nothing_to_check(options: ImportOptions) -> None:
    del options


@dataclasses.dataclass(frozen=True)
class Format:
    """A registry entry: how a public format is read.

    Attributes:
        summary: One line for help texts.
        read: Called with options, input paths and a log; yields examples, and reports to the log
            skipped records and the number of bytes that were read.
        find_inputs: Called with input paths; returns the files to read.
        check: Raises a `UserError` if options are missing or contradict one another.
        has_groups: Whether examples may have a group.
    """

    summary: str
    read: Read
    find_inputs: Callable[[Sequence[Path]], list[Path]]
    check: Callable[[ImportOptions], None] = _nothing_to_check
    has_groups: bool = False


def in_rows(read: ReadExamples) -> Read:
    """Returns a reader of rows from a reader of examples."""

    def read_rows(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
        examples: list[SourceExample] = []
        last_look: Any = None
        limit = options.max_records
        try:
            for example in read(options, paths, log):
                if limit is not None and log.num_records > limit:
                    log.num_records = limit
                    break
                # Features of other types or shapes begin other rows, which the store refuses.
                look = [
                    (name, getattr(value, "shape", type(value)))
                    for name, value in example.record.features.items()
                ]
                if examples and (look != last_look or len(examples) >= _EXAMPLES_AT_ONCE):
                    yield rows_of(examples)
                    examples = []
                examples.append(example)
                last_look = look
        except UserError:
            # Examples before it may have errors, too.
            if examples:
                yield rows_of(examples)
            raise
        if examples:
            yield rows_of(examples)

    return read_rows


def rows_of(examples: Sequence[SourceExample]) -> Rows:
    """Returns examples with features of the same types and shapes as columns."""
    records = [example.record for example in examples]
    places = [example.place for example in examples]
    groups = [example.group for example in examples]
    features: dict[str, Any] = {}
    for name, first in records[0].features.items():
        values = [record.features[name] for record in records]
        features[name] = pa.array(values) if isinstance(first, str) else np.asarray(values)
    return Rows(
        client=pa.array([record.client for record in records], pa.string()),
        domain=pa.array([record.domain for record in records], pa.string()),
        split=pa.array([record.split for record in records], pa.string()),
        features=features,
        place=places.__getitem__,
        group=None if groups[0] is None else pa.array(groups, pa.string()),
    )
