"""A fleet in one process: nodes with sandboxed players, and a channel that can lose messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet import node as nodes_of_fleet
from fleet.node import Node
from fleet.player import Player
from fleet.secure_aggregation import primitives
from fleet.secure_aggregation.messages import Type
from fleet.server import FleetServer
from fleet.settings import (
    DataSettings,
    NodeSettings,
    ServerSettings,
    Timeouts,
    manifest_sha256,
)
from fleet.wire import Kind, decoded, refused, request_tag, tagged
from plan_runner.export import Limits
from tests.plan_runner.harness import call

# Nodes answer immediately, so the server waits for lost answers only.
TIMEOUTS = Timeouts(0.5, 0.5, 0.5)


def request_stage(request: bytes) -> str:
    """Returns the step of a server's request: HELLO, WORK, or a stage of secure sums."""
    message = decoded(request, "request")
    if message.kind != Kind.STAGE:
        return message.kind.name
    return Type(message.parts[0][len(b"SECAGG") + 1]).name


class LocalChannel:
    """A channel that calls the nodes directly.

    Attributes:
        lost: Called with (node, step); returns whether the message is lost.
        failing: Called with (node, step); returns whether the transport reports a failure.
        round: Round of the last request.
        carried: (node, step, request, answer) of each answered request.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = dict(nodes)
        self.lost: Callable[[str, str], bool] = lambda node, stage: False
        self.failing = self.lost
        self.round = 0
        self.carried: list[tuple[str, str, bytes, bytes]] = []
        self._answers: list[tuple[str, bytes]] = []

    def nodes(self) -> list[str]:
        return list(self._nodes)

    def send(self, requests: Mapping[str, bytes], timeout: float) -> None:
        assert timeout > 0
        for node, request in requests.items():
            self.round = decoded(request, "request").head.get("round", self.round)
            if self.lost(node, request_stage(request)):
                continue
            if self.failing(node, request_stage(request)):
                self._answers.append((node, tagged(refused("nothing"), request_tag(request))))
                continue
            answer = self._nodes[node].answer(request)
            self.carried.append((node, request_stage(request), request, answer))
            self._answers.append((node, answer))

    def receive(self) -> list[tuple[str, bytes]]:
        answers, self._answers = self._answers, []
        return answers


class Recorder:
    """A listener that records the server's progress, and stops the server after a given step."""

    def __init__(self, stop: str = "") -> None:
        self.lines: list[str] = []
        self.exchanges: list[Any] = []
        self.steps: list[str] = []
        self._stop = stop

    def line(self, text: str) -> None:
        self.lines.append(text)

    def exchange(self, kind: str, round_number: int, exchange: Any) -> None:
        self.exchanges.append((kind, round_number, exchange))

    def step(self, done: str) -> None:
        self.steps.append(done)
        if done == self._stop:
            raise Stopped(done)


class Stopped(BaseException):
    """Raised to stop a server, as if its process were killed."""


class Fleet:
    """Keys, roster and settings of a fleet; each node has the data of one TFRecord file."""

    def __init__(self, folder: Path, export: Path, clients: Path) -> None:
        self.folder, self.export, self.profile = folder, export, ""
        folder.mkdir(parents=True)
        self.names = sorted(path.stem for path in clients.iterdir())
        lines = []
        for number, name in enumerate(self.names):
            secret = primitives.digest("identity", bytes([number]))
            identity = folder / f"{name}.key"
            identity.write_text(secret.hex())
            identity.chmod(0o600)
            lines.append(f'{name} = "{primitives.identity_public(secret).hex()}"\n')
        self.roster = folder / "roster.toml"
        self.roster.write_text("".join(lines))
        self.clients = clients
        self._nodes: dict[str, Node] = {}
        self._players: dict[Any, _Shared] = {}

    def player(
        self, export: Path, pinned: str, limits: Limits, trust: bool, reads: Any = ()
    ) -> Player:
        """Returns an export's shared player; starting a player takes seconds."""
        del reads
        key = (pinned, limits, trust)
        if key not in self._players:
            self._players[key] = _Shared(export, pinned, limits, trust, [self.clients])
        return self._players[key]

    def node(self, settings: NodeSettings) -> Node:
        """Returns a node with the shared player."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nodes_of_fleet, "Player", self.player)
            return Node(settings)

    def node_settings(self, name: str, **changes: Any) -> NodeSettings:
        given = {
            "export": self.export,
            "manifest_sha256": manifest_sha256(self.export),
            "identity": self.folder / f"{name}.key",
            "roster": self.roster,
            "state": self.folder / f"state_{name}",
            "data": DataSettings(tfrecord=self.clients / f"{name}.tfrecord"),
        }
        return NodeSettings(**{**given, **changes})

    def server_settings(self, **changes: Any) -> ServerSettings:
        given = {
            "export": self.export,
            "roster": self.roster,
            "state": self.folder / "server",
            "timeouts": TIMEOUTS,
        }
        return ServerSettings(**{**given, **changes})

    def nodes(self, **changes: Any) -> dict[str, Node]:
        """Returns all nodes, which are created in the first call."""
        for name in self.names:
            if name not in self._nodes:
                self._nodes[name] = self.node(self.node_settings(name, **changes))
        return self._nodes

    def serve(
        self,
        state: Path,
        rounds: int,
        channel: LocalChannel,
        stop: str = "",
        player: Callable[..., Any] | None = None,
        weaker_privacy: bool = False,
        **changes: Any,
    ) -> Recorder:
        """Runs rounds of a server with this state folder; returns its listener."""
        recorder = Recorder(stop)
        settings = self.server_settings(state=state, **changes)
        server = FleetServer(settings, channel, recorder, player or self.player, weaker_privacy)
        try:
            server.run(rounds)
        except Stopped:
            assert stop
        finally:
            server.close()
        return recorder

    def simulated(self, folder: Path, cohorts: Iterable[Sequence[str]]) -> bytes:
        """Returns run_plan's state after rounds with the same cohorts."""
        file = folder / "cohorts.txt"
        file.write_text("".join(f"{','.join(names)}\n" for names in cohorts))
        places = [f"--plan={self.export}", f"--clients={self.clients}", f"--cohorts={file}"]
        outcome = call(*places, f"--output={folder / 'run_plan'}", "--trust")
        assert outcome.status == 0, outcome
        return (folder / "run_plan" / "server_state.ckpt").read_bytes()

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        for player in self._players.values():
            Player.close(player)


class _Shared(Player):
    def close(self) -> None:
        """Does nothing: `Fleet.close` ends the process."""
