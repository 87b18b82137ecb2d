"""The interface of a format: input files, how they are read, and keys in few bytes."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Callable, Optional, cast

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import open_file
from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.options import FREE_MB, MB, UTF_8, ImportOptions

_MAX_NEW = 100_000
_BUFFER = 1 << 20
_MAX_SPELLINGS = 1000
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
        renamed: Spellings of names that differ from the name in the store, by column.
        rounded: How many whole numbers float32 rounds, by column.
        rows_are_clients: Whether each row is a client.
        controls: How many control characters became spaces.
        skips_bad: Whether bad records are counted instead of ending the import.
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
        self.renamed: dict[str, dict[str, str]] = {}
        self.rounded: Counter[str] = Counter()
        self.rows_are_clients = False
        self.controls = 0
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
        packed: The file.
        options: Options of the import, with its limits.
        log: Counts the bytes that were read from the file.
    """

    def __init__(self, path: Path, packed: Any, options: ImportOptions, log: ReadLog) -> None:
        self._limited = _Limited(path, packed, options, log)
        super().__init__(self._limited, _BUFFER)

    @property
    def num_bytes(self) -> int:
        """Bytes that were read, unpacked."""
        return self._limited.unpacked

    def check_claimed(self, size: int) -> None:
        """Checks the size that the file claims, before any of it is read.

        Args:
            size: Its bytes when unpacked.
        """
        self._limited.check_claimed(size)

    def end_record(self) -> None:
        """Marks the end of a record: what follows is another one."""
        self._limited.of_record = 0


class _Limited(io.RawIOBase):
    def __init__(self, path: Path, packed: Any, options: ImportOptions, log: ReadLog) -> None:
        self.of_record = 0
        self.unpacked = 0
        self._path = path
        self._packed = _Counted(packed, log)
        self._options = options
        self._packed_size = os.fstat(packed.fileno()).st_size
        self._file: Any = self._packed
        unpack = _UNPACK.get(path.suffix.lower())
        self._is_packed = unpack is not None
        if unpack is not None:
            self._file = unpack(path, io.BufferedReader(self._packed, _PACKED_BUFFER))

    def check_claimed(self, size: int) -> None:
        if self._is_packed:
            check_unpacked(self._path, self._packed_size, size, self._options)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)
        self.of_record += size
        self.unpacked += size
        if self.of_record > self._options.max_record_bytes + _BUFFER:
            raise too_large_record(self._path, self._options)
        if self._is_packed:
            check_unpacked(self._path, self._packed.count, self.unpacked, self._options)
        return size


def _unzipped(path: Path, file: Any) -> Any:
    """Returns the only file of an archive."""
    archive = zipfile.ZipFile(file)
    files = [name for name in archive.namelist() if not name.endswith("/")]
    files = [name for name in files if not name.startswith("__MACOSX/")]
    if len(files) != 1:
        raise UserError(
            f"{path}: expected an archive of one file, found {', '.join(files[:3]) or 'none'}"
        )
    return archive.open(files[0])


# End of a name -> how the file is unpacked.
_UNPACK: Mapping[str, Callable[[Path, Any], Any]] = {
    ".gz": lambda _, file: gzip.GzipFile(fileobj=file),
    ".bz2": lambda _, file: bz2.BZ2File(file),
    ".zip": _unzipped,
}


class _Counted(io.RawIOBase):
    """A file that reports to a log the number of bytes that were read from it."""

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

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def check_unpacked(path: Path, packed: int, unpacked: int, options: ImportOptions) -> None:
    """Checks how large a compressed input, or a part of one, is when unpacked.

    Args:
        packed: Its bytes.
        unpacked: The bytes that they are, or say that they are.
    """
    if unpacked > options.max_unpacked_mb * MB:
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_mb} MB when unpacked "
            f"(max_unpacked_mb), found more"
        )
    if unpacked > max(FREE_MB * MB, options.max_unpacked_ratio * packed):
        raise UserError(
            f"{path}: expected at most {options.max_unpacked_ratio} times its size when unpacked "
            f"(max_unpacked_ratio), found {unpacked / MB:.0f} MB in {packed / MB:.3g} MB"
        )


def too_large_record(path: Path, options: ImportOptions) -> UserError:
    """Returns the error for a record of more bytes than the options allow."""
    return UserError(
        f"{path}: expected records of at most {options.max_record_mb} MB (max_record_mb), found "
        "a larger one"
    )


@contextlib.contextmanager
def open_input(path: Path, options: ImportOptions, log: ReadLog) -> Iterator[InputFile]:
    """Yields an input file, unpacked if its name ends in .gz, .bz2 or .zip."""
    with reading_errors(path), open_file(path, "a file") as packed:
        yield InputFile(path, packed, options, log)


@contextlib.contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turns errors of reading a file into a `UserError` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as e:
        raise _damaged(path, e) from e
    except OSError as e:
        if e.filename is not None and str(e.filename) != str(path):
            raise
        if e.errno is None and path.suffix in _UNPACK:
            raise _damaged(path, e) from e
        raise UserError(f"{path}: cannot read: {e.strerror or e}") from e


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: expected a whole {path.suffix} file, found a truncated or damaged one ({error})"
    )


def decoded_lines(
    file: IO[bytes], path: Path, options: Optional[ImportOptions] = None
) -> Iterator[str]:
    """Yields the lines of a text file with their ends, without a byte-order mark.

    Args:
        file: The file.
        path: Its name, for messages.
        options: Options with the encoding; None where the text can only be UTF-8.
    """
    if options is not None:
        start = cast(Any, file).peek(_LONGEST_MARK)
        for mark, found in _NO_TEXT.items():
            if start.startswith(mark):
                raise UserError(f"{path}: expected text, found {found}")
    errors = "strict" if options is None else options.encoding_errors
    if options is None or options.encoding == UTF_8:
        yield from _utf8_lines(file, path, errors, has_options=options is not None)
        return
    # Bytes of a line's end may be parts of other characters: lines are found in the text.
    with io.TextIOWrapper(cast(BinaryIO, file), options.encoding, errors, newline="") as lines:
        number = 0
        try:
            for line in lines:
                number += 1
                yield line
        except UnicodeError as e:
            raise UserError(
                f"{path}: expected text in {options.encoding} (encoding), found other bytes after "
                f"line {number} ({e})"
            ) from e


def _utf8_lines(file: IO[bytes], path: Path, errors: str, has_options: bool) -> Iterator[str]:
    number = 0
    while line := file.readline():
        number += 1
        try:
            text = line.decode("utf-8", errors)
        except UnicodeDecodeError as e:
            hint = _other_encoding(line, number) if has_options else ""
            column = len(line[: e.start].decode("utf-8")) + 1
            raise not_utf8(path, number, column, line[e.start], hint) from e
        yield text[1:] if number == 1 and text.startswith("\ufeff") else text


def _other_encoding(line: bytes, number: int) -> str:
    """Returns how a file is to be read that has such a line, which is not UTF-8."""
    if number == 1 and line.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return " (it begins as UTF-32 does: save it as UTF-8)"
    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return " (it begins as UTF-16 does: encoding=utf-16 reads it)"
    try:
        line.decode("cp1252")
    except UnicodeDecodeError:
        return " (encoding_errors=replace puts a sign there)"
    return " (encoding=cp1252 is for what Excel writes; encoding_errors=replace puts a sign there)"


def not_utf8(path: Path, line: int, column: int, byte: int, hint: str = "") -> UserError:
    """Returns the error for a byte that is not UTF-8."""
    return UserError(
        f"{path}:{line}: expected UTF-8, found byte 0x{byte:02x} in column {column}{hint}"
    )


# How files begin that are no text.
_NO_TEXT = {
    b"PK\x03\x04": "an archive, as spreadsheets are (save the sheet as CSV; a zipped CSV is read "
    "if its name ends in .zip)",
    b"PAR1": "a Parquet file (format=parquet reads it)",
    b"BZh": "a bzip2 file (it is read if its name ends in .bz2)",
    b"\x1f\x8b": "a gzip file (it is read if its name ends in .gz)",
    b"\x80\x04\x95": "a pickle, which may run code (write the table as Parquet or CSV)",
    b"\x80\x05\x95": "a pickle, which may run code (write the table as Parquet or CSV)",
    b"\xd0\xcf\x11\xe0": "a spreadsheet (save the sheet as CSV)",
    b"SQLite format 3": "an SQLite database (write the table as CSV or Parquet)",
}
_LONGEST_MARK = max(map(len, _NO_TEXT))


def input_paths(options: ImportOptions) -> list[Path]:
    """Returns the paths of `input`."""
    names = options.input
    if not names or not all(names):
        found = ",".join(names) if names else Verbatim("none")
        raise options.error("input", "files or folders", found)
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.exists():
            raise options.error("input", "files or folders", Verbatim(f"nothing at {path}"))
    if len({path.resolve() for path in paths}) < len(paths):
        raise options.error("input", "different files", ",".join(names))
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
            raise OptionError("input", "each file once", Verbatim(f"{file} in several inputs"))
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
