"""Settings of operators: a node's `node.toml`, the server's `server.toml`, keys and rosters.

Paths in a file are relative to its folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import re
import stat
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

from fleet.members import SAMPLINGS
from fleet.node_noise.noise import PrivacyRequirements
from fleet.secure_aggregation.primitives import KEY_BYTES
from fleet.secure_aggregation.sum_plan import FEWEST_CLIENTS, Identities
from plan_runner import export as exports
from plan_runner.client_store import TRAIN
from plan_runner.errors import PlanError
from plan_runner.export import DEFAULT_LIMITS, Limits

_T = TypeVar("_T")
_DIGITS = re.compile(r"[0-9a-f]{64}")
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path, as a text",
}


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Where a node's examples are: one of the first three.

    Attributes:
        tfrecord: A TFRecord file, or a folder of files NAME.tfrecord, which are read in the order
            of their names.
        store: A client store, of which the node is the client `client`.
        load: A Python file with a function `load(config)` that returns serialised
            `tf.train.Example` messages. It runs outside of the sandbox: it is the operator's own.
        client: The client's id in the store.
        split: The store's split.
        config: What `load` is called with.
    """

    tfrecord: Optional[Path] = None
    store: Optional[Path] = None
    load: Optional[Path] = None
    client: Optional[str] = None
    split: str = TRAIN
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, where: str) -> None:
        """Checks that it is one place."""
        places = [field.name for field in dataclasses.fields(self)[:3]]
        given = [name for name in places if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError(
                f"{where}: expected one of {', '.join(places)}, found {', '.join(given) or 'none'}"
            )
        if self.store is not None and self.client is None:
            raise PlanError(f"{where}: store: expected the client that this node is, found none")
        for name in ("client", "split"):
            if self.store is None and getattr(self, name) != getattr(DataSettings, name):
                raise PlanError(f"{where}: {name} has no effect without store")
        if self.config and self.load is None:
            raise PlanError(f"{where}: config has no effect without load")


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """An export next to the one of the training.

    Attributes:
        export: Its folder.
        manifest_sha256: SHA-256 of its manifest, as 64 hexadecimal digits: no other export is run.
        every: On a server: number of training rounds between its rounds.
    """

    export: Path
    manifest_sha256: str
    every: int = 1

    def check(self, where: str) -> None:
        """Checks the numbers."""
        check_digest(self.manifest_sha256, f"{where}: manifest_sha256")
        _at_least(self.every, 1, f"{where}: every")


@dataclasses.dataclass(frozen=True)
class NodeSettings:
    """A node; it is one client.

    Attributes:
        export: Folder of the export, which its operator has put there.
        manifest_sha256: SHA-256 of its manifest, as 64 hexadecimal digits: no other is played.
        identity: File of the secret of its identity; see `read_identity`.
        roster: File of all nodes' identities; see `read_roster`.
        state: Folder of what it has answered, for this node alone.
        data: Where its examples are.
        evaluation: An export of an evaluation that it also runs.
        min_clients: The fewest clients whose sum it lets be opened; the server has the same.
        checks_survivors: Whether nodes sign whose values are summed; the server has the same.
        domain: Its domain.
        tells_domain: Whether it tells the server its domain.
        limits: Memory and time of playing, and examples.
        trust: Play without a sandbox: only a plan that the operator trusts.
        privacy: The noise that it demands of plans, and how often it takes part.
    """

    export: Path
    manifest_sha256: str
    identity: Path
    roster: Path
    state: Path
    data: DataSettings
    evaluation: Optional[PlanSettings] = None
    min_clients: int = FEWEST_CLIENTS
    checks_survivors: bool = True
    domain: str = ""
    tells_domain: bool = False
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False
    privacy: PrivacyRequirements = PrivacyRequirements()

    def check(self, where: str) -> None:
        """Checks what is not of one setting's type."""
        check_digest(self.manifest_sha256, f"{where}: manifest_sha256")
        _at_least(self.min_clients, FEWEST_CLIENTS, f"{where}: min_clients")
        if self.tells_domain and not self.domain:
            raise PlanError(f"{where}: tells_domain: expected a domain to tell, found none")


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """How many seconds the server waits for those who have not answered.

    Attributes:
        nodes: Until there are enough nodes for a round.
        hello: For versions, plan and identity.
        keys: For keys of secure sums.
        shares: For shares of secrets.
        work: For a client's values, which it has to compute.
        vote: For signatures of whose values are summed.
        opening: For what opens the sum.
        patience: Once enough have answered, the others have so many times as long as the last of
            them took, and 10 seconds at least; all of the time above if None.
    """

    nodes: float = 600.0
    hello: float = 60.0
    keys: float = 60.0
    shares: float = 60.0
    work: float = 600.0
    vote: float = 60.0
    opening: float = 60.0
    patience: Optional[float] = None

    def check(self, where: str) -> None:
        """Checks that each is a time."""
        if self.patience is not None and not self.patience >= 1:
            raise PlanError(f"{where}: patience: expected at least 1, found {self.patience}")
        for field in dataclasses.fields(self):
            found = getattr(self, field.name)
            if found is not None and not found > 0:
                raise PlanError(f"{where}: {field.name}: expected seconds above 0, found {found}")


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """The server of a fleet.

    Attributes:
        export: Folder of the export.
        roster: File of all nodes' identities; see `read_roster`.
        state: Folder of the server's state and of its rounds; the state that it begins with is the
            export's.
        evaluation: An export of an evaluation, and how often it runs.
        cohort_size: How many nodes are drawn for a round; all that are there if None. With
            `sampling` "poisson", how many there are on average.
        sampling: "uniform": so many, without replacement. "poisson": each node that is there by
            itself. "by_domain": as many of each domain that nodes tell, as far as there are.
        seed: Seed of cohort sampling; None uses the system's randomness.
        min_clients: The fewest clients of a round; of secure sums the fewest whose sum is opened.
            Nodes have the same.
        checks_survivors: Whether nodes sign whose values are summed; nodes have the same.
        attempts: How often a round is begun, each time with new keys, until the server gives up.
        rest_rounds: Number of rounds for which an unresponsive node is excluded.
        timeouts: How long the server waits.
        limits: Memory and time of playing.
        trust: Play without a sandbox.
        keeps_sums: Whether the folder for state keeps the sums of each round, for later checks.
        target_epsilon: Maximum epsilon of any client, by the server's account; None for the limits
            of the plan's account alone.
    """

    export: Path
    roster: Path
    state: Path
    evaluation: Optional[PlanSettings] = None
    cohort_size: Optional[int] = None
    sampling: str = "uniform"
    seed: Optional[int] = None
    min_clients: int = FEWEST_CLIENTS
    checks_survivors: bool = True
    attempts: int = 5
    rest_rounds: int = 2
    timeouts: Timeouts = Timeouts()
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False
    keeps_sums: bool = False
    target_epsilon: Optional[float] = None

    def check(self, where: str) -> None:
        """Checks what is not of one setting's type."""
        if self.target_epsilon is not None and not self.target_epsilon > 0:
            raise PlanError(
                f"{where}: target_epsilon: expected one above 0, found {self.target_epsilon}"
            )
        _at_least(self.min_clients, 1, f"{where}: min_clients")
        _at_least(self.attempts, 1, f"{where}: attempts")
        _at_least(self.rest_rounds, 0, f"{where}: rest_rounds")
        if self.sampling not in SAMPLINGS:
            known = ", ".join(SAMPLINGS)
            raise PlanError(f"{where}: sampling: expected one of {known}, found {self.sampling!r}")
        if self.cohort_size is not None:
            _at_least(self.cohort_size, self.min_clients, f"{where}: cohort_size")
        elif self.sampling == "poisson":
            raise PlanError(f"{where}: sampling: expected a cohort_size with poisson, found none")


def read_node_settings(path: Path) -> NodeSettings:
    """Reads `node.toml`."""
    return _read(NodeSettings, path)


def read_server_settings(path: Path) -> ServerSettings:
    """Reads `server.toml`."""
    return _read(ServerSettings, path)


def manifest_sha256(export: Path) -> str:
    """Returns what pins an export: SHA-256 of its manifest, as hexadecimal digits."""
    try:
        return hashlib.sha256((export / exports.NAME).read_bytes()).hexdigest()
    except OSError as e:
        raise PlanError(
            f"{export}: expected the folder of an export, cannot read {exports.NAME} ({e.strerror})"
        ) from e


def read_identity(path: Path) -> bytes:
    """Reads the Ed25519 secret of an identity: a file with 64 hexadecimal digits, for its owner."""
    expected = f"{path}: expected the secret of an identity, 64 hexadecimal digits"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(2 * KEY_BYTES + 2).decode(errors="replace").strip()
    except OSError as e:
        raise PlanError(f"{expected}, cannot read it ({e.strerror})") from e
    if stat.S_IMODE(mode) & 0o077:
        raise PlanError(
            f"{path}: expected a file that its owner alone may read, found mode "
            f"{stat.S_IMODE(mode):o}: chmod 600"
        )
    if not _DIGITS.fullmatch(text):
        raise PlanError(f"{expected}, found another text")
    return bytes.fromhex(text)


def read_roster(path: Path) -> Identities:
    """Reads the identities of a fleet: a TOML file of lines NAME = "64 hexadecimal digits"."""
    names: dict[bytes, str] = {}
    for name, key in read_toml(path).items():
        check_digest(key, f"{path}: {name}")
        public = bytes.fromhex(key)
        if public in names:
            raise PlanError(f"{path}: {name}: expected a key of its own, found {names[public]}'s")
        names[public] = name
    if not names:
        raise PlanError(f"{path}: expected identities, found none")
    return Identities(names)


def check_digest(value: Any, where: str) -> None:
    """Checks that a value is 32 bytes as hexadecimal digits."""
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        raise PlanError(f"{where}: expected 64 hexadecimal digits, found {value!r}")


def _at_least(found: int, fewest: int, where: str) -> None:
    if found < fewest:
        raise PlanError(f"{where}: expected at least {fewest}, found {found}")


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file."""
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:
        raise PlanError(f"{path}: expected Python 3.11 or later, which reads TOML files") from None
    try:
        return dict(tomllib.loads(path.read_text("utf-8")))
    except OSError as e:
        raise PlanError(f"{path}: expected a TOML file, cannot read it ({e.strerror})") from e
    except ValueError as e:
        raise PlanError(f"{path}: expected a TOML file, cannot read it ({e})") from e


def _read(kind: type[_T], path: Path) -> _T:
    return _made(kind, read_toml(path), path.parent, str(path))


def _made(kind: type[_T], table: Mapping[str, Any], folder: Path, where: str) -> _T:
    """Returns settings of a dataclass from a table of a file, after a check of each."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in table:
        if name not in fields:
            raise PlanError(f"{where}: expected some of {', '.join(fields)}, found {name!r}")
    for name, field in fields.items():
        required = dataclasses.MISSING in (field.default,) and (
            field.default_factory is dataclasses.MISSING
        )
        if required and name not in table:
            raise PlanError(f"{where}: expected {name}, found none")
    values = {
        name: _value(hints[name], value, folder, f"{where}: {name}")
        for name, value in table.items()
    }
    made = kind(**values)
    # Limits are checked where they are used, under the names of flags.
    if not isinstance(made, Limits):
        made.check(where)  # type: ignore[attr-defined]
    return made


def _value(hint: Any, value: Any, folder: Path, where: str) -> Any:
    if typing.get_origin(hint) is Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if dataclasses.is_dataclass(hint) or typing.get_origin(hint) is not None:
        if not isinstance(value, dict):
            raise PlanError(f"{where}: expected a table, found {value!r}")
        return _made(hint, value, folder, where) if isinstance(hint, type) else value
    wanted = str if hint is Path else hint
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise PlanError(f"{where}: expected {_WORDS[hint]}, found {value!r}")
    return folder / value if hint is Path else value
