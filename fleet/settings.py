"""Files that operators write: `node.toml`, `server.toml`, identities and rosters.

Paths in a file are relative to the file's folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, TypeVar

from fleet.node_noise.noise import PrivacyRequirements
from fleet.secure_aggregation.primitives import KEY_BYTES
from fleet.secure_aggregation.sum_plan import MIN_CLIENTS, Identities
from plan_runner import export as exports
from plan_runner.client_store import TRAIN
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Limits

_T = TypeVar("_T")
_DIGITS = re.compile(r"[0-9a-f]{64}")
# Python types of settings, mapped to the type in TOML and the type's description in messages.
_TYPES: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (int, "an integer"),
    float: (float, "a number"),
    str: (str, "a string"),
    Path: (str, "a path"),
}


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Location of a node's examples; exactly one of `tfrecord`, `store` and `load` must be set.

    Attributes:
        tfrecord: TFRecord file, or folder with files NAME.tfrecord, read in alphabetical order.
        store: Client store that contains the node's client.
        load: Python file with a function `load(config)` that returns serialised `tf.train.Example`
            messages. The function runs outside of the sandbox, as it is the operator's code.
        client: Id of the node's client in the store.
        split: Split of the store to read.
        config: Argument of `load`.
    """

    tfrecord: Optional[Path] = None
    store: Optional[Path] = None
    load: Optional[Path] = None
    client: Optional[str] = None
    split: str = TRAIN
    config: dict[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raises PlanError for an invalid combination of settings."""
        places = ("tfrecord", "store", "load")
        given = [name for name in places if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError(
                f"{where}: expected one of {', '.join(places)}, found {', '.join(given) or 'none'}"
            )
        if self.store is not None and self.client is None:
            raise PlanError(f"{where}: store: expected the setting client, found none")
        for name in ("client", "split"):
            if self.store is None and getattr(self, name) != getattr(DataSettings, name):
                raise PlanError(f"{where}: {name} has no effect without store")
        if self.config and self.load is None:
            raise PlanError(f"{where}: config has no effect without load")


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """A pinned export, such as an evaluation's.

    Attributes:
        manifest_sha256: SHA-256 of the export's manifest, as 64 hexadecimal digits.
        every: Number of training rounds per evaluation round; used by the server only.
    """

    export: Path
    manifest_sha256: str
    every: int = 1

    def check(self, where: str) -> None:
        """Raises PlanError for invalid values."""
        check_digest(self.manifest_sha256, f"{where}: manifest_sha256")
        _at_least(self.every, 1, f"{where}: every")


@dataclasses.dataclass(frozen=True)
class NodeSettings:
    """Settings of a node, which is one client.

    Attributes:
        manifest_sha256: Required SHA-256 of the export's manifest, as 64 hexadecimal digits.
        identity: File with the node's secret key; see `read_identity`.
        roster: File with all nodes' identities; see `read_roster`.
        state: Folder for the node's answers.
        evaluation: Evaluation export that the node also runs; None without evaluation.
        min_clients: Minimum number of clients in a sum that the node helps to unmask. The server
            must have the same value.
        limits: Limits on memory, time and examples.
        privacy: Requirements on the plans' noise and the number of sums.
    """

    export: Path
    manifest_sha256: str
    identity: Path
    roster: Path
    state: Path
    data: DataSettings
    evaluation: Optional[PlanSettings] = None
    min_clients: int = MIN_CLIENTS
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False
    privacy: PrivacyRequirements = PrivacyRequirements()

    def check(self, where: str) -> None:
        """Raises PlanError for invalid values."""
        check_digest(self.manifest_sha256, f"{where}: manifest_sha256")
        _at_least(self.min_clients, MIN_CLIENTS, f"{where}: min_clients")


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """Seconds for which the server waits.

    Attributes:
        nodes: Seconds to wait until enough nodes for a round are reachable.
        work: Seconds to wait while clients compute their values.
        stage: Seconds to wait for an answer other than clients' values.
        patience: Factor p: after enough answers, an exchange ends after max(p t, 10) seconds if the
            last answer took t seconds. None waits for the full timeout.
    """

    nodes: float = 600.0
    work: float = 600.0
    stage: float = 60.0
    patience: Optional[float] = None

    def check(self, where: str) -> None:
        """Raises PlanError for invalid values."""
        for name in ("nodes", "work", "stage"):
            if not getattr(self, name) > 0:
                raise PlanError(
                    f"{where}: {name}: expected seconds above 0, found {getattr(self, name)}"
                )
        if self.patience is not None:
            _at_least(self.patience, 1, f"{where}: patience")


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Settings of a fleet's server.

    Attributes:
        export: Folder of the export, with the initial state.
        roster: File with all nodes' identities; see `read_roster`.
        state: Folder for the server's state and round journal.
        evaluation: Evaluation export, with its frequency; None without evaluation.
        cohort_size: Number of nodes to sample for a round; None for all connected nodes.
        min_clients: Minimum number of clients in a round and in an unmasked sum. Nodes must have
            the same value.
        attempts: Maximum number of attempts at a round, each with new keys.
        rest_rounds: Number of rounds for which an unresponsive node is excluded.
        timeouts: Seconds to wait for nodes and their answers.
        limits: Limits on memory and time.
        keeps_sums: Whether to store each round's sums in the state folder.
        target_epsilon: Maximum epsilon of any client in the server's account; None if only the
            plan's own limits apply.
    """

    export: Path
    roster: Path
    state: Path
    evaluation: Optional[PlanSettings] = None
    cohort_size: Optional[int] = None
    min_clients: int = MIN_CLIENTS
    attempts: int = 5
    rest_rounds: int = 2
    timeouts: Timeouts = Timeouts()
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False
    keeps_sums: bool = False
    target_epsilon: Optional[float] = None

    def check(self, where: str) -> None:
        """Raises PlanError for invalid values."""
        if self.target_epsilon is not None and not self.target_epsilon > 0:
            raise PlanError(
                f"{where}: target_epsilon: expected a number above 0, found {self.target_epsilon}"
            )
        _at_least(self.min_clients, 1, f"{where}: min_clients")
        _at_least(self.attempts, 1, f"{where}: attempts")
        _at_least(self.rest_rounds, 0, f"{where}: rest_rounds")
        if self.cohort_size is not None:
            _at_least(self.cohort_size, self.min_clients, f"{where}: cohort_size")


def read_node_settings(path: Path) -> NodeSettings:
    """Reads `node.toml`."""
    return _settings(NodeSettings, read_toml(path), path.parent, str(path))


def read_server_settings(path: Path) -> ServerSettings:
    """Reads `server.toml`."""
    return _settings(ServerSettings, read_toml(path), path.parent, str(path))


def manifest_sha256(export: Path) -> str:
    """Returns SHA-256 of an export's manifest, as hexadecimal digits."""
    return hashlib.sha256(exports.read_manifest(export)).hexdigest()


def read_identity(path: Path) -> bytes:
    """Reads an Ed25519 secret key from a file with 64 hexadecimal digits and mode 600."""
    expected = f"{path}: expected the secret of an identity, 64 hexadecimal digits"
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(2 * KEY_BYTES + 2).decode(errors="replace").strip()
    except OSError as e:
        raise PlanError(f"{expected}, cannot read it ({e.strerror})") from e
    if mode & 0o077:
        raise PlanError(
            f"{path}: expected a file that only its owner may read, found mode {mode:o}: chmod 600"
        )
    if not _DIGITS.fullmatch(text):
        raise PlanError(f"{expected}, found {len(text)} characters")
    return bytes.fromhex(text)


def read_roster(path: Path) -> Identities:
    """Reads a fleet's identities from a TOML file with lines NAME = "64 hexadecimal digits"."""
    names: dict[bytes, str] = {}
    for name, key in read_toml(path).items():
        check_digest(key, f"{path}: {name}")
        other = names.setdefault(bytes.fromhex(key), name)
        if other != name:
            raise PlanError(f"{path}: {name}: expected a distinct key, found {other}'s")
    if not names:
        raise PlanError(f"{path}: expected identities, found none")
    return Identities(names)


def check_digest(value: Any, where: str) -> None:
    """Checks that a value is a string of 64 hexadecimal digits."""
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        raise PlanError(f"{where}: expected 64 hexadecimal digits, found {value!r:.100}")


def _at_least(value: float, minimum: int, where: str) -> None:
    if not value >= minimum:
        raise PlanError(f"{where}: expected at least {minimum}, found {value}")


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise PlanError(f"{path}: expected a TOML file, cannot read it ({reason})") from e


def _settings(kind: type[_T], table: Mapping[str, Any], folder: Path, where: str) -> _T:
    """Converts a TOML table to a dataclass of settings, and checks the settings."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in table:
        if name not in fields:
            raise PlanError(f"{where}: expected some of {', '.join(fields)}, found {name!r}")
    for name, field in fields.items():
        defaults = (field.default, field.default_factory)
        if name not in table and all(default is dataclasses.MISSING for default in defaults):
            raise PlanError(f"{where}: expected {name}, found none")
    settings = kind(
        **{name: _value(hints[name], v, folder, f"{where}: {name}") for name, v in table.items()}
    )
    # `Limits` are checked where they are used, as their messages name flags.
    if not isinstance(settings, Limits):
        settings.check(where)  # type: ignore[attr-defined]
    return settings


def _value(hint: Any, value: Any, folder: Path, where: str) -> Any:
    if typing.get_origin(hint) is typing.Union:
        hint = typing.get_args(hint)[0]
    expected, words = _TYPES.get(hint, (dict, "a table"))
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected:
        raise PlanError(f"{where}: expected {words}, found {value!r}")
    if dataclasses.is_dataclass(hint):
        return _settings(hint, value, folder, where)  # type: ignore[arg-type]
    return folder / str(value) if hint is Path else value
