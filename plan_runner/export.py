"""Reads an export's folder, which is untrusted: manifest, files, archives, TFRecord frames.

TensorFlow allocates the length that a TFRecord frame states, and aborts the process if there is not
enough memory. So `check_frames` must check a file first.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Optional, TypeVar, Union

import numpy as np

from plan_runner.errors import PlanError, reason
from plan_runner.isolation import Bounds

# Maximum rounding difference between TensorFlow builds or processors, relative to the largest
# absolute value of a tensor.
ROUNDING = 1e-4
PLAN = "plan.pb"
CLIENT_ONLY_PLAN = "client_only_plan.pb"
SERVER_STATE = "server_state.ckpt"
CLIENTS = "conformance/clients"
# Suffix of the names of clients' example files.
SUFFIX = ".tfrecord"
_REQUIRED = (PLAN, CLIENT_ONLY_PLAN, SERVER_STATE)
_BLOCK_BYTES = 1 << 20
_ARRAY = ".npy"
# Readers of NPY headers, keyed by format version: only the versions that `np.savez` writes for
# numbers and strings.
_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# A TFRecord frame consists of the record's length, the length's checksum, the record, and the
# record's checksum.
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = _LENGTH.size + 4
_CHECKSUM_BYTES = 4
# Larger memory limits could exceed what the operating system's kernel accepts.
_MAX_MEMORY_GB = 1e6
_MAX_MANIFEST_BYTES = 16_000_000
NAME = "manifest.json"
# Kinds of rounds.
TRAINING, EVALUATION = "training", "evaluation"
FORMAT = "tff_agnostic federated export"
FORMAT_VERSION = 2
_FEATURE_DTYPES = ("float32", "int64", "string")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CLIENT_NAME = re.compile(r"[^/\\\x00]+")
_T = TypeVar("_T")
STATE = "server_state.ckpt"
METRICS = "metrics.jsonl"
# The state of a plan with noise contains the noise's key.
_OWNER_ONLY = 0o600


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """Expected SHA-256 and size in bytes of an export's file."""

    sha256: str
    size: int


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A tensor's dtype (TensorFlow's name for it) and shape (None stands for any size)."""

    dtype: str
    shape: tuple[Optional[int], ...]

    def admits(self, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether a value with this dtype and shape is of this type."""
        return (
            dtype == self.dtype
            and len(shape) == len(self.shape)
            and all(size in (None, actual) for size, actual in zip(self.shape, shape))
        )

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


@dataclasses.dataclass(frozen=True)
class Conformance:
    """Conformance rounds, whose expected results are in the export.

    Attributes:
        clients: Names of the clients, in the order of summation.
        expected: Names of the files with the expected tensors, one per round.
        state: File name of the initial state; None for the export's state.
    """

    clients: tuple[str, ...]
    expected: tuple[str, ...]
    state: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The entries of a manifest that running a plan needs."""

    kind: str
    profile: str
    files: Mapping[str, FileEntry]
    features: Mapping[str, TensorType]
    server_state: Mapping[str, TensorType]
    metrics: Mapping[str, TensorType]
    conformance: Conformance
    max_clients: Optional[int]
    min_clients: int
    has_noise: bool
    domains: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits for running an export; the flags with the same names document them."""

    max_memory_gb: float = 2.0
    max_round_seconds: float = 600.0
    max_records: int = 1_000_000
    max_unpacked_mb: float = 500.0

    @property
    def bounds(self) -> Bounds:
        """Memory and time limits of the sandboxed process."""
        return Bounds(self.max_memory_gb, self.max_round_seconds)

    def check(self) -> None:
        """Checks that each limit is above 0."""
        for name, value in dataclasses.asdict(self).items():
            # This form of the comparison also rejects NaN.
            if not value > 0:
                raise PlanError(f"--{name}: expected a number above 0, found {value}")
        if self.max_memory_gb > _MAX_MEMORY_GB:
            raise PlanError(
                f"--max_memory_gb: expected at most {_MAX_MEMORY_GB:g}, found {self.max_memory_gb}"
            )


DEFAULT_LIMITS = Limits()


@dataclasses.dataclass(frozen=True)
class Export:
    """An opened export, whose files' hashes `open_export` has checked."""

    folder: Path
    manifest: Manifest
    limits: Limits = DEFAULT_LIMITS

    def path(self, name: str) -> Path:
        """Returns the path of a file that the manifest names."""
        if name not in self.manifest.files:
            raise PlanError(f"{NAME}: files: expected {name!r}, found none")
        return self.folder / name

    def read(self, name: str) -> bytes:
        """Returns a file's content, and checks its hash again."""
        content = self.path(name).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name].sha256:
            raise PlanError(
                f"{self.folder / name}: expected the manifest's sha256, the file has changed"
            )
        return content


def read_manifest(folder: Path, pinned: Optional[str] = None) -> bytes:
    """Returns the content of an export's manifest, and checks its hash if `pinned` is not None."""
    path = folder / NAME
    try:
        if not folder.is_dir():
            raise PlanError(f"{folder}: expected the folder of an export, found none")
        _check_inside(folder, NAME)
        # Only read regular files: reading a pipe would block until another process writes to it.
        if not path.is_file():
            raise PlanError(f"{folder}: expected the file {NAME}, found none")
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise PlanError(f"{NAME}: expected at most {_MAX_MANIFEST_BYTES} bytes, found more")
        content = path.read_bytes()
    except OSError as e:
        raise PlanError(f"{path}: expected a manifest, cannot read it ({e.strerror})") from e
    digest = hashlib.sha256(content).hexdigest()
    if pinned is not None and digest != pinned:
        raise PlanError(f"{path}: expected the pinned sha256 {pinned}, found {digest}")
    return content


def open_export(
    folder: Path,
    limits: Limits = DEFAULT_LIMITS,
    pinned: Optional[str] = None,
    may_lack: Container[str] = (),
) -> Export:
    """Opens an export, and checks every file's hash before anything in it is parsed.

    Args:
        limits: Limits for reading the export and running its graphs.
        pinned: Expected SHA-256 of the manifest, as hexadecimal digits; None for any manifest.
        may_lack: Names of the manifest's files that may be absent.
    """
    manifest = parse_manifest(read_manifest(folder, pinned))
    for name, entry in manifest.files.items():
        _check_inside(folder, name)
        if name not in may_lack or os.path.lexists(folder / name):
            _check_content(folder / name, entry)
    export = Export(folder, manifest, limits)
    for name in (
        *_REQUIRED,
        *manifest.conformance.expected,
        *(conformance_client(name) for name in manifest.conformance.clients),
    ):
        export.path(name)
    for name in _entries(folder):
        if name not in manifest.files and name != NAME:
            raise PlanError(f"{folder / name}: expected the manifest's files only, found this one")
    return export


def conformance_client(name: str) -> str:
    """Returns the file name of a conformance client's examples, relative to the export."""
    return f"{CLIENTS}/{name}{SUFFIX}"


def _check_inside(folder: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name
    # The second condition rejects different names of the same file, such as "a//b".
    if not is_plain or str(PurePosixPath(name)) != name:
        raise PlanError(f"{folder}: expected paths within the export, found {name!r}")
    root = folder.resolve()
    try:
        resolved = (root / name).resolve()
    except (OSError, RuntimeError, ValueError) as e:  # A loop of links, or an invalid name.
        raise PlanError(f"{folder / name}: expected a file, found an invalid link") from e
    if root not in resolved.parents:
        raise PlanError(
            f"{folder / name}: expected a file within the export, found a link to a file outside"
        )


def _check_content(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise PlanError(f"{path}: expected the manifest's file, found none")
    size = path.stat().st_size
    if size != entry.size:
        raise PlanError(f"{path}: expected {entry.size} bytes as in the manifest, found {size}")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise PlanError(
            f"{path}: expected the sha256 {entry.sha256} as in the manifest, "
            f"found {digest.hexdigest()}"
        )


def _entries(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*files, *links]):
            yield (Path(parent) / name).relative_to(folder).as_posix()


def read_arrays(
    path: Union[Path, io.BytesIO],
    max_unpacked_mb: float = DEFAULT_LIMITS.max_unpacked_mb,
    where: Optional[str] = None,
) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file.

    Args:
        path: The file, or its content.
        max_unpacked_mb: Maximum size when unpacked, in 10^6 bytes.
        where: Name of the file, for error messages; the path by default.
    """
    where = f"{path}" if where is None else where
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            # zipfile never unpacks more bytes than the archive states.
            size = sum(member.file_size for member in members)
            if size > max_unpacked_mb * 1e6:
                raise PlanError(
                    f"{where}: expected at most {max_unpacked_mb:g} MB when unpacked "
                    f"(--max_unpacked_mb), found {size / 1e6:.1f} MB"
                )
            return {
                member.filename.removesuffix(_ARRAY): _array(archive.read(member))
                for member in members
            }
    except PlanError:
        raise
    # NumPy and zipfile raise many kinds of errors for a damaged archive.
    except Exception as e:
        raise PlanError(f"{where}: expected an .npz file, cannot read it ({reason(e)})") from e


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    # Check before NumPy allocates the size that the header states.
    size, actual = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if min(shape, default=0) < 0 or size != actual:
        raise ValueError(f"an array of {size} bytes in {actual} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def check_frames(path: Path, max_records: int) -> None:
    """Checks that TFRecord frames fill a file exactly; TensorFlow later checks their checksums."""
    expected = f"{path}: expected a TFRecord file"
    if not path.is_file():
        raise PlanError(f"{expected}, cannot read it (no such file)")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        position, records = 0, 0
        while position < size:
            header = file.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES:
                raise PlanError(f"{expected}, cannot read it (cut after record {records})")
            (length,) = _LENGTH.unpack(header[: _LENGTH.size])
            position += _HEADER_BYTES + length + _CHECKSUM_BYTES
            if position > size:
                raise PlanError(
                    f"{expected}, cannot read it (record {records + 1} of {length} bytes is longer "
                    "than the file)"
                )
            records += 1
            check_count(records, max_records, str(path))
            file.seek(position)


def check_count(count: int, max_records: int, where: str) -> None:
    """Checks that a client does not have too many examples."""
    if count > max_records:
        raise PlanError(
            f"{where}: expected at most {max_records} records (--max_records), found more"
        )


def parse_manifest(content: bytes) -> Manifest:
    """Parses and checks the content of a manifest."""
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as e:
        raise PlanError(f"{NAME}: expected JSON, cannot read it ({reason(e)})") from e
    top = _checked(value, dict, NAME)
    for name, expected in (("format", FORMAT), ("format_version", FORMAT_VERSION)):
        value = _part(top, name, type(expected), NAME)
        if value != expected:
            raise PlanError(f"{NAME}: {name}: expected {expected!r}, found {value!r}")
    examples = _part(top, "examples", dict, NAME)
    features = _tensors(examples, "features", f"{NAME}: examples")
    for name, kind in features.items():
        if kind.dtype not in _FEATURE_DTYPES:
            where = f"{NAME}: examples: features: {name}"
            dtypes = ", ".join(_FEATURE_DTYPES)
            raise PlanError(f"{where}: expected one of {dtypes}, found {kind.dtype!r}")
    tensors = _part(top, "tensors", dict, NAME)
    server_state = _tensors(tensors, "server_state", f"{NAME}: tensors")
    if not server_state:
        raise PlanError(f"{NAME}: tensors: server_state: expected tensors, found none")
    return Manifest(
        kind=_part(top, "kind", str, NAME),
        profile=_part(top, "profile", str, NAME),
        files=_files(_part(top, "files", dict, NAME)),
        features=features,
        server_state=server_state,
        metrics=_tensors(tensors, "metrics", f"{NAME}: tensors"),
        conformance=_conformance(_part(top, "conformance", dict, NAME)),
        max_clients=_clients_per_round(top, "maximum_clients_per_round"),
        min_clients=_clients_per_round(top, "minimum_clients_per_round") or 0,
        has_noise="differential_privacy" in top.get("privacy", {}),
        domains=tuple(_names(top, "domains", NAME)) if "domains" in top else (),
    )


def _clients_per_round(top: Mapping[str, Any], name: str) -> Optional[int]:
    privacy = _checked(top.get("privacy", {}), dict, f"{NAME}: privacy")
    return _part(privacy, name, int, f"{NAME}: privacy") if name in privacy else None


def _files(value: Mapping[str, Any]) -> dict[str, FileEntry]:
    files = {}
    for name, entry in value.items():
        where = f"{NAME}: files: {name}"
        entry = _checked(entry, dict, where)
        sha256 = _part(entry, "sha256", str, where)
        if not _SHA256.fullmatch(sha256):
            raise PlanError(f"{where}: sha256: expected 64 hexadecimal digits, found {sha256!r}")
        files[name] = FileEntry(sha256, _part(entry, "bytes", int, where))
    return files


def _tensors(parent: Mapping[str, Any], key: str, where: str) -> dict[str, TensorType]:
    tensors = {}
    for name, entry in _part(parent, key, dict, where).items():
        place = f"{where}: {key}: {name}"
        entry = _checked(entry, dict, place)
        shape = _part(entry, "shape", list, place)
        for size in shape:
            if size is not None and (type(size) is not int or size < 0):
                raise PlanError(f"{place}: shape: expected sizes, found {size!r}")
        tensors[name] = TensorType(_part(entry, "dtype", str, place), tuple(shape))
    return tensors


def _conformance(value: Mapping[str, Any]) -> Conformance:
    where = f"{NAME}: conformance"
    rounds = _part(value, "rounds", int, where)
    clients = _names(value, "clients", where)
    for name in clients:
        if not _CLIENT_NAME.fullmatch(name):
            raise PlanError(f"{where}: clients: expected names of files, found {name!r}")
    expected = _names(value, "expected", where)
    if clients != sorted(set(clients)):
        raise PlanError(f"{where}: clients: expected distinct names in order, found {clients}")
    if rounds < 1 or rounds != len(expected):
        raise PlanError(
            f"{where}: expected a file for each of 1 or more rounds ({rounds}), "
            f"found {len(expected)}"
        )
    state = _part(value, "state", str, where) if "state" in value else None
    return Conformance(tuple(clients), tuple(expected), state)


def _names(parent: Mapping[str, Any], key: str, where: str) -> list[str]:
    return [_checked(name, str, f"{where}: {key}") for name in _part(parent, key, list, where)]


def _part(parent: Mapping[str, Any], key: str, kind: type[_T], where: str) -> _T:
    if key not in parent:
        raise PlanError(f"{where}: expected the part {key!r}, found none")
    return _checked(parent[key], kind, f"{where}: {key}")


def _checked(value: Any, kind: type[_T], where: str) -> _T:
    # Compare the exact type, because True is also an int.
    if type(value) is not kind:
        raise PlanError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value


@contextlib.contextmanager
def results_folder(folder: Path) -> Iterator[None]:
    """Creates the folder for a run's results, and removes it if the first round fails."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entry = next(folder.iterdir(), None)
    except OSError as e:
        raise PlanError(f"{folder}: expected a folder, cannot create it ({e.strerror})") from e
    if entry is not None:
        raise PlanError(f"{folder}: expected a new or empty folder, found {entry.name} in it")
    try:
        yield
    except BaseException:
        # Remove the innermost folder first. `rmdir` removes only empty folders.
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


def publish(results: Path, folder: Path) -> None:
    """Copies the files of `rounds.write_results`, each atomically."""
    names = (METRICS, STATE)
    try:
        with tempfile.TemporaryDirectory(prefix=".plan_runner_", dir=folder) as partial:
            for name in names:
                shutil.copyfile(results / name, Path(partial) / name)
                with open(Path(partial) / name, "rb") as file:
                    os.fsync(file.fileno())
            # Protect the state before it leaves the temporary folder, which only the owner can
            # enter.
            (Path(partial) / STATE).chmod(_OWNER_ONLY)
            for name in names:
                os.replace(Path(partial) / name, folder / name)
    except OSError as e:
        raise PlanError(f"{folder}: cannot write: {e.strerror}") from e
