"""Arrays of .npz files, read in blocks of rows instead of at once."""

import contextlib
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.importing.records.input_files import check_unpacked, too_large_record
from tff_agnostic.importing.records.options import ImportOptions

_SUFFIX = ".npy"
_MAX_FOUND = 200
_BLOCK_BYTES = 1 << 24


class NpzColumns:
    """The arrays of an .npz file; a context manager.

    Args:
        path: The file.
        options: Of the import, with its limits.

    Raises:
        UserError: If it is no .npz file, or damaged.
    """

    def __init__(self, path: Path, options: ImportOptions) -> None:
        self._path = path
        self._options = options
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as e:  # There is no list of what zip raises on arbitrary bytes.
            raise self._damaged(e) from e
        names = [name for name in self._zip.namelist() if name.endswith(_SUFFIX)]
        self.names = [name[: -len(_SUFFIX)] for name in names]

    def __enter__(self) -> "NpzColumns":
        """Does nothing more."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the file."""
        self._zip.close()

    def blocks(
        self, names: Sequence[str], num_rows: int
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yields the compressed size read so far, and the next rows of each array.

        Args:
            names: Which arrays; they have to have the same number of rows.
            num_rows: Rows of a block, of which fewer are read where they are large.

        Raises:
            UserError: If an array is damaged, holds objects, they differ in length, or are larger
                than the options allow.
        """
        try:
            for member in (self._zip.getinfo(name + _SUFFIX) for name in names):
                check_unpacked(self._path, member.compress_size, member.file_size, self._options)
            # The archive stays open as long as one of its members does.
            with contextlib.ExitStack() as members:
                columns = {
                    name: _Column(members.enter_context(self._zip.open(name + _SUFFIX)), name)
                    for name in names
                }
                lengths = {name: column.num_rows for name, column in columns.items()}
                if len(set(lengths.values())) > 1:
                    found = ", ".join(f"{name} {length}" for name, length in lengths.items())
                    raise UserError(f"{self._path}: expected arrays of one length, found {found}")
                total = next(iter(lengths.values()))
                largest = max(column.row_bytes for column in columns.values())
                if largest > self._options.max_record_bytes:
                    raise too_large_record(self._path, self._options)
                num_rows = max(1, min(num_rows, _BLOCK_BYTES // max(1, largest)))
                compressed = sum(self._zip.getinfo(name + _SUFFIX).compress_size for name in names)
                for start in range(0, total, num_rows):
                    size = min(num_rows, total - start)
                    rows = {name: column.next_rows(size) for name, column in columns.items()}
                    yield compressed * (start + size) // total, rows
                for column in columns.values():
                    column.check_end()
        except UserError:
            raise
        except Exception as e:  # Nor of what npy does.
            raise self._damaged(e) from e

    def _damaged(self, error: Exception) -> UserError:
        # Some messages hold a part of the file.
        found = " ".join(str(error).split())[:_MAX_FOUND] or type(error).__name__
        return UserError(
            f"{self._path}: expected an .npz file of plain arrays, found a damaged or another file "
            f"({found})"
        )


class _Column:
    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        version = np.lib.format.read_magic(self._file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, self._dtype = read_header(self._file)
        if self._dtype.hasobject:
            raise ValueError(f"{name} holds pickled objects, which are refused")
        if not shape or (fortran_order and len(shape) > 1):
            raise ValueError(f"{name} is a single value or an array in Fortran order")
        if min(shape) < 0:
            raise ValueError(f"{name} has the shape {shape}")
        self.num_rows = int(shape[0])
        self._row_shape = shape[1:]
        self.row_bytes = math.prod(self._row_shape) * self._dtype.itemsize

    def next_rows(self, count: int) -> np.ndarray:
        size = count * self.row_bytes
        content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends early")
        return np.frombuffer(content, self._dtype).reshape(count, *self._row_shape)

    def check_end(self) -> None:
        # Only where it is read to its end is its checksum looked at.
        if self._file.read(1):
            raise ValueError(f"{self._name} goes on after its {self.num_rows} rows")
