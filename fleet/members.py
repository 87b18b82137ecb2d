"""Authenticates the nodes that a server can reach, and exchanges messages with them."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Optional, Protocol

from fleet.errors import ERRORS
from fleet.secure_aggregation.primitives import is_signed
from fleet.secure_aggregation.sum_plan import Identities
from fleet.wire import Kind, Message, decoded, identity_text, refusal_text, tagged
from plan_runner.errors import PlanError

_POLL_SECONDS = 0.02
# Minimum seconds to wait for answers, as Flower's nodes poll only every three seconds.
_NOT_LATE_SECONDS = 10.0
_CHALLENGE_BYTES = 32


class Channel(Protocol):
    """Interface of a transport that carries requests to nodes, and their answers back."""

    def nodes(self) -> list[str]:
        """Returns the names that the transport uses for the reachable nodes."""

    def send(self, requests: Mapping[str, bytes], timeout: float) -> None:
        """Sends each node its request without waiting; answers after the timeout may be lost."""

    def receive(self) -> list[tuple[str, bytes]]:
        """Returns (node, answer) pairs that arrived since the last call, without waiting."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One request to several nodes.

    Attributes:
        asked: Number of nodes that the server asked.
        answered: Number of nodes that sent an accepted answer in time.
        bytes_down: Total size of the requests.
        bytes_up: Total size of the answers.
        seconds: Seconds from the first request to the last answer, or to the end of waiting.
    """

    stage: str
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    seconds: float


class Members:
    """The nodes that have proved their identities for one plan.

    Args:
        manifest: SHA-256 of the plan's manifest.
        head: Additional fields of HELLO messages, which nodes compare with their own settings.
        timeout: Seconds to wait for an answer to HELLO.
        report: Called with a message when a node rejects a request or its answer is invalid.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Identities,
        manifest: bytes,
        head: Mapping[str, object],
        timeout: float,
        report: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._identities = identities
        self._manifest, self._head = manifest, head
        self._timeout = timeout
        self._report = report
        self._nodes: dict[bytes, str] = {}
        # Time, challenge and tag of the last HELLO, keyed by node.
        self._hellos: dict[str, tuple[float, bytes, str]] = {}

    def reachable(self) -> list[bytes]:
        """Returns the identities of reachable nodes, sorted by name."""
        nodes = set(self._channel.nodes())
        reachable = [identity for identity, node in self._nodes.items() if node in nodes]
        return sorted(reachable, key=self._identities.name)

    def greet(self, until: Callable[[], bool], timeout: float) -> None:
        """Sends HELLO to new nodes until a condition holds or the timeout passes."""
        deadline = time.monotonic() + timeout
        while True:
            self._poll()
            if until() or time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)

    def exchange(
        self,
        stage: str,
        requests: Mapping[bytes, Message],
        timeout: float,
        take: Callable[[bytes, Message], None],
        enough: int = 0,
        patience: Optional[float] = None,
    ) -> tuple[Exchange, set[bytes]]:
        """Sends requests to nodes, and waits for their answers.

        Args:
            requests: Messages, keyed by identity. An unreachable node is asked when it reconnects.
            timeout: Maximum number of seconds to wait.
            take: Called with an identity and its answer; raises PlanError to reject the answer.
            enough: Number of answers after which `patience` applies.
            patience: Factor p: after `enough` answers, the exchange ends after p t seconds if the
                last answer took t seconds. None waits until the timeout.

        Returns:
            The exchange, and the identities without an accepted answer.
        """
        began = time.monotonic()
        unsent = dict(requests)
        waiting: dict[str, bytes] = {}
        missing, failed = set(requests), set[bytes]()
        down = up = 0
        waits, last = timeout, 0.0
        while True:
            for tag, message, size in self._poll():
                identity = waiting.pop(tag, None)
                if identity is None:
                    continue
                try:
                    take(identity, _accepted(message))
                except ERRORS as e:
                    failed.add(identity)
                    self._report(f"{stage}: node {self._identities.name(identity)}: {e}")
                else:
                    missing.discard(identity)
                    up += size
                    last = time.monotonic() - began
            if patience is not None and len(requests) - len(missing) >= enough:
                waits = min(timeout, max(_NOT_LATE_SECONDS, patience * last))
            left = waits - (time.monotonic() - began)
            batch = {}
            for identity in [i for i in self.reachable() if i in unsent]:
                tag = secrets.token_hex(8)
                waiting[tag] = identity
                batch[self._nodes[identity]] = tagged(unsent.pop(identity), tag)
            down += sum(map(len, batch.values()))
            if batch and left > 0:
                self._channel.send(batch, left)
            if not (missing - failed) or left <= 0:
                break
            time.sleep(_POLL_SECONDS)
        for identity in missing - failed:
            name = self._identities.name(identity)
            self._report(f"{stage}: node {name}: no answer in {waits:.3g} s")
        answered = len(requests) - len(missing)
        seconds = time.monotonic() - began
        return Exchange(stage, len(requests), answered, down, up, seconds), missing

    def _poll(self) -> list[tuple[str, Message, int]]:
        """Greets new nodes; returns (tag, answer, size in bytes) for all other answers."""
        self._send_hellos()
        answers = []
        for node, data in self._channel.receive():
            try:
                message = decoded(data, f"answer of {node}")
                tag = message.head.get("tag")
                if node in self._hellos and self._hellos[node][2] == tag:
                    self._welcome(node, _accepted(message))
                elif isinstance(tag, str):
                    answers.append((tag, message, len(data)))
            except ERRORS as e:
                self._report(f"node {node}: {e}")
        return answers

    def _send_hellos(self) -> None:
        now, greeted = time.monotonic(), set(self._nodes.values())
        hellos = {}
        for node in self._channel.nodes():
            if node in greeted:
                continue
            if node in self._hellos and now <= self._hellos[node][0] + self._timeout:
                continue
            challenge, tag = secrets.token_bytes(_CHALLENGE_BYTES), secrets.token_hex(8)
            self._hellos[node] = now, challenge, tag
            head = {"manifest": self._manifest.hex(), "challenge": challenge.hex()}
            hellos[node] = tagged(Message(Kind.HELLO, {**self._head, **head}), tag)
        if hellos:
            self._channel.send(hellos, self._timeout)

    def _welcome(self, node: str, message: Message) -> None:
        if message.kind != Kind.WELCOME:
            raise PlanError(f"expected WELCOME, found {message.kind.name}")
        identity = message.digest("identity")
        name = self._identities.name(identity)
        text = identity_text(self._hellos[node][1], self._manifest)
        try:
            signature = bytes.fromhex(message.get("signature", str))
        except ValueError:
            signature = b""
        if identity not in self._identities:
            raise PlanError(f"expected an identity of the roster, found a node {name}")
        if not is_signed(identity, text, signature):
            raise PlanError(f"expected the signature of {name}, found an invalid one")
        self._nodes[identity] = node
        del self._hellos[node]


def _accepted(message: Message) -> Message:
    if message.kind == Kind.REFUSED:
        raise PlanError(f"it answers: {refusal_text(message)}")
    return message
