"""What an export says of itself: `manifest.json`."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Optional, TypeVar

from plan_runner.errors import PlanError, reason

NAME = "manifest.json"
FORMAT = "tff_agnostic federated export"
# The first one had no outputs of metrics, and gave devices both graphs.
FORMAT_VERSIONS = (1, 2)

_FEATURE_DTYPES = ("float32", "int64", "string")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CLIENT_NAME = re.compile(r"[^/\\\x00]+")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A tensor's dtype, by TensorFlow's name, and its shape; None is any size."""

    dtype: str
    shape: tuple[Optional[int], ...]

    def admits(self, dtype: str, shape: tuple[int, ...]) -> bool:
        """Returns whether a value of that dtype and shape is one of this type."""
        return (
            dtype == self.dtype
            and len(shape) == len(self.shape)
            and all(size in (None, found) for size, found in zip(self.shape, shape))
        )

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """What a file of the export has to hold."""

    sha256: str
    size: int


@dataclasses.dataclass(frozen=True)
class Conformance:
    """Rounds whose results are known: the clients in order, and a file of tensors per round.

    Attributes:
        clients: Names of the clients.
        expected: Names of the files.
        state: Name of the state that they begin with, where it is not the export's.
    """

    clients: tuple[str, ...]
    expected: tuple[str, ...]
    state: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The parts of a manifest that running needs."""

    profile: str
    files: Mapping[str, FileEntry]
    features: Mapping[str, TensorType]
    server_state: Mapping[str, TensorType]
    metrics: Mapping[str, TensorType]
    conformance: Conformance
    max_clients: Optional[int]
    has_noise: bool


def parse_manifest(content: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
        PlanError: If it is damaged, of another or a newer format, or has missing or wrong parts.
    """
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as e:
        raise PlanError(f"{NAME}: expected JSON, cannot read it ({reason(e)})") from e
    top = _checked(value, dict, NAME)
    found = _part(top, "format", str, NAME)
    if found != FORMAT:
        raise PlanError(f"{NAME}: format: expected {FORMAT!r}, found {found!r}")
    version = _part(top, "format_version", int, NAME)
    if version not in FORMAT_VERSIONS:
        newest = max(FORMAT_VERSIONS)
        newer = "; a newer export needs a newer runner" if version > newest else ""
        raise PlanError(f"{NAME}: format_version: expected 1 to {newest}, found {version}{newer}")
    examples = _part(top, "examples", dict, NAME)
    features = _tensors(examples, "features", f"{NAME}: examples")
    for name, kind in features.items():
        if kind.dtype not in _FEATURE_DTYPES:
            known = ", ".join(_FEATURE_DTYPES)
            raise PlanError(
                f"{NAME}: examples: features: {name}: expected one of {known}, found {kind.dtype!r}"
            )
    tensors = _part(top, "tensors", dict, NAME)
    server_state = _tensors(tensors, "server_state", f"{NAME}: tensors")
    if not server_state:
        raise PlanError(f"{NAME}: tensors: server_state: expected tensors, found none")
    return Manifest(
        profile=_part(top, "profile", str, NAME),
        files=_files(_part(top, "files", dict, NAME)),
        features=features,
        server_state=server_state,
        metrics=_tensors(tensors, "metrics", f"{NAME}: tensors"),
        conformance=_conformance(_part(top, "conformance", dict, NAME)),
        max_clients=_max_clients(top),
        has_noise="differential_privacy" in top.get("privacy", {}),
    )


def _max_clients(top: Mapping[str, Any]) -> Optional[int]:
    privacy = _checked(top.get("privacy", {}), dict, f"{NAME}: privacy")
    if "maximum_clients_per_round" not in privacy:
        return None
    return _part(privacy, "maximum_clients_per_round", int, f"{NAME}: privacy")


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
    # By the very type: True is an int as well.
    if type(value) is not kind:
        raise PlanError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value
