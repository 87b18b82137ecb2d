"""The server of a fleet: plays rounds with nodes, and keeps what they lead to."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from plan_runner import export as exports
from plan_runner.errors import PlanError, counted
from plan_runner.export import EVALUATION, TRAINING, Limits, open_export
from plan_runner.fleet.members import SAMPLINGS, Channel, Draw, Exchange, Members, PlanHello
from plan_runner.fleet.player import Player, secure_sums, sum_plan
from plan_runner.fleet.settings import ServerSettings, manifest_sha256, read_roster
from plan_runner.fleet.state_folder import Begun, StateFolder, Track
from plan_runner.fleet.wire import Kind, Message
from plan_runner.private_sums.account import ServerAccount
from plan_runner.private_sums.noise import check_sum_plan, noise_of_export
from plan_runner.secure_aggregation.messages import SESSION_BYTES, Type
from plan_runner.secure_aggregation.server import Server
from plan_runner.secure_aggregation.sessions import SessionFolder
from plan_runner.secure_aggregation.sum_plan import Identities, ProtocolError, SumPlan

_ACCOUNT = "account.jsonl"
# So many are named of those that are not there.
_MOST_NAMES = 5
# By the answers that are collected: what the stage is called, which is the name of its timeout.
STAGES = {
    Type.KEYS: "keys",
    Type.SHARES: "shares",
    Type.MASKED: "work",
    Type.VOTE: "vote",
    Type.OPENING: "opening",
}


class Listener(Protocol):
    """Is told what happens."""

    def line(self, text: str) -> None:
        """Something for people."""

    def exchange(self, kind: str, round_number: int, exchange: Exchange) -> None:
        """Requests were answered, or not."""

    def step(self, done: str) -> None:
        """Something is on the disk; whatever stops the server now, it goes on from here."""


class FleetServer:
    """Plays rounds of training, and of evaluation between them.

    All that is needed to go on is in the folder for state: another process with the same settings
    goes on where this one was ended, in the middle of a round as well.

    Args:
        player: (export, SHA-256 of its manifest, limits, trust) -> what plays it.

    Raises:
        PlanError: If an export, the roster or the folder is not as it has to be.
    """

    def __init__(
        self,
        settings: ServerSettings,
        channel: Channel,
        listener: Listener,
        player: Callable[[Path, str, Limits, bool], Player] = Player,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._identities = read_roster(settings.roster)
        exports_of = {TRAINING: settings.export}
        if settings.evaluation is not None:
            exports_of[EVALUATION] = settings.evaluation.export
        with contextlib.ExitStack() as stack:
            self._folder = StateFolder(settings.state, listener.step, settings.keeps_sums)
            stack.callback(self._folder.close)
            self._plans: dict[str, _Plan] = {}
            for kind, export in exports_of.items():
                pinned = manifest_sha256(export)
                played = player(export, pinned, settings.limits, settings.trust)
                stack.callback(played.close)
                self._plans[kind] = _Plan(
                    *(kind, export, pinned, played, settings),
                    *(self._identities, self._folder, channel, listener.line),
                )
            self._stack = stack.pop_all()

    @property
    def completed(self) -> int:
        """Number of the last round of training that is done."""
        return self._plans[TRAINING].track.completed

    def run(self, rounds: int) -> None:
        """Plays until so many rounds of training are done, those of earlier processes included."""
        training, evaluation = self._plans[TRAINING], self._plans.get(EVALUATION)
        self._evaluate(evaluation)
        while training.track.completed < rounds:
            self._play(training, training.track.completed + 1, training.track.state)
            self._evaluate(evaluation)

    def close(self) -> None:
        """Ends the processes that play, and lets another server have the folder."""
        self._stack.close()

    def _evaluate(self, evaluation: _Plan | None) -> None:
        """Plays the round of evaluation that is due, if there is one."""
        if evaluation is None or self._settings.evaluation is None:
            return
        done, track = self.completed, evaluation.track
        if done and done % self._settings.evaluation.every == 0 and track.completed < done:
            trained = self._plans[TRAINING].track.state
            self._play(evaluation, done, evaluation.player.evaluated(track.state, trained))

    def _play(self, plan: _Plan, number: int, state: bytes) -> None:
        """Plays a round to its end, from wherever it is."""
        down, attempts = plan.player.begin(state), 0
        while (opened := plan.track.opened(number)) is None:
            begun = plan.track.pending(number)
            if begun is None:
                attempts += 1
                cohort = self._cohort(plan, number)
                if plan.account is not None:
                    plan.account.check(cohort)
                names = tuple(self._identities.name(identity) for identity in cohort)
                begun = Begun(secrets.token_bytes(SESSION_BYTES), names)
                plan.track.begin(number, begun)
            round_ = _Round(plan, number, down, begun, self._settings, self._listener)
            try:
                sums, facts = round_.collect()
            except ProtocolError as e:
                self._listener.line(f"{plan.track.kind} {number}: given up: {e}")
                if e.client is not None:
                    plan.resting[e.client] = number + self._settings.rest_rounds
                plan.track.give_up(number, str(e), round_.asked_to_open)
                if attempts >= self._settings.attempts:
                    raise PlanError(
                        f"{plan.track.kind} {number}: given up {counted(attempts, 'time')}, the "
                        f"last time: {e}"
                    ) from e
            else:
                plan.track.open(number, sums, **facts)
        event, sums = opened
        ended = plan.player.end(state, sums, number, event["clients"], len(down), event["bytes_up"])
        plan.track.finish(number, ended.state, _row(ended.row))
        if plan.folder is not None:
            plan.folder.erase(bytes.fromhex(event["session"]))
        self._listener.line(f"{plan.track.kind}: {ended.line}")
        if plan.account is not None:
            self._listener.line(f"{plan.track.kind}: {plan.account.text}")

    def _cohort(self, plan: _Plan, number: int) -> list[bytes]:
        """Waits for enough nodes and draws those of a round, in the order of their names."""
        settings, fewest = self._settings, plan.fewest
        wanted = settings.cohort_size or fewest
        timeout = settings.timeouts.nodes

        def enough(count: int) -> Callable[[], bool]:
            return lambda: len(plan.members.reachable()) >= count

        # For all that are wanted it waits once: some may be gone for good.
        if not plan.met and wanted > fewest:
            plan.members.greet(enough(wanted), timeout)
        plan.met = True
        plan.members.greet(enough(fewest), timeout)
        there = plan.members.reachable()
        absent = sorted(set(self._identities.names) - set(there), key=self._identities.name)
        names = f", without {_some(map(self._identities.name, absent))}" if absent else ""
        if len(there) < fewest:
            raise PlanError(
                f"{plan.track.kind} {number}: expected at least {counted(fewest, 'node')} within "
                f"{timeout:g} s, found {len(there)}{names}"
            )
        if absent != plan.absent:
            self._listener.line(
                f"{plan.track.kind}: round {number}: {len(there)} of "
                f"{len(self._identities.names)} nodes are there{names}"
            )
        plan.absent = absent
        rested = [i for i in there if plan.resting.get(i, 0) < number]
        candidates = rested if len(rested) >= fewest else there
        attempt = plan.track.attempts(number)
        generator: random.Random = random.SystemRandom()
        if settings.seed is not None:
            generator = random.Random(f"{settings.seed} {plan.track.kind} {number} {attempt}")
        draw = Draw(
            candidates,
            fewest,
            plan.most,
            settings.cohort_size,
            len(self._identities.names),
            plan.members.domains,
        )
        return sorted(SAMPLINGS[settings.sampling](draw, generator), key=self._identities.name)


class _Plan:
    """An export that the server plays, its rounds, and the nodes that play it as well."""

    def __init__(
        self,
        kind: str,
        export: Path,
        pinned: str,
        player: Player,
        settings: ServerSettings,
        identities: Identities,
        folder: StateFolder,
        channel: Channel,
        tell: Callable[[str], None],
    ) -> None:
        about = player.about
        if about.kind != kind:
            raise PlanError(f"{export}: expected an export of {kind}, found {about.kind}")
        self.player = player
        self.identities = identities
        # Until which round a node is left out.
        self.resting: dict[bytes, int] = {}
        # Whether there have been as many nodes as are wanted.
        self.met = False
        # Who of the roster was not there when the last cohort was drawn.
        self.absent: list[bytes] = []
        self.sums: SumPlan | None = None
        self.folder: SessionFolder | None = None
        # What has been told of nodes that add noise.
        self.account: ServerAccount | None = None
        initial = open_export(export, settings.limits, pinned).read(exports.SERVER_STATE)
        self.track = Track(folder, kind, pinned, initial)
        self.fewest = max(settings.min_clients, about.min_clients)
        self.most = len(identities.names)
        if about.max_clients is not None:
            self.most = min(self.most, about.max_clients)
        if self.fewest > self.most:
            raise PlanError(
                f"min_clients: expected at most {self.most}, as the roster or the plan has room "
                f"for, found {self.fewest}"
            )
        head: dict[str, Any] = {"sums": ""}
        if about.secure:
            self.sums = sum_plan(pinned, about, settings.min_clients, settings.checks_survivors)
            self.folder = SessionFolder(folder.folder / f"{kind}_sessions")
            noise = noise_of_export(export, pinned)
            check_sum_plan(noise, self.sums)
            if noise is not None:
                path = folder.folder / f"{kind}_{_ACCOUNT}"
                self.account = ServerAccount(path, noise, settings.target_epsilon)
            head = {
                "sums": self.sums.digest().hex(),
                "min_clients": self.sums.min_clients,
                "checks_survivors": settings.checks_survivors,
            }
        self.manifest = bytes.fromhex(pinned)
        hello = PlanHello(self.manifest, head)
        self.members = Members(channel, identities, hello, settings.timeouts.hello, tell)


class _Round:
    """One session of a round: asks its cohort for what is summed."""

    def __init__(
        self,
        plan: _Plan,
        number: int,
        down: bytes,
        begun: Begun,
        settings: ServerSettings,
        listener: Listener,
    ) -> None:
        self._plan, self._number, self._down, self._begun = plan, number, down, begun
        self._settings, self._listener = settings, listener
        keys = {name: key for key, name in plan.identities.names.items()}
        gone = [name for name in begun.cohort if name not in keys]
        if gone:
            raise PlanError(f"roster: expected {gone[0]}, with whom a round has begun, found none")
        self._cohort = [keys[name] for name in begun.cohort]
        # Whether nodes were asked to open the sum.
        self.asked_to_open = False
        self._bytes_up: list[int] = []

    def collect(self) -> tuple[bytes, dict[str, Any]]:
        """Returns the sums, as `Player.end` takes them, and what the journal has of them.

        Raises:
            ProtocolError: If too few nodes have answered.
        """
        collect = self._plain if self._plan.sums is None else self._secure
        clients, sums = collect()
        names = [self._plan.identities.name(identity) for identity in clients]
        facts = {
            "session": self._begun.session.hex(),
            "names": names,
            "clients": len(names),
            "bytes_up": float(np.mean(self._bytes_up)) if self._bytes_up else 0.0,
        }
        return sums, facts

    def _plain(self) -> tuple[Sequence[bytes], bytes]:
        updates: dict[bytes, bytes] = {}
        plan, head = self._plan, {"id": self._begun.session.hex(), **self._head()}
        request = Message(Kind.WORK, head, (self._down,))

        def take(identity: bytes, message: Message) -> None:
            update = _part(message, Kind.WORKED)
            plan.player.check_update(plan.identities.name(identity), update)
            updates[identity] = update
            self._bytes_up.append(len(update))

        self._exchange("work", dict.fromkeys(self._cohort, request), take, plan.fewest)
        if len(updates) < plan.fewest:
            raise ProtocolError(
                f"expected updates of at least {counted(plan.fewest, 'node')}, found "
                f"{len(updates)} of {len(self._cohort)}"
            )
        # Floats are summed in an order that does not depend on who was first.
        clients = [identity for identity in self._cohort if identity in updates]
        named = [(plan.identities.name(identity), updates[identity]) for identity in clients]
        return clients, plan.player.plain_sums(named)

    def _secure(self) -> tuple[Sequence[bytes], bytes]:
        session = self._session()
        while session.stage is not None:
            stage = session.stage
            if stage == Type.OPENING and self._plan.account is not None:
                # On the disk before anybody opens anything, whatever becomes of the round.
                self._plan.account.charge(self._begun.session, session.survivors)
            self.asked_to_open |= stage == Type.OPENING
            for _ in range(self._settings.attempts if stage == Type.OPENING else 1):
                self._ask(session, stage)
                if (
                    not session.missing
                    or len(session.asked) - len(session.missing) >= session.fewest
                ):
                    break
            session.close()
            self._listener.step(f"{self._plan.track.kind} {self._number}: {stage.name}")
        survivors = sorted(session.survivors, key=self._plan.identities.name)
        return survivors, secure_sums(session.result())

    def _session(self) -> Server:
        plan = self._plan
        assert plan.sums is not None and plan.folder is not None, "secure sums"
        with plan.folder.locked():
            is_new = plan.folder.read(self._begun.session) is None
        arguments = (plan.sums, plan.identities, plan.folder)
        if is_new:
            return Server.begin(*arguments, self._cohort, self._begun.session)
        return Server(*arguments, self._begun.session)

    def _ask(self, session: Server, stage: Type) -> None:
        # A client's work begins with the checkpoint.
        beside = (self._down,) if stage == Type.MASKED else ()
        head, missing = self._head(), set(session.missing)
        requests = {
            identity: Message(Kind.STAGE, head, (request, *beside))
            for identity, request in session.requests().items()
            if identity in missing
        }

        def take(identity: bytes, message: Message) -> None:
            answer = _part(message, Kind.STAGED)
            if session.receive(answer) != identity:
                raise PlanError("expected an answer of its own, found another node's")
            if stage == Type.MASKED:
                self._bytes_up.append(len(answer))

        enough = session.fewest - (len(session.asked) - len(missing))
        self._exchange(STAGES[stage], requests, take, enough)

    def _exchange(
        self,
        stage: str,
        requests: dict[bytes, Message],
        take: Callable[[bytes, Message], None],
        enough: int,
    ) -> None:
        timeouts, kind = self._settings.timeouts, self._plan.track.kind
        exchange, missing = self._plan.members.exchange(
            stage, requests, getattr(timeouts, stage), take, enough, timeouts.patience
        )
        for identity in missing:
            self._plan.resting[identity] = self._number + self._settings.rest_rounds
        self._listener.exchange(kind, self._number, exchange)

    def _head(self) -> dict[str, Any]:
        return {"manifest": self._plan.manifest.hex(), "round": self._number}


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def _part(message: Message, kind: Kind) -> bytes:
    if message.kind != kind:
        raise PlanError(f"expected {kind.name}, found {message.kind.name}")
    return message.part(0, 1)


def _row(text: str) -> dict[str, Any]:
    """Reads a line of metrics, which the process that plays has written."""
    try:
        row = json.loads(text)
        metrics = row["metrics"]
    except (KeyError, RecursionError, TypeError, ValueError):
        metrics = None
    if not isinstance(metrics, dict):
        raise PlanError("metrics: expected those of a round, found others")
    return dict(row)
