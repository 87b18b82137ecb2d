"""Accounts of sums that were opened: files that grow by a line, on the disk before a sum is opened.

The server's account says in how many sums each client was, so that epsilon is that of the client
that was in the most. A sum counts whether or not its round came to an end, as whoever opened it has
seen it. Each is taken for one with the noise of the fewest clients that the manifest allows.
"""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from plan_runner.errors import PlanError, counted
from plan_runner.private_sums.noise import Demands, NodeNoise
from plan_runner.secure_aggregation.sessions import sync_folder

_OWNER_ONLY = 0o600


class Lines:
    """A file of JSON lines to which lines are added.

    A last line that is not whole is of a process that ended while it wrote: what the line is about
    was not done, so the line is left out.

    Args:
        path: The file; it is made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as e:
            raise self._failed(e) from e
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError("no object")
            except ValueError as e:
                raise PlanError(f"{path}, line {number}: expected JSON, cannot read it") from e
            self.lines.append(found)
        self._size = len(whole)

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line; when this returns, it is on the disk."""
        content = json.dumps(line, sort_keys=True).encode() + b"\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
            try:
                os.ftruncate(file, self._size)
                os.lseek(file, self._size, os.SEEK_SET)
                written = 0
                while written < len(content):
                    written += os.write(file, content[written:])
                os.fsync(file)
            finally:
                os.close(file)
            sync_folder(self.path.parent)
        except OSError as e:
            raise self._failed(e) from e
        self._size += len(content)
        self.lines.append(line)

    def _failed(self, error: OSError) -> PlanError:
        return PlanError(f"{self.path}: expected a file to account in: {error.strerror}")


class ServerAccount:
    """What the sums that a server has opened have cost.

    Args:
        path: Of the account, which the next process goes on with; the caller has it locked.
        noise: Of the plan.
        target: Epsilon that is not to be passed; as far as the manifest's account goes if None.
    """

    def __init__(self, path: Path, noise: NodeNoise, target: Optional[float] = None) -> None:
        self._file, self._noise = Lines(path), noise
        self._target = math.inf if target is None else target
        self._sums: collections.Counter[str] = collections.Counter()
        self._sessions: set[str] = set()
        for line in self._file.lines:
            self._count(line)

    @property
    def opened(self) -> int:
        """How many sums were opened."""
        return len(self._sessions)

    @property
    def epsilon(self) -> float:
        """Epsilon of the client that was in the most sums."""
        return self._noise.epsilon(max(self._sums.values(), default=0))

    @property
    def text(self) -> str:
        """What was spent, for people."""
        return (
            f"{counted(self.opened, 'sum')} opened, epsilon {self.epsilon:.4g} at delta "
            f"{self._noise.delta:.3g} of the node that was in the most"
        )

    def spent(self, clients: Iterable[bytes]) -> list[int]:
        """Returns in how many opened sums each of these clients was."""
        return [self._sums[client.hex()] for client in clients]

    def check(self, clients: Iterable[bytes]) -> None:
        """Checks that a sum over these clients would not pass the target.

        Raises:
            PlanError: It would; no further round with them is possible.
        """
        most = max(self.spent(clients), default=0) + 1
        epsilon = self._noise.epsilon(most)
        if math.isinf(epsilon):
            raise PlanError(
                f"privacy: expected at most {counted(len(self._noise.epsilons), 'sum')} with one "
                f"client, as far as the manifest's account goes, this would be number {most}"
            )
        if epsilon > self._target:
            raise PlanError(
                f"privacy: expected an epsilon of at most {self._target:g}, after "
                f"{counted(most, 'sum')} with one client it would be {epsilon:.6g}; opened so "
                f"far: {self.opened}"
            )

    def charge(self, session: bytes, clients: Iterable[bytes]) -> None:
        """Takes a sum into account, before what opens it is asked for; each session once.

        Args:
            session: Of secure aggregation.
            clients: Identities of those whose values are in the sum.

        Raises:
            PlanError: See `check`; or the clients are too few. The sum is not to be opened.
        """
        if session.hex() in self._sessions:
            return
        counted = sorted({client.hex() for client in clients})
        if len(counted) < self._noise.fewest_clients:
            raise PlanError(
                f"privacy: expected the noise of at least {self._noise.fewest_clients} clients in "
                f"a sum, found {len(counted)}"
            )
        self.check(map(bytes.fromhex, counted))
        line = {"session": session.hex(), "clients": counted}
        self._file.append(line)
        self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        try:
            session, clients = line["session"], list(line["clients"])
        except KeyError as e:
            raise PlanError(f"{self._file.path}: expected {e} in each line, found none") from e
        if session not in self._sessions:
            self._sessions.add(session)
            self._sums.update(clients)


class NodeAccount:
    """In how many sums a node was, or may have been.

    Args:
        path: Of the account.
        noise: Of the plan.
        demands: Of the node's operator.
    """

    def __init__(self, path: Path, noise: NodeNoise, demands: Demands) -> None:
        self._file, self._noise, self._demands = Lines(path), noise, demands
        self._sessions = {str(line.get("session")) for line in self._file.lines}

    @property
    def sums(self) -> int:
        """Their number."""
        return len(self._sessions)

    def charge(self, session: bytes) -> None:
        """Takes a sum into account, before the node's values leave it; each session once.

        Raises:
            PlanError: The operator's limit is reached: the node takes no part.
        """
        if session.hex() in self._sessions:
            return
        self._demands.check_sums(self._noise, self.sums + 1)
        self._file.append({"session": session.hex()})
        self._sessions.add(session.hex())
