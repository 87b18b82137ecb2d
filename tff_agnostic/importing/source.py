"""The interface of a format: input files, how they are read, and keys in few bytes."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Callable, Optional, cast

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import open_file
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.options import FREE_MB, MB, UTF_8, ImportOptions

_MAX_NEW = 100_000
# How ZIP archives begin.
_ZIP = b"PK\x03\x04"
_BUFFER = 1 << 20
_EXAMPLES_AT_ONCE = 1000
# Of a compressed file. What was read of it decides how much it may have unpacked to by then: a
# large piece would let a bomb go on for long.
_PACKED_BUFFER = 1 << 15


def hash64(text: str) -> int:
    """Returns 64 bits of a hash that is the same in every process and version of Python."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


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
        """Returns how many of these are not in another set."""
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
        record: What the examples share.
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
        """Returns what makes it anew in another process."""
        return RecordError, self._parts


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What the records of a part of a source became.

    Attributes:
        skipped: How many records were left out, by reason.
        clients_of_skipped: The clients of these.
        clients_of_kept: Those that have an example.
    """

    skipped: Counter[str]
    clients_of_skipped: DistinctKeys
    clients_of_kept: DistinctKeys


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
    """

    def __init__(
        self,
        skip_bad: bool = False,
        advance: Callable[[int], object] = lambda size: None,
        say: Callable[[str], object] = lambda what: None,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.num_records = 0
        self.missing: Counter[str] = Counter()
        self.numbers: dict[str, Sequence[str]] = {}
        self.advance = advance
        self.say = say
        self._skip_bad = skip_bad
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
        if not self._skip_bad:
            raise error
        self.skip(error.reason, client)

    def keep(self, clients: Iterable[str]) -> None:
        """Notes that clients have an example."""
        for client in clients:
            self._clients_of_kept.add(client)

    def left_out(self) -> LeftOut:
        """Returns what was left out, for another log."""
        return LeftOut(self.skipped, self._clients_of_skipped, self._clients_of_kept)

    def merge(self, other: LeftOut) -> None:
        """Counts what another log has."""
        self.skipped.update(other.skipped)
        self._clients_of_skipped.merge(other.clients_of_skipped)
        self._clients_of_kept.merge(other.clients_of_kept)

    def clients_without_examples(self) -> int:
        """Returns how many clients had all their records left out."""
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


class InputFile(io.BufferedReader):
    """An input file with a limit of its bytes, unpacked if it is compressed.

    Args:
        path: Its name, for messages.
        is_gzip: Whether it is compressed.
        log: Counts the bytes that were read from the file.
    """

    def __init__(
        self, path: Path, packed: Any, is_gzip: bool, options: ImportOptions, log: ReadLog
    ) -> None:
        self._limited = _Limited(path, packed, is_gzip, options, log)
        super().__init__(self._limited, _BUFFER)

    def check_claimed(self, size: int) -> None:
        """Checks the size that the file claims, before any of it is read.

        Args:
            size: Its bytes when unpacked.
        """
        self._limited.check_claimed(size)

    def end_record(self) -> None:
        """Says that a record has been read: what follows is another one."""
        self._limited.of_record = 0


class _Limited(io.RawIOBase):
    def __init__(
        self, path: Path, packed: Any, is_gzip: bool, options: ImportOptions, log: ReadLog
    ) -> None:
        self.of_record = 0
        self._path = path
        self._packed = _Counted(packed, log)
        self._options = options
        self._unpacked = 0
        self._is_gzip = is_gzip
        self._packed_size = os.fstat(packed.fileno()).st_size
        self._file: Any = self._packed
        if is_gzip:
            self._file = gzip.GzipFile(fileobj=io.BufferedReader(self._packed, _PACKED_BUFFER))

    def check_claimed(self, size: int) -> None:
        if self._is_gzip:
            check_unpacked(self._path, self._packed_size, size, self._options)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)
        self.of_record += size
        self._unpacked += size
        if self.of_record > self._options.max_record_bytes + _BUFFER:
            raise too_large_record(self._path, self._options)
        if self._is_gzip:
            check_unpacked(self._path, self._packed.count, self._unpacked, self._options)
        return size


class _Counted(io.RawIOBase):
    """A file that reports to a log how many bytes were read from it."""

    def __init__(self, file: Any, log: ReadLog) -> None:
        self.count = 0
        self._file = file
        self._log = log

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)
        self.count += size
        self._log.advance(size)
        return size


def check_unpacked(path: Path, packed: int, unpacked: int, options: ImportOptions) -> None:
    """Checks how large a compressed input, or a part of one, is when unpacked.

    Args:
        packed: Its bytes.
        unpacked: The bytes that they are, or say that they are.
    """
    if unpacked > options.max_unpacked_mb * MB:
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_mb} MB when unpacked "
            f"(--max_unpacked_mb), found more"
        )
    if unpacked > max(FREE_MB * MB, options.max_unpacked_ratio * packed):
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_ratio} times its size when unpacked "
            f"(--max_unpacked_ratio), found {unpacked / MB:.0f} MB in {packed / MB:.3g} MB"
        )


def too_large_record(path: Path, options: ImportOptions) -> UserError:
    """Returns the error for a record of more bytes than the options allow."""
    return UserError(
        f"{path}: expected records of at most {options.max_record_mb} MB (--max_record_mb), found "
        "a larger one"
    )


@contextlib.contextmanager
def open_input(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[InputFile]:
    """Yields an input file, unpacked if its name ends in .gz."""
    with reading_errors(path), open_file(path, "a file") as packed:
        yield InputFile(path, packed, path.suffix == ".gz", options, log)


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turns what reading a file raises into a `UserError` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise UserError(
            f"{path}: expected a whole .gz file, found a truncated or damaged one ({e})"
        ) from e
    except OSError as e:
        if e.filename is not None and str(e.filename) != str(path):
            raise
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e


def decoded_lines(file: IO[bytes], path: Path, encoding: Optional[str] = None) -> Iterator[str]:
    """Yields the lines of a text file with their ends, without a byte-order mark.

    Args:
        path: Its name, for messages.
        encoding: A name of `ENCODINGS`; None where it can only be UTF-8.
    """
    if encoding is not None and cast(Any, file).peek(len(_ZIP))[: len(_ZIP)] == _ZIP:
        raise UserError(
            f"{path}: expected text, found an archive, as spreadsheets are (save the sheet as CSV)"
        )
    if encoding in (None, UTF_8):
        yield from _utf8_lines(file, path, has_flag=encoding is not None)
        return
    # Bytes of a line's end may be parts of other characters: lines are found in the text.
    with io.TextIOWrapper(cast(BinaryIO, file), encoding, newline="") as lines:
        try:
            yield from lines
        except UnicodeError as e:
            raise UserError(
                f"{path}: expected text in {encoding} (--encoding), found other bytes ({e})"
            ) from e


def _utf8_lines(file: IO[bytes], path: Path, has_flag: bool) -> Iterator[str]:
    offset, number = 0, 0
    while line := file.readline():
        number += 1
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as e:
            hint = _other_encoding(line if number == 1 else b"") if has_flag else ""
            raise not_utf8(path, offset + e.start, line[e.start], hint) from e
        yield text[1:] if number == 1 and text.startswith("\ufeff") else text
        offset += len(line)


def _other_encoding(start: bytes) -> str:
    """Returns how a file is to be read that begins so, and is no UTF-8."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return " (it begins as UTF-32 does: save it as UTF-8)"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return " (it begins as UTF-16 does: --encoding=utf-16 reads it)"
    return " (--encoding=cp1252 is for what Excel writes)"


def not_utf8(path: Path, offset: int, byte: int, hint: str = "") -> UserError:
    """Returns the error for a byte that is not UTF-8."""
    return UserError(f"{path}: expected UTF-8, found byte 0x{byte:02x} at offset {offset}{hint}")


def input_paths(names: Sequence[str]) -> list[Path]:
    """Returns the paths of --input."""
    if not names or not all(names):
        found = repr(",".join(names)) if names else "none"
        raise UserError(f"--input: expected files or folders, found {found}")
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.exists():
            raise UserError(f"--input: {path} does not exist")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError(f"--input: expected different files, found {','.join(names)!r}")
    return paths


def expand(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """Returns the given files, and the files with these suffixes in the given folders, sorted."""
    endings = tuple(suffix.lower() for suffix in suffixes)
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(f for f in path.rglob("*") if f.name.lower().endswith(endings))
            if not found:
                raise UserError(f"{path}: expected files {' or '.join(suffixes)}, found none")
        files += found
    seen: set[Path] = set()
    for file in files:
        check_is_file(file)
        if file.resolve() in seen:
            raise UserError(f"--input: expected each file once, found {file} in several inputs")
        seen.add(file.resolve())
    return files


def check_is_file(path: Path) -> None:
    """Raises a `UserError` if a path is no file, such as a pipe or a device, or has no bytes."""
    with open_file(path, "a file") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise UserError(f"{path}: expected data, found an empty file")


def place_of(path: Path, inputs: Sequence[Path]) -> str:
    """Returns a file's name in places: below its input, so that moving that changes no split."""
    roots = [root for root in inputs if root in path.parents]
    return path.relative_to(roots[0]).as_posix() if roots else path.name
