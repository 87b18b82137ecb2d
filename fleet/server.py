"""The server of a fleet: runs rounds with nodes, and keeps their results."""

from __future__ import annotations

import contextlib
import json
import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fleet.members import (
    SAMPLINGS,
    Channel,
    Draw,
    Exchange,
    Members,
    PlanHello,
    planned_draw,
)
from fleet.node_noise.account import OpenedSums, ReleasedRounds, ServerAccount
from fleet.node_noise.noise import check_sum_plan, noise_of_export
from fleet.node_noise.server_noise import (
    FIXED_SIZE,
    POISSON,
    SPACED,
    STRATIFIED,
    ServerNoise,
    server_noise_of_export,
)
from fleet.player import Player, secure_sums, sum_plan
from fleet.secure_aggregation.errors import ProtocolError
from fleet.secure_aggregation.messages import SESSION_BYTES, Type
from fleet.secure_aggregation.server import Server
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SumPlan
from fleet.settings import ServerSettings, manifest_sha256, read_roster
from fleet.state_folder import RoundJournal, StartedRound, StateFolder
from fleet.wire import Kind, Message
from plan_runner import export as exports
from plan_runner.errors import PlanError, counted
from plan_runner.export import EVALUATION, TRAINING, Limits, open_export

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
    """Runs rounds of training, and of evaluation between them.

    All that is needed to resume is in the folder for state: another process with the same settings
    resumes where this one was ended, in the middle of a round as well. Sums are in memory alone: a
    process that resumes asks the nodes once more for what opens them.

    Args:
        player: (export, SHA-256 of its manifest, limits, trust) -> the player of it.
        weaker_privacy: Whether rounds may break the assumptions of the plan's epsilon; the server
            then computes epsilon of the rounds as they are.

    Raises:
        PlanError: An export, the roster, the settings or the folder are wrong, or the fleet cannot
            keep to the plan's draw of cohorts.
    """

    def __init__(
        self,
        settings: ServerSettings,
        channel: Channel,
        listener: Listener,
        player: Callable[[Path, str, Limits, bool], Player] = Player,
        weaker_privacy: bool = False,
    ) -> None:
        self._settings = settings
        self._weaker_privacy = weaker_privacy
        self._listener = listener
        self._identities = read_roster(settings.roster)
        exports_of = {TRAINING: settings.export}
        if settings.evaluation is not None:
            exports_of[EVALUATION] = settings.evaluation.export
        with contextlib.ExitStack() as stack:
            self._folder = StateFolder(settings.state, listener.step)
            stack.callback(self._folder.close)
            self._plans: dict[str, _Plan] = {}
            for kind, export in exports_of.items():
                pinned = manifest_sha256(export)
                played = player(export, pinned, settings.limits, settings.trust)
                stack.callback(played.close)
                self._plans[kind] = _Plan(
                    *(kind, export, pinned, played, settings),
                    *(self._identities, self._folder, channel, listener.line, weaker_privacy),
                )
            self._stack = stack.pop_all()

    @property
    def completed(self) -> int:
        """Number of the last round of training that is done."""
        return self._plans[TRAINING].track.completed

    def run(self, rounds: int) -> None:
        """Runs until this many rounds of training are complete, including earlier processes'.

        Raises:
            PlanError: The plan's epsilon is for fewer rounds; or a round fails.
        """
        training, evaluation = self._plans[TRAINING], self._plans.get(EVALUATION)
        self._check_rounds(training, rounds)
        if evaluation is not None and self._settings.evaluation is not None:
            self._check_rounds(evaluation, rounds // self._settings.evaluation.every)
        self._evaluate(evaluation)
        while training.track.completed < rounds:
            self._play(training, training.track.completed + 1, training.track.state)
            self._evaluate(evaluation)

    def _check_rounds(self, plan: _Plan, rounds: int) -> None:
        if plan.noise is None or rounds <= plan.noise.rounds:
            return
        words = (
            f"expected at most {counted(plan.noise.rounds, 'round')} of {plan.track.kind}, for "
            f"which the plan's epsilon is, found {rounds}"
        )
        if not self._weaker_privacy:
            raise PlanError(f"--rounds: {words}; --weaker_privacy allows it")
        self._listener.line(f"{plan.track.kind}: weaker privacy than the plan's: {words}")

    def close(self) -> None:
        """Ends the processes that play, and lets another server have the folder."""
        self._stack.close()

    def _evaluate(self, evaluation: _Plan | None) -> None:
        """Runs the round of evaluation that is due, if there is one."""
        if evaluation is None or self._settings.evaluation is None:
            return
        done, track = self.completed, evaluation.track
        if done and done % self._settings.evaluation.every == 0 and track.completed < done:
            trained = self._plans[TRAINING].track.state
            self._play(evaluation, done, evaluation.player.evaluated(track.state, trained))

    def _play(self, plan: _Plan, number: int, state: bytes) -> None:
        """Runs a round to its end, from its current stage."""
        down, attempts = plan.player.begin(state), 0
        while True:
            begun = plan.track.pending(number)
            if begun is None:
                attempts += 1
                cohort = self._cohort(plan, number)
                if plan.account is not None:
                    after = plan.account.check(cohort, plan.releases_until(number))
                    self._listener.line(
                        f"{plan.track.kind}: round {number}: epsilon at most "
                        f"{plan.account.epsilon:.4g} before and {after:.4g} after it, at delta "
                        f"{plan.account.delta:.3g}"
                    )
                names = tuple(self._identities.name(identity) for identity in cohort)
                begun = StartedRound(secrets.token_bytes(SESSION_BYTES), names)
                plan.track.begin(number, begun)
            round_ = _Round(plan, number, down, begun, self._settings, self._listener)
            try:
                clients, sums, facts = round_.collect()
            except ProtocolError as e:
                self._listener.line(f"{plan.track.kind} {number}: given up: {e}")
                if e.client is not None:
                    plan.resting[e.client] = number + self._settings.rest_rounds
                plan.track.give_up(number, str(e), round_.asked_to_open)
                plan.erase(begun.session)
                if attempts >= self._settings.attempts:
                    raise PlanError(
                        f"{plan.track.kind} {number}: given up {counted(attempts, 'time')}, the "
                        f"last time: {e}"
                    ) from e
            else:
                break
        if plan.account is not None:
            plan.account.release(plan.releases_until(number), clients)
        ended = plan.player.end(state, sums, number, facts["clients"], len(down), facts["bytes_up"])
        row = _row(ended.row)
        if plan.account is not None:
            row |= {"epsilon": _finite(plan.account.epsilon), "delta": plan.account.delta}
        if self._settings.keeps_sums:
            plan.track.keep_sums(number, sums)
        plan.track.finish(number, ended.state, row, facts)
        plan.erase(begun.session)
        self._listener.line(f"{plan.track.kind}: {ended.line}")
        if plan.account is not None:
            self._listener.line(f"{plan.track.kind}: {plan.account.text}")

    def _cohort(self, plan: _Plan, number: int) -> list[bytes]:
        """Waits for enough nodes and draws the nodes of a round, in the order of their names."""
        settings = self._settings
        pool, fewest, size = self._pool(plan, number), plan.fewest, plan.cohort_size
        wanted = len(self._identities.names) if plan.draws_secretly else size or fewest
        timeout = settings.timeouts.nodes

        def enough(count: int, among: Collection[bytes]) -> Callable[[], bool]:
            return lambda: len([i for i in plan.members.reachable() if i in among]) >= count

        # The server waits once for all wanted nodes: some may be gone for good.
        if not plan.met and wanted > fewest:
            plan.members.greet(enough(wanted, self._identities.names), timeout)
        plan.met = True
        plan.members.greet(enough(fewest, pool), timeout)
        there = plan.members.reachable()
        absent = sorted(set(self._identities.names) - set(there), key=self._identities.name)
        names = f", without {_some(map(self._identities.name, absent))}" if absent else ""
        present = [identity for identity in there if identity in pool]
        if len(present) < fewest:
            may = "" if len(pool) == len(self._identities.names) else " that may take part"
            raise PlanError(
                f"{plan.track.kind} {number}: expected at least {counted(fewest, 'node')}{may} "
                f"within {timeout:g} s, found {len(present)}{names}"
            )
        if absent != plan.absent:
            self._listener.line(
                f"{plan.track.kind}: round {number}: {len(there)} of "
                f"{len(self._identities.names)} nodes are there{names}"
            )
        plan.absent = absent
        rested = [i for i in present if plan.resting.get(i, 0) < number]
        candidates = rested if len(rested) >= fewest else present
        if plan.draws_secretly:
            return sorted(candidates, key=self._identities.name)
        attempt = plan.track.attempts(number)
        generator: random.Random = random.SystemRandom()
        if settings.seed is not None:
            generator = random.Random(f"{settings.seed} {plan.track.kind} {number} {attempt}")
        draw = Draw(
            candidates,
            fewest,
            plan.most,
            size,
            len(self._identities.names),
            plan.members.domains,
        )
        return sorted(SAMPLINGS[settings.sampling](draw, generator), key=self._identities.name)

    def _pool(self, plan: _Plan, number: int) -> set[bytes]:
        """Returns the nodes that a round may ask.

        A secret cohort is drawn once for each round, and is on the disk before anyone is asked: to
        draw another one because its nodes did not answer would change their probabilities.
        """
        everyone = set(self._identities.names)
        if plan.draws_secretly:
            assert plan.noise is not None, "of a plan with noise"
            names = plan.track.drawn(number)
            if names is None:
                drawn = planned_draw(plan.noise.draw, sorted(everyone))
                names = [self._identities.name(identity) for identity in drawn]
                plan.track.draw(number, names)
            return {identity for identity in everyone if self._identities.name(identity) in names}
        account = plan.account
        if not plan.keeps_draw or not isinstance(account, ReleasedRounds):
            return everyone
        assert plan.noise is not None, "of a plan with noise"
        draw, release = plan.noise.draw, plan.releases_until(number)
        return {i for i in everyone if draw.may_take_part(account.rounds_of(i), release)}


class _Plan:
    """An export that the server runs, its rounds, and the nodes that run it."""

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
        weaker_privacy: bool,
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
        self.account: ServerAccount | None = None
        self.cohort_size = settings.cohort_size
        self.noise = server_noise_of_export(export, pinned)
        # Whether cohorts are those that the epsilon of a plan with the server's noise is for.
        self.keeps_draw = self.noise is not None
        if self.noise is not None:
            obstacles = _obstacles(self.noise, settings, len(identities.names), bool(about.secure))
            if obstacles and not weaker_privacy:
                raise PlanError(f"{export}: {obstacles[0]}; --weaker_privacy allows it")
            for words in obstacles:
                tell(f"{kind}: weaker privacy than the plan's: {words}")
            self.keeps_draw = not obstacles
            if settings.keeps_sums:
                raise PlanError(
                    "keeps_sums: expected false with noise of the server, whose sums have none, "
                    "found true"
                )
            if self.keeps_draw and self.noise.draw.scheme == SPACED and not self.cohort_size:
                self.cohort_size = int(self.noise.draw.per_round)
        initial = open_export(export, settings.limits, pinned).read(exports.SERVER_STATE)
        self.track = RoundJournal(folder, kind, pinned, initial)
        self.fewest = max(settings.min_clients, about.min_clients)
        if self.draws_secretly and not about.secure:
            # A round is released, however few nodes are drawn.
            self.fewest = about.min_clients
        self.most = len(identities.names)
        if about.max_clients is not None:
            self.most = min(self.most, about.max_clients)
        if self.fewest > self.most:
            raise PlanError(
                f"min_clients: expected at most {self.most}, as the roster or the plan has room "
                f"for, found {self.fewest}"
            )
        path = folder.folder / f"{kind}_{_ACCOUNT}"
        if self.noise is not None:
            target = settings.target_epsilon
            self.account = ReleasedRounds(path, self.noise, target, self.keeps_draw)
        head: dict[str, Any] = {"sums": ""}
        if about.secure:
            self.sums = sum_plan(pinned, about, settings.min_clients, settings.checks_survivors)
            self.folder = SessionFolder(folder.folder / f"{kind}_sessions")
            # The others are of rounds that an earlier process finished or gave up.
            for session in set(self.folder.sessions()) - {self.track.unfinished}:
                self.folder.erase(session)
            nodes_noise = noise_of_export(export, pinned)
            check_sum_plan(nodes_noise, self.sums)
            if nodes_noise is not None:
                self.account = OpenedSums(
                    path, nodes_noise, settings.target_epsilon, weaker_privacy
                )
            head = {
                "sums": self.sums.digest().hex(),
                "min_clients": self.sums.min_clients,
                "checks_survivors": settings.checks_survivors,
            }
        self.manifest = bytes.fromhex(pinned)
        hello = PlanHello(self.manifest, head)
        self.members = Members(channel, identities, hello, settings.timeouts.hello, tell)

    @property
    def draws_secretly(self) -> bool:
        """Whether cohorts are secret random draws, which the plan's epsilon assumes."""
        secret = (POISSON, FIXED_SIZE)
        return self.noise is not None and self.keeps_draw and self.noise.draw.scheme in secret

    def releases_until(self, number: int) -> int:
        """Returns the number of releases after a round, which evaluations do not have each round.

        Args:
            number: Number of the round that is next to complete.
        """
        return number if self.track.kind == TRAINING else self.track.num_done + 1

    def erase(self, session: bytes) -> None:
        """Removes what the disk has of a session."""
        if self.folder is not None:
            self.folder.erase(session)


def _obstacles(
    noise: ServerNoise, settings: ServerSettings, nodes: int, is_secure: bool
) -> list[str]:
    """Returns the reasons why a fleet cannot draw cohorts as a plan's epsilon assumes.

    Args:
        nodes: Number of the roster's nodes.
        is_secure: Whether sums are secure.
    """
    draw = noise.draw
    expected, found = f"expected the plan's cohorts ({draw.text}), found ", []
    if draw.scheme == STRATIFIED:
        found.append(f"{expected}no strata of nodes")
    if draw.scheme in (POISSON, FIXED_SIZE):
        defaults = ServerSettings(settings.export, settings.roster, settings.state)
        for name in ("sampling", "cohort_size", "seed"):
            value = getattr(settings, name)
            if value != getattr(defaults, name):
                found.append(f"{expected}{name} = {value} in server.toml")
        if nodes < draw.clients:
            found.append(f"{expected}{counted(nodes, 'node')} in the roster")
        fewest = settings.min_clients if draw.scheme == FIXED_SIZE else math.inf
        if is_secure and draw.per_round < fewest:
            found.append(f"{expected}secure sums, which are opened from min_clients on alone")
    if draw.scheme == SPACED:
        size = settings.cohort_size or int(draw.per_round)
        most = draw.max_participations
        if nodes // size < draw.min_separation or (
            most is not None and nodes * most < noise.rounds * size
        ):
            found.append(f"{expected}{counted(nodes, 'node')} in the roster for rounds of {size}")
    return found


class _Round:
    """One session of a round: asks its cohort for what is summed."""

    def __init__(
        self,
        plan: _Plan,
        number: int,
        down: bytes,
        begun: StartedRound,
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

    def collect(self) -> tuple[Sequence[bytes], bytes, dict[str, Any]]:
        """Returns the clients, the sums, as `Player.end` takes them, and facts for the journal.

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
        return clients, sums, facts

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
                self._plan.account.open(self._begun.session, session.survivors)
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


def _finite(epsilon: float) -> float | None:
    """Returns a number that JSON has; None if epsilon is infinite."""
    return epsilon if math.isfinite(epsilon) else None


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def _part(message: Message, kind: Kind) -> bytes:
    if message.kind != kind:
        raise PlanError(f"expected {kind.name}, found {message.kind.name}")
    return message.part(0, 1)


def _row(text: str) -> dict[str, Any]:
    """Reads a line of metrics that the sandboxed process has written."""
    try:
        row = json.loads(text)
        metrics = row["metrics"]
    except (KeyError, RecursionError, TypeError, ValueError):
        metrics = None
    if not isinstance(metrics, dict):
        raise PlanError("metrics: expected those of a round, found others")
    return dict(row)
