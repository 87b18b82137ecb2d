"""The server of a fleet, which runs rounds with nodes and stores the results."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fleet.cohorts import Cohorts
from fleet.members import Channel, Exchange, Members
from fleet.node_noise.account import ReleasedRounds, UnmaskedSums
from fleet.node_noise.noise import parse_node_noise
from fleet.node_noise.server_noise import parse_server_noise
from fleet.player import Player, secure_sums, sum_plan
from fleet.secure_aggregation.errors import ProtocolError
from fleet.secure_aggregation.messages import SESSION_BYTES, Type
from fleet.secure_aggregation.server import Server
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SumPlan
from fleet.settings import ServerSettings, manifest_sha256, read_roster
from fleet.state_folder import DRAWN, GIVEN_UP, RoundJournal, StartedRound, StateFolder
from fleet.wire import Kind, Message
from plan_runner import export as exports
from plan_runner.errors import PlanError, counted
from plan_runner.export import EVALUATION, TRAINING, Limits, open_export, read_manifest

_ACCOUNT = "account.jsonl"
# Names of a secure sum's exchanges, keyed by the type of the answers.
STAGES = {
    Type.KEYS: "keys",
    Type.SHARES: "shares",
    Type.MASKED: "work",
    Type.VOTE: "vote",
    Type.OPENING: "opening",
}


class Listener(Protocol):
    """Receives the progress of a server."""

    def line(self, text: str) -> None:
        """Receives a one-line message for the user."""

    def exchange(self, kind: str, round_number: int, exchange: Exchange) -> None:
        """Receives a completed exchange."""

    def step(self, done: str) -> None:
        """Receives the description of a completed disk write; may raise to stop the server."""


class FleetServer:
    """Runs training rounds, and evaluation rounds between them.

    Another process with the same settings can resume from the state folder, even within a round.
    Sums are only in memory: a resumed process asks the nodes again for the shares that unmask the
    sum.

    Args:
        player: Called with an export, the SHA-256 of its manifest, limits, and whether the operator
            trusts the export; returns the `Player` that executes the export.
        weaker_privacy: Whether rounds may violate the assumptions of the plan's epsilon. The server
            reports the epsilon of the actual rounds.

    Raises:
        PlanError: An export, the roster, the settings or the state folder is invalid, or the fleet
            cannot sample cohorts as planned.
    """

    def __init__(
        self,
        settings: ServerSettings,
        channel: Channel,
        listener: Listener,
        player: Callable[[Path, str, Limits, bool], Player] = Player,
        weaker_privacy: bool = False,
    ) -> None:
        identities = read_roster(settings.roster)
        exports_by_kind = {TRAINING: (settings.export, 1)}
        if settings.evaluation is not None:
            exports_by_kind[EVALUATION] = settings.evaluation.export, settings.evaluation.every
        with contextlib.ExitStack() as stack:
            folder = StateFolder(settings.state, listener.step)
            stack.callback(folder.close)
            self._plans: dict[str, _Plan] = {}
            for kind, (export, every) in exports_by_kind.items():
                pinned = manifest_sha256(export)
                executor = player(export, pinned, settings.limits, settings.trust)
                stack.callback(executor.close)
                self._plans[kind] = _Plan(
                    *(kind, export, pinned, every, executor, settings),
                    *(identities, folder, channel, listener, weaker_privacy),
                )
            self._stack = stack.pop_all()

    @property
    def completed(self) -> int:
        """Number of the last completed training round."""
        return self._plans[TRAINING].track.completed

    def run(self, rounds: int) -> None:
        """Runs until `rounds` training rounds are complete, including earlier processes' rounds.

        Raises:
            PlanError: The plan's epsilon covers fewer rounds, or a round fails.
        """
        training = self._plans[TRAINING]
        for plan in self._plans.values():
            plan.check_rounds(rounds // plan.every)
        self._evaluate()
        while self.completed < rounds:
            training.play(self.completed + 1, training.track.state)
            self._evaluate()

    def close(self) -> None:
        """Ends the sandboxed processes, and unlocks the state folder."""
        self._stack.close()

    def _evaluate(self) -> None:
        """Runs an evaluation round if one is due."""
        evaluation, done = self._plans.get(EVALUATION), self.completed
        if evaluation is None or not done or done % evaluation.every:
            return
        if evaluation.track.completed < done:
            trained, state = self._plans[TRAINING].track.state, evaluation.track.state
            evaluation.play(done, evaluation.player.evaluated(state, trained))


class _Plan:
    """An export that the server runs, with its rounds, nodes and privacy account.

    Attributes:
        every: Number of training rounds per round of this export.
    """

    def __init__(
        self,
        kind: str,
        export: Path,
        pinned: str,
        every: int,
        player: Player,
        settings: ServerSettings,
        identities: Identities,
        folder: StateFolder,
        channel: Channel,
        listener: Listener,
        weaker_privacy: bool,
    ) -> None:
        about = player.about
        if about.kind != kind:
            raise PlanError(f"{export}: expected an export of {kind}, found {about.kind}")
        self.every, self.player, self.identities = every, player, identities
        self.settings, self.listener, self._weaker_privacy = settings, listener, weaker_privacy
        self.kind, self.manifest = kind, bytes.fromhex(pinned)
        self.sums: SumPlan | None = None
        self.sessions: SessionFolder | None = None
        self.account: UnmaskedSums | ReleasedRounds | None = None
        manifest = read_manifest(export, pinned)
        self.noise = parse_server_noise(manifest)
        self.cohorts = Cohorts(
            export, about, self.noise, settings, identities, weaker_privacy, self._report
        )
        if self.noise is not None and settings.keeps_sums:
            raise PlanError(
                "keeps_sums: expected false if the server adds noise, as the sums contain none, "
                "found true"
            )
        initial = open_export(export, settings.limits, pinned).read(exports.SERVER_STATE)
        self.track = RoundJournal(folder, kind, pinned, initial)
        path, target = folder.folder / f"{kind}_{_ACCOUNT}", settings.target_epsilon
        if self.noise is not None:
            is_planned = self.cohorts.planned is not None
            self.account = ReleasedRounds(path, self.noise, target, is_planned)
        head: dict[str, Any] = {"sums": ""}
        if about.secure:
            self.sums = sum_plan(pinned, about, settings.min_clients)
            self.sessions = SessionFolder(folder.folder / f"{kind}_sessions")
            pending = self.track.pending()
            for session in self.sessions.sessions():
                # Erase the other sessions, which an earlier process has finished or abandoned.
                if pending is None or session != pending.session:
                    self.sessions.erase(session)
            nodes_noise = parse_node_noise(manifest)
            if nodes_noise is not None:
                nodes_noise.check_plan(self.sums.tensors, self.sums.min_clients)
                self.account = UnmaskedSums(path, nodes_noise, target, weaker_privacy)
            head = {"sums": self.sums.digest().hex(), "min_clients": self.sums.min_clients}
        timeout = settings.timeouts.stage
        self.members = Members(channel, identities, self.manifest, head, timeout, listener.line)

    def check_rounds(self, rounds: int) -> None:
        if self.noise is None or rounds <= self.noise.rounds:
            return
        words = (
            f"expected at most {counted(self.noise.rounds, 'round')} of {self.kind}, which the "
            f"plan's epsilon covers, found {rounds}"
        )
        if not self._weaker_privacy:
            raise PlanError(f"--rounds: {words}; --weaker_privacy allows it")
        self._report(f"weaker privacy than the plan's: {words}")

    def play(self, number: int, state: bytes) -> None:
        """Runs a round to its end, and resumes a started round from its current stage."""
        down, attempts = self.player.begin(state), 0
        while True:
            started = self.track.pending(number)
            if started is None:
                attempts += 1
                started = self._start(number)
            round_ = _Round(self, number, down, started)
            try:
                clients, sums, facts = round_.collect()
                break
            except ProtocolError as e:
                self.listener.line(f"{self.kind} {number}: given up: {e}")
                if e.client is not None:
                    self.cohorts.rest(e.client, number)
                asked = round_.asked_to_open
                self.track.write(GIVEN_UP, number, why=str(e), asked_to_open=asked)
                self.erase(started.session)
                if attempts >= self.settings.attempts:
                    raise PlanError(
                        f"{self.kind} {number}: given up {counted(attempts, 'time')}, the "
                        f"last time: {e}"
                    ) from e
        account = self.account
        if isinstance(account, ReleasedRounds):
            account.release(self.releases_until(number), clients)
        end = self.player.end(state, sums, number, facts["clients"], len(down), facts["bytes_up"])
        row = end.row
        if account is not None:
            # JSON has no infinity.
            epsilon = account.epsilon if math.isfinite(account.epsilon) else None
            row = {**row, "epsilon": epsilon, "delta": account.delta}
        if self.settings.keeps_sums:
            self.track.keep_sums(number, sums)
        self.track.finish(number, end.state, row, facts)
        self.erase(started.session)
        self._report(end.line)
        if account is not None:
            self._report(account.text)

    def _start(self, number: int) -> StartedRound:
        """Selects a cohort, and writes the start of a round to the journal."""
        cohort = self.cohorts.drawn(number, self._pool(number), self.members)
        if self.account is not None:
            after = self.account.check(cohort, self.releases_until(number))
            self._report(
                f"round {number}: epsilon at most {self.account.epsilon:.4g} "
                f"before and {after:.4g} after it, at delta {self.account.delta:.3g}"
            )
        names = tuple(self.identities.name(identity) for identity in cohort)
        started = StartedRound(secrets.token_bytes(SESSION_BYTES), names)
        self.track.begin(number, started)
        return started

    def _pool(self, number: int) -> set[bytes]:
        """Returns the nodes that may take part in a round.

        A secret cohort is sampled once per round, and is on the disk before the first request.
        Sampling again because nodes did not answer would change the sampling probabilities.
        """
        everyone, planned, account = set(self.identities.names), self.cohorts.planned, self.account
        if self.cohorts.draws_secretly:
            names = self.track.drawn(number)
            if names is None:
                names = list(map(self.identities.name, self.cohorts.planned_draw()))
                self.track.write(DRAWN, number, cohort=names)
            return {identity for identity in everyone if self.identities.name(identity) in names}
        if planned is None or not isinstance(account, ReleasedRounds):
            return everyone
        release = self.releases_until(number)
        return {i for i in everyone if planned.may_take_part(account.client_rounds(i), release)}

    def _report(self, text: str) -> None:
        self.listener.line(f"{self.kind}: {text}")

    def releases_until(self, number: int) -> int:
        """Returns the number of rounds of this kind that are released when round `number` ends.

        Evaluation rounds have the numbers of training rounds, and so may skip numbers.
        """
        return number if self.kind == TRAINING else self.track.num_done + 1

    def erase(self, session: bytes) -> None:
        if self.sessions is not None:
            self.sessions.erase(session)


class _Round:
    """One attempt at a round, which collects the sums of a cohort in one session.

    Attributes:
        asked_to_open: Whether nodes were asked to unmask the sum.
    """

    def __init__(self, plan: _Plan, number: int, down: bytes, started: StartedRound) -> None:
        self._plan, self._number, self._down, self._started = plan, number, down, started
        keys = {name: key for key, name in plan.identities.names.items()}
        gone = [name for name in started.cohort if name not in keys]
        if gone:
            raise PlanError(
                f"roster: expected {gone[0]}, a node of an unfinished round, found none"
            )
        self._cohort = [keys[name] for name in started.cohort]
        self.asked_to_open = False
        self._bytes_up: list[int] = []

    def collect(self) -> tuple[Sequence[bytes], bytes, dict[str, Any]]:
        """Returns the clients, the sums for `Player.end`, and facts for the journal.

        Raises:
            ProtocolError: Too few nodes have answered.
        """
        clients, sums = self._plain() if self._plan.sums is None else self._secure(self._plan.sums)
        names = [self._plan.identities.name(identity) for identity in clients]
        facts = {
            "session": self._started.session.hex(),
            "names": names,
            "clients": len(names),
            "bytes_up": float(np.mean(self._bytes_up)) if self._bytes_up else 0.0,
        }
        return clients, sums, facts

    def _plain(self) -> tuple[Sequence[bytes], bytes]:
        updates: dict[bytes, bytes] = {}
        plan, head = self._plan, {"id": self._started.session.hex(), **self._head()}
        request = Message(Kind.WORK, head, (self._down,))

        def take(identity: bytes, message: Message) -> None:
            update = _part(message, Kind.WORKED)
            plan.player.check_update(plan.identities.name(identity), update)
            updates[identity] = update
            self._bytes_up.append(len(update))

        self._exchange("work", dict.fromkeys(self._cohort, request), take, plan.cohorts.min_clients)
        if len(updates) < plan.cohorts.min_clients:
            raise ProtocolError(
                f"expected updates of at least {counted(plan.cohorts.min_clients, 'node')}, found "
                f"{len(updates)} of {len(self._cohort)}"
            )
        # Sum floats in cohort order, not in the order of arrival.
        clients = [identity for identity in self._cohort if identity in updates]
        named = [(plan.identities.name(identity), updates[identity]) for identity in clients]
        return clients, plan.player.plain_sums(named)

    def _secure(self, sums: SumPlan) -> tuple[Sequence[bytes], bytes]:
        session = self._session(sums)
        while session.stage is not None:
            stage, account = session.stage, self._plan.account
            if stage == Type.OPENING and isinstance(account, UnmaskedSums):
                # Write the charge to disk before any node reveals shares: the round may still fail.
                account.charge(self._started.session, session.survivors)
            self.asked_to_open |= stage == Type.OPENING
            for _ in range(self._plan.settings.attempts if stage == Type.OPENING else 1):
                self._ask(session, stage)
                if len(session.asked) - len(session.missing) >= session.min_answers:
                    break
            session.close()
            self._plan.listener.step(f"{self._plan.kind} {self._number}: {stage.name}")
        survivors = sorted(session.survivors, key=self._plan.identities.name)
        return survivors, secure_sums(session.result())

    def _session(self, sums: SumPlan) -> Server:
        folder = self._plan.sessions
        assert folder is not None, "secure sums"
        with folder.locked():
            is_new = folder.read(self._started.session) is None
        arguments = (sums, self._plan.identities, folder)
        if is_new:
            return Server.begin(*arguments, self._cohort, self._started.session)
        return Server(*arguments, self._started.session)

    def _ask(self, session: Server, stage: Type) -> None:
        # A client needs the checkpoint to compute its values.
        checkpoint = (self._down,) if stage == Type.MASKED else ()
        head, missing = self._head(), set(session.missing)
        requests = {
            identity: Message(Kind.STAGE, head, (request, *checkpoint))
            for identity, request in session.requests().items()
            if identity in missing
        }

        def take(identity: bytes, message: Message) -> None:
            answer = _part(message, Kind.STAGED)
            if session.receive(answer) != identity:
                raise PlanError("expected the node's own answer, found one of a different node")
            if stage == Type.MASKED:
                self._bytes_up.append(len(answer))

        enough = session.min_answers - (len(session.asked) - len(missing))
        self._exchange(STAGES[stage], requests, take, enough)

    def _exchange(
        self,
        stage: str,
        requests: dict[bytes, Message],
        take: Callable[[bytes, Message], None],
        enough: int,
    ) -> None:
        timeouts, kind = self._plan.settings.timeouts, self._plan.kind
        timeout = timeouts.work if stage == "work" else timeouts.stage
        exchange, missing = self._plan.members.exchange(
            stage, requests, timeout, take, enough, timeouts.patience
        )
        for identity in missing:
            self._plan.cohorts.rest(identity, self._number)
        self._plan.listener.exchange(kind, self._number, exchange)

    def _head(self) -> dict[str, Any]:
        return {"manifest": self._plan.manifest.hex(), "round": self._number}


def _part(message: Message, kind: Kind) -> bytes:
    if message.kind != kind:
        raise PlanError(f"expected {kind.name}, found {message.kind.name}")
    return message.part(0, 1)
