"""Which nodes there are, and which of them a round asks.

Requests are carried to identities, and their answers back, by a channel. A cohort is drawn in one
of the ways of `SAMPLINGS`.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Optional, Protocol

from fleet.errors import ERRORS
from fleet.node_noise.server_noise import FIXED_SIZE
from fleet.node_noise.server_noise import Draw as PlannedDraw
from fleet.secure_aggregation.primitives import is_signed
from fleet.secure_aggregation.sum_plan import Identities
from fleet.wire import Kind, Message, decoded, identity_text, tagged, words_of
from plan_runner.errors import PlanError

_POLL_SECONDS = 0.02
# Nobody is late before: a node of Flower looks for messages once in three seconds.
_NOT_LATE_SECONDS = 10.0
_DIGEST_BYTES = 32
# Randomness of private draws, which nobody can predict or repeat.
_SECRET = random.SystemRandom()
# Of cohorts by chance, until one is large enough.
_MOST_DRAWS = 10_000


class Channel(Protocol):
    """Carries bytes to nodes and back: all that a transport has to implement."""

    def nodes(self) -> list[str]:
        """Returns who can be reached now, by the transport's own names."""

    def send(self, requests: Mapping[str, bytes], timeout: float) -> None:
        """Sends requests by node, and does not wait; nobody waits for answers after the timeout."""

    def receive(self) -> Mapping[str, bytes]:
        """Returns answers that have come since the last call, by their nodes; does not wait.

        Of a node one at a time: a second answer is the next call's.
        """


@dataclasses.dataclass(frozen=True)
class PlanHello:
    """What nodes have to have in common with the server, of one plan.

    Attributes:
        manifest: SHA-256 of its manifest.
        head: What HELLO tells beside.
    """

    manifest: bytes
    head: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One request to several nodes.

    Attributes:
        stage: What was asked for.
        asked: How many nodes.
        answered: How many of them have answered in time, and not in words.
        bytes_down: All requests' sizes.
        bytes_up: All answers' sizes.
        seconds: From the first request to the last answer, or until nobody waits.
    """

    stage: str
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    seconds: float


class Members:
    """The nodes that have shown their identity, for one plan of the server's.

    Args:
        tell: Called with a line when a node is refused, or refuses.
    """

    def __init__(
        self,
        channel: Channel,
        identities: Identities,
        hello: PlanHello,
        timeout: float,
        tell: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._identities = identities
        self._hello = hello
        self._timeout = timeout
        self._tell = tell
        # Which node each identity is, and what the identity told of its domain.
        self._nodes: dict[bytes, str] = {}
        self.domains: dict[bytes, str] = {}
        # When a node was asked, and with which challenge.
        self._asked: dict[str, tuple[float, bytes, str]] = {}

    def reachable(self) -> list[bytes]:
        """Returns the identities that are there, in the order of their names."""
        there = set(self._channel.nodes())
        found = [identity for identity, node in self._nodes.items() if node in there]
        return sorted(found, key=self._identities.name)

    def greet(self, until: Callable[[], bool], timeout: float) -> None:
        """Says hello to nodes that are not known, until there are enough or time is over."""
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
        """Asks nodes and takes their answers until all have come or time is over.

        Args:
            requests: By identity. One that is not there is asked as soon as it is.
            take: Called with an identity and its answer; raises PlanError to refuse it.
            enough: How many answers do.
            patience: How many times as long as the last answer took the others are waited for, once
                there are enough. None waits until the timeout.

        Returns:
            What it took, and whose answers are missing.
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
                    if message.kind == Kind.REFUSED:
                        raise PlanError(f"it answers: {words_of(message)}")
                    take(identity, message)
                except ERRORS as e:
                    failed.add(identity)
                    self._tell(f"{stage}: node {self._identities.name(identity)}: {e}")
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
                request = tagged(unsent.pop(identity), tag)
                waiting[tag] = identity
                batch[self._nodes[identity]] = request
                down += len(request)
            if batch and left > 0:
                self._channel.send(batch, left)
            if not (missing - failed) or left <= 0:
                break
            time.sleep(_POLL_SECONDS)
        for identity in missing - failed:
            self._tell(
                f"{stage}: node {self._identities.name(identity)}: no answer in {waits:.3g} s"
            )
        answered = len(requests) - len(missing)
        seconds = time.monotonic() - began
        return Exchange(stage, len(requests), answered, down, up, seconds), missing

    def _poll(self) -> list[tuple[str, Message, int]]:
        """Greets new nodes; returns the answers to other requests, with their tags and sizes."""
        now = time.monotonic()
        known = set(self._nodes.values())
        hellos = {}
        for node in self._channel.nodes():
            asked = self._asked.get(node)
            if node not in known and (asked is None or now > asked[0] + self._timeout):
                challenge, tag = secrets.token_bytes(_DIGEST_BYTES), secrets.token_hex(8)
                self._asked[node] = now, challenge, tag
                head = {
                    **self._hello.head,
                    "tag": tag,
                    "manifest": self._hello.manifest.hex(),
                    "challenge": challenge.hex(),
                }
                hellos[node] = Message(Kind.HELLO, head).encoded()
        if hellos:
            self._channel.send(hellos, self._timeout)
        answers = []
        for node, data in self._channel.receive().items():
            try:
                message = decoded(data, f"answer of {node}")
                answered = message.head.get("tag")
                if node in self._asked and self._asked[node][2] == answered:
                    self._welcome(node, message)
                elif isinstance(answered, str):
                    answers.append((answered, message, len(data)))
            except ERRORS as e:
                self._tell(f"node {node}: {e}")
        return answers

    def _welcome(self, node: str, message: Message) -> None:
        if message.kind == Kind.REFUSED:
            raise PlanError(f"it answers: {words_of(message)}")
        if message.kind != Kind.WELCOME:
            raise PlanError(f"expected WELCOME, found {message.kind.name}")
        identity, challenge = message.digest("identity"), self._asked[node][1]
        text = identity_text(challenge, self._hello.manifest)
        try:
            signature = bytes.fromhex(message.get("signature", str))
        except ValueError:
            signature = b""
        if identity not in self._identities:
            raise PlanError(
                f"expected an identity of the roster, found one {self._identities.name(identity)}"
            )
        if not is_signed(identity, text, signature):
            raise PlanError(
                f"expected the signature of {self._identities.name(identity)}, found another"
            )
        domain = message.head.get("domain")
        if domain is not None:
            self.domains[identity] = message.get("domain", str)
        self._nodes[identity] = node
        del self._asked[node]


@dataclasses.dataclass(frozen=True)
class Draw:
    """What a cohort is drawn from.

    Attributes:
        candidates: Identities of the nodes that are there.
        fewest: The fewest of a round.
        most: The most of a round.
        size: How many are wanted; None is all.
        fleet: How many nodes there are in all.
        domains: What nodes have told of their domain, by identity.
    """

    candidates: Sequence[bytes]
    fewest: int
    most: int
    size: Optional[int]
    fleet: int
    domains: Mapping[bytes, str] = dataclasses.field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """How many can be drawn, of those that are there."""
        there = len(self.candidates)
        return min(there if self.size is None else self.size, self.most, there)


def _uniform(draw: Draw, generator: random.Random) -> list[bytes]:
    return generator.sample(list(draw.candidates), draw.wanted)


def _poisson(draw: Draw, generator: random.Random) -> list[bytes]:
    """Draws each node by itself, and all again as long as there are too few or too many.

    No sum over fewer than the fewest is opened, whoever they are: a round cannot be played as it
    was drawn.
    """
    size = len(draw.candidates) if draw.size is None else draw.size
    share = min(1.0, size / draw.fleet)
    for _ in range(_MOST_DRAWS):
        drawn = [identity for identity in draw.candidates if generator.random() < share]
        if draw.fewest <= len(drawn) <= draw.most:
            return drawn
    raise PlanError(
        f"cohort_size: expected {draw.fewest} to {draw.most} of {len(draw.candidates)} nodes by "
        f"chance, found none such in {_MOST_DRAWS} draws; set another cohort_size"
    )


def _by_domain(draw: Draw, generator: random.Random) -> list[bytes]:
    """Draws as many nodes of each domain, as far as there are; who tells none is of none."""
    groups: dict[str, list[bytes]] = {}
    for identity in generator.sample(list(draw.candidates), len(draw.candidates)):
        groups.setdefault(draw.domains.get(identity, ""), []).append(identity)
    turns = generator.sample(sorted(groups), len(groups))
    drawn: list[bytes] = []
    while len(drawn) < draw.wanted:
        for name in turns:
            if groups[name] and len(drawn) < draw.wanted:
                drawn.append(groups[name].pop())
    return drawn


SAMPLINGS: dict[str, Callable[[Draw, random.Random], list[bytes]]] = {
    "uniform": _uniform,
    "poisson": _poisson,
    "by_domain": _by_domain,
}


def planned_draw(draw: PlannedDraw, population: Sequence[bytes]) -> list[bytes]:
    """Returns the clients of a round, drawn as a plan's epsilon assumes.

    The draw is from the whole population, connected or not, by the system's random numbers, which
    nobody can predict. A drawn client that does not answer is not replaced.

    Args:
        draw: POISSON or FIXED_SIZE.
        population: Identities of the roster, at least as many as the plan's clients.
    """
    if draw.scheme == FIXED_SIZE:
        return _SECRET.sample(list(population), int(draw.per_round))
    share = min(1.0, draw.per_round / len(population))
    return [identity for identity in population if _SECRET.random() < share]
