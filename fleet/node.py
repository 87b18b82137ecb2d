"""A node: one client of a fleet, which answers a server's messages."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import runpy
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import numpy as np

from fleet.errors import ERRORS
from fleet.node_noise.account import NodeAccount
from fleet.node_noise.noise import parse_node_noise
from fleet.node_noise.skellam import Draw, skellam
from fleet.player import Examples, Player, sum_plan
from fleet.secure_aggregation import messages, primitives
from fleet.secure_aggregation.client import Client
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SumPlan
from fleet.settings import DataSettings, NodeSettings, PlanSettings, read_identity, read_roster
from fleet.wire import Kind, Message, checked_tag, decoded, identity_text, refused, tagged
from plan_runner.client_store import ClientStore
from plan_runner.errors import PlanError, reason
from plan_runner.export import SUFFIX, check_count, read_manifest

_SERVER = "message of the server"
_ACCOUNT = "noised_sums.jsonl"
_LOG = logging.getLogger(__name__)
_FAILED = "the client's work failed on this node, whose log says why"


class Node:
    """One client of a fleet, which runs only the exports that its operator has pinned.

    The state folder contains all answers, so that a node never computes two answers for one stage
    of a round, even after a restart.

    Args:
        draw: Samples the noise, for plans whose nodes add noise.

    Raises:
        PlanError: An export differs from the pinned one, or the examples lack its features.
    """

    def __init__(self, settings: NodeSettings, draw: Draw = skellam) -> None:
        self._settings = settings
        self._secret = read_identity(settings.identity)
        self._identity = primitives.identity_public(self._secret)
        roster = read_roster(settings.roster)
        if self._identity not in roster:
            raise PlanError(
                f"{settings.roster}: expected the identity of {settings.identity}, "
                f"{self._identity.hex()}, found none"
            )
        self._lock = threading.Lock()
        self._answers: dict[Kind, Callable[[Message, _Plan], Message]] = {
            Kind.HELLO: self._welcome,
            Kind.STAGE: lambda asked, plan: Message(Kind.STAGED, {}, (plan.staged(asked),)),
            Kind.WORK: lambda asked, plan: Message(Kind.WORKED, {}, (plan.worked(asked),)),
        }
        plans = [PlanSettings(settings.export, settings.manifest_sha256)]
        if settings.evaluation is not None:
            plans.append(settings.evaluation)
        with contextlib.ExitStack() as stack:
            self._plans = {}
            for plan in plans:
                loaded = _Plan(settings, plan, self._secret, roster, draw)
                stack.callback(loaded.close)
                loaded.check()
                self._plans[bytes.fromhex(plan.manifest_sha256)] = loaded
            self._stack = stack.pop_all()

    def answer(self, request: bytes) -> bytes:
        """Returns the answer to a server's message; its kind is REFUSED after an error."""
        tag = None
        try:
            with self._lock:
                message = decoded(request, _SERVER)
                tag = checked_tag(message)
                if message.kind not in self._answers:
                    raise PlanError(f"{_SERVER}: expected a request, found {message.kind.name}")
                answer = self._answers[message.kind](message, self._plan(message))
        except ERRORS as e:
            _LOG.warning("refused: %s", e)
            answer = refused(str(e))
        # A server's message must not end the node.
        except Exception as e:
            _LOG.exception("a request failed")
            answer = refused(f"{type(e).__name__} on this node, whose log says more")
        return tagged(answer, tag)

    def close(self) -> None:
        """Ends the sandboxed processes."""
        self._stack.close()

    def _plan(self, message: Message) -> _Plan:
        asked = message.digest("manifest")
        if asked not in self._plans:
            pinned = " or ".join(plan.hex() for plan in self._plans)
            raise PlanError(
                f"expected the manifest {pinned}, which the operator of this node has pinned, the "
                f"server has {asked.hex()}: both need the same export"
            )
        return self._plans[asked]

    def _welcome(self, message: Message, plan: _Plan) -> Message:
        plan.check_server(message)
        text = identity_text(message.digest("challenge"), message.digest("manifest"))
        return Message(
            Kind.WELCOME,
            {
                "identity": self._identity.hex(),
                "signature": primitives.sign(self._secret, text).hex(),
            },
        )


class _Plan:
    """A pinned export, which answers the server's requests."""

    def __init__(
        self,
        settings: NodeSettings,
        plan: PlanSettings,
        secret: bytes,
        roster: Identities,
        draw: Draw,
    ) -> None:
        self._settings = settings
        self._name = roster.name(primitives.identity_public(secret))
        self._source = _source(settings.data, settings.limits.max_records)
        pinned = plan.manifest_sha256
        reads = [] if settings.data.tfrecord is None else _readable(settings.data.tfrecord)
        self._player = Player(plan.export, pinned, settings.limits, settings.trust, reads)
        self._folder = SessionFolder(settings.state / pinned[:16])
        self._secret, self._roster = secret, roster
        self._sums: SumPlan | None = None
        self._client: Client | None = None
        self._pinned = pinned
        self._draw = draw
        self._noise = parse_node_noise(read_manifest(plan.export, pinned))
        # Keep one account for all plans: a new plan does not undo earlier disclosures.
        self._account = settings.state / _ACCOUNT

    def check(self) -> None:
        """Loads the plan, and checks that it can read this node's examples."""
        settings, about = self._settings, self._player.about
        settings.privacy.check_noise(self._noise)
        if about.secure:
            self._sums = sum_plan(self._pinned, about, settings.min_clients)
            self._client = Client(self._sums, self._secret, self._roster, self._folder)
            if self._noise is not None:
                self._noise.check_plan(self._sums.tensors, self._sums.min_clients)
        else:
            _LOG.warning(
                "%s: sums are plain, the server sees every update of this node", self._pinned[:16]
            )
        self._player.check_examples(self._name, self._source())

    def check_server(self, message: Message) -> None:
        """Checks that the server's secure-aggregation settings equal this node's."""
        digest = "" if self._sums is None else self._sums.digest().hex()
        if message.get("sums", str) == digest:
            return
        expected = (self._sums or self._settings).min_clients
        actual = message.get("min_clients", int)
        if actual != expected:
            raise PlanError(
                f"min_clients: expected {expected} as this node has, the server has {actual}: both "
                "need the same"
            )
        raise PlanError("secure sums: expected this node's settings, the server has different ones")

    def staged(self, message: Message) -> bytes:
        """Returns the answer to a secure-aggregation message."""
        if self._client is None or self._sums is None:
            raise PlanError("expected plain sums for this plan, found secure aggregation")
        sums, with_values = self._sums, len(message.parts) == 2
        request = message.part(0, 2 if with_values else 1)

        def values() -> Mapping[str, np.ndarray]:
            if not with_values:
                raise PlanError(f"{_SERVER}: expected a checkpoint with DELIVERY, found none")
            with _errors_in_log_only():
                plain = self._player.values(self._name, message.parts[1], self._source())
                sums.check_values(plain, "values of this client")
                if self._noise is None:
                    return plain
                noised = self._noise.add_noise(plain, self._draw)
            NodeAccount(self._account, self._noise, self._settings.privacy).charge(session)
            return noised

        kind, session = messages.read_header(request, sums, _SERVER)
        answer = self._client.answer(request, values)
        if kind == messages.Type.BEGIN:
            # A server that begins a session has abandoned its earlier sessions.
            for other in self._client.unfinished():
                if other != session:
                    self._client.give_up(other)
        return answer

    def worked(self, message: Message) -> bytes:
        """Returns the client's update without masks; a repeated request gets the same bytes."""
        if self._client is not None:
            raise PlanError("expected secure aggregation for this plan, found plain sums")
        checkpoint, round_id = message.part(0, 1), message.digest("id")
        asked = hashlib.sha256(checkpoint).digest()
        with self._folder.locked():
            stored = self._folder.read(round_id)
            if stored is not None:
                if stored[0]["request"] != asked or not stored[1]:
                    raise PlanError(
                        f"round {round_id.hex()[:16]}: expected a new round, found one that this "
                        "node has answered"
                    )
                return stored[1]
            with _errors_in_log_only():
                update = self._player.update(self._name, checkpoint, self._source())
            # Delete earlier rounds' updates, but remember that they were answered.
            for other in self._folder.sessions():
                earlier = self._folder.read(other)
                if earlier is not None and earlier[1]:
                    self._folder.write(other, earlier[0], b"")
            self._folder.write(round_id, {"request": asked}, update)
        return update

    def close(self) -> None:
        self._player.close()


@contextlib.contextmanager
def _errors_in_log_only() -> Iterator[None]:
    """Writes error messages to this node's log only, as they may reveal examples."""
    try:
        yield
    except ERRORS as e:
        _LOG.error("%s", e)
        raise PlanError(_FAILED) from e


def _source(data: DataSettings, max_records: int) -> Callable[[], Examples]:
    """Returns a function that reads the current examples."""
    if data.store is not None:
        return functools.partial(
            _read_store, data.store, data.split, data.client or "", max_records
        )
    if data.tfrecord is not None:
        path = data.tfrecord
        return lambda: Examples(paths=_files(path))
    assert data.load is not None, "checked with the settings"
    load, where = _load_function(data.load), f"{data.load}: load"

    def records() -> Examples:
        try:
            loaded = list(load(dict(data.config)))
        # The operator's function may raise anything.
        except Exception as e:
            raise PlanError(f"{where}: {type(e).__name__}: {reason(e)}") from e
        for record in loaded:
            if not isinstance(record, bytes):
                raise PlanError(
                    f"{where}: expected serialised tf.train.Example messages, found "
                    f"{type(record).__name__}"
                )
        return Examples(records=loaded)

    return records


def _read_store(path: Path, split: str, client: str, max_records: int) -> Examples:
    with contextlib.closing(ClientStore(path)) as store:
        counts = store.client_counts(split)
        check_count(counts.get(client, 0), max_records, f"{path}: client {client}")
        return Examples(records=store.examples(split, client, counts), are_stored=True)


def _load_function(path: Path) -> Callable[[dict[str, Any]], Any]:
    try:
        load = runpy.run_path(str(path)).get("load")
    # The operator's file may raise anything.
    except Exception as e:
        raise PlanError(f"{path}: {type(e).__name__}: {reason(e)}") from e
    if not callable(load):
        raise PlanError(f"{path}: expected a function load, found none")
    return load


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob(f"*{SUFFIX}"))
    if not files:
        raise PlanError(f"{path}: expected files NAME{SUFFIX}, found none")
    return files


def _readable(path: Path) -> list[Path]:
    """Returns the paths that the sandboxed process may read, including the targets of links."""
    return [path, *(file.resolve() for file in _files(path))]
