"""Secure aggregation in one process: a server, and clients with separate folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.secure_aggregation import messages, primitives
from fleet.secure_aggregation.client import Client
from fleet.secure_aggregation.errors import SumError
from fleet.secure_aggregation.messages import Type
from fleet.secure_aggregation.server import Server
from fleet.secure_aggregation.sessions import SessionFolder
from fleet.secure_aggregation.sum_plan import Identities, SummedTensor, SumPlan

TENSORS = (
    SummedTensor("sum:0", (3, 7), 1 << 12, 1 << 17),
    SummedTensor("odd:0", (11,), 500, 997),
    SummedTensor("none:0", (0,), 5, 7),
    SummedTensor("scalar:0", (), 1 << 62, 1 << 62),
)


@dataclasses.dataclass
class Fleet:
    """A fleet whose clients are numbered in the order of their identities."""

    folder: Path
    size: int = 5
    tensors: tuple[SummedTensor, ...] = TENSORS
    min_clients: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        secrets = [primitives.digest("identity", bytes([n])) for n in range(self.size)]
        self.secrets = {primitives.identity_public(secret): secret for secret in secrets}
        self.ids = sorted(self.secrets)
        self.identities = Identities({key: f"node{n}" for n, key in enumerate(self.ids)})
        self.plan = SumPlan(bytes(32), self.tensors, self.size, self.min_clients)
        generator = np.random.default_rng(self.seed)
        self.values = [
            {
                tensor.name: generator.integers(0, tensor.bound, tensor.shape, np.uint64)
                for tensor in self.tensors
            }
            for _ in range(self.size)
        ]

    def client(self, number: int, plan: SumPlan | None = None) -> Client:
        """Returns a client without state in memory, as after a restart."""
        folder = SessionFolder(self.folder / f"client{number}")
        secret = self.secrets[self.ids[number]]
        return Client(plan or self.plan, secret, self.identities, folder)

    def answer(self, number: int, message: bytes) -> bytes:
        return self.client(number).answer(message, lambda: self.values[number])

    def refuses(
        self, number: int, message: Any, pattern: str, culprit: bytes | None = None
    ) -> None:
        """Checks that a client's answer to a message raises; see the function `refused`."""
        refused(lambda: self.answer(number, message), pattern, culprit)

    def begin(self, session: bytes | None = None, at: Type = Type.KEYS) -> Server:
        """Starts a session and runs the stages before `at`; returns the server."""
        folder = SessionFolder(self.folder / "server")
        server = Server.begin(self.plan, self.identities, folder, self.ids, session)
        self.run_stages(server, until=at)
        return server

    def resumed(self, server: Server) -> Server:
        folder = SessionFolder(self.folder / "server")
        return Server(self.plan, self.identities, folder, server.session)

    def stage(self, server: Server, without: Collection[int] = ()) -> dict[int, bytes]:
        """Runs one stage of the protocol; returns the answers, keyed by client number."""
        answers = {}
        for identity, request in server.requests().items():
            number = self.ids.index(identity)
            if number not in without:
                answers[number] = self.answer(number, request)
                server.receive(answers[number])
        server.close()
        return answers

    def run_stages(self, server: Server, until: messages.Type | None = None) -> None:
        """Runs all stages, or the stages before `until`."""
        while server.stage != until:
            self.stage(server)

    def finish(self, server: Server, numbers: Iterable[int] | None = None) -> None:
        """Runs the remaining stages and checks the sums."""
        self.run_stages(server)
        self.check(server, numbers)

    def request(self, server: Server, number: int) -> bytes:
        return server.requests()[self.ids[number]]

    def forged(self, number: int, kind: messages.Type, session: bytes, body: bytes) -> bytes:
        """Returns a message with any body, correctly signed by a client."""
        identity = self.ids[number]
        return messages.signed(kind, session, self.secrets[identity], identity, body)

    def expected(self, numbers: Iterable[int]) -> dict[str, np.ndarray]:
        """Returns the sums without masks, computed with Python's integers."""
        sums = {}
        for tensor in self.tensors:
            total = sum(self.values[n][tensor.name].astype(object) for n in numbers)
            sums[tensor.name] = np.asarray(total % tensor.modulus).astype(np.uint64)
        return sums

    def check(self, server: Server, numbers: Iterable[int] | None = None) -> None:
        """Checks that the unmasked sums equal the survivors' sums bit for bit."""
        survivors = [self.ids.index(identity) for identity in server.survivors]
        assert numbers is None or survivors == sorted(numbers)
        result = server.result()
        expected = self.expected(survivors)
        assert list(result) == list(expected)
        for name, value in expected.items():
            assert result[name].dtype == np.uint64
            np.testing.assert_array_equal(result[name], value)


def listed(kind: Type, server: Server, items: Sequence[bytes]) -> bytes:
    return messages.list_message(kind, server.session, items)


def roster_message(server: Server, keys: Sequence[messages.Keys]) -> bytes:
    return listed(Type.ROSTER, server, [k.message for k in keys])


def seeded(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Makes keys and shares deterministic, for statistical tests."""
    generator = np.random.default_rng(seed)
    monkeypatch.setattr(primitives, "random_bytes", generator.bytes)


def refused(call: Callable[[], object], pattern: str = "", culprit: bytes | None = None) -> str:
    """Returns the one-line `SumError` that a call raises; checks the client at fault if given."""
    with pytest.raises(SumError, match=pattern) as error:
        call()
    assert "\n" not in str(error.value)
    if culprit is not None:
        assert error.value.client == culprit
    return str(error.value)
