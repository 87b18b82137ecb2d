"""Accounts of noised sums: files that grow by a line, on the disk before a sum is seen.

Where nodes add the noise, the server's account has the number of sums of each client, and epsilon
is the maximum over clients. A sum counts whether or not its round was completed, as the server has
seen it, with the noise of the minimum number of clients that the manifest allows.

Where the server adds the noise, its account has the rounds of each client, and whether their
cohorts were drawn as the plan's epsilon assumes.
"""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional, Protocol

from fleet.node_noise.divergences import SkellamSum, composed_epsilon
from fleet.node_noise.noise import NodeNoise, PrivacyRequirements
from fleet.node_noise.server_noise import ServerNoise
from fleet.secure_aggregation.sessions import sync_folder
from plan_runner.errors import PlanError, counted

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


class ServerAccount(Protocol):
    """The privacy that the rounds of a server have spent.

    Attributes:
        delta: The delta of the epsilons.
    """

    @property
    def delta(self) -> float:
        """See the class."""

    @property
    def epsilon(self) -> float:
        """Epsilon of everything so far."""

    @property
    def text(self) -> str:
        """The spent privacy, for human readers."""

    def check(self, clients: Iterable[bytes], number: int) -> float:
        """Returns epsilon after a round with these clients.

        Args:
            clients: Identities of the cohort.
            number: Number of the round.

        Raises:
            PlanError: The round would pass a limit.
        """

    def open(self, session: bytes, clients: Iterable[bytes]) -> None:
        """Takes a secure sum into account, before nodes are asked to open it; each session once.

        Args:
            session: Session of secure aggregation.
            clients: Identities of the clients whose values are in the sum.
        """

    def release(self, number: int, clients: Iterable[bytes]) -> None:
        """Takes a round into account, before its noised result is computed; again if it is again.

        Args:
            number: Number of the round.
            clients: Identities of the clients whose values are in its sum.
        """


class OpenedSums:
    """The account of a server whose nodes add the noise: of the sums that it has opened.

    Args:
        path: File of the account; the caller has it locked.
        noise: Noise of the plan.
        target: Maximum epsilon of any client; None for no limit.
        weaker: Whether a client may be in more sums than the manifest's account has.
    """

    def __init__(
        self, path: Path, noise: NodeNoise, target: Optional[float] = None, weaker: bool = False
    ) -> None:
        self._file, self._noise, self._weaker = Lines(path), noise, weaker
        self._target = math.inf if target is None else target
        self._sums: collections.Counter[str] = collections.Counter()
        self._sessions: set[str] = set()
        for line in self._file.lines:
            self._count(line)

    @property
    def delta(self) -> float:
        """See `ServerAccount`."""
        return self._noise.delta

    @property
    def opened(self) -> int:
        """Number of opened sums."""
        return len(self._sessions)

    @property
    def epsilon(self) -> float:
        """Epsilon of the client that was in the most sums."""
        return self._noise.epsilon(max(self._sums.values(), default=0))

    @property
    def text(self) -> str:
        """See `ServerAccount`."""
        return (
            f"{counted(self.opened, 'sum')} opened, epsilon {self.epsilon:.4g} at delta "
            f"{self._noise.delta:.3g} of the node that was in the most"
        )

    def spent(self, clients: Iterable[bytes]) -> list[int]:
        """Returns the number of opened sums of each of these clients."""
        return [self._sums[client.hex()] for client in clients]

    def check(self, clients: Iterable[bytes], number: int = 0) -> float:
        """See `ServerAccount`."""
        del number
        most, known = max(self.spent(clients), default=0) + 1, len(self._noise.claimed)
        if most > known and not self._weaker:
            raise PlanError(
                f"privacy: expected at most {counted(known, 'sum')} with one client, as far as the "
                f"manifest's account goes, this would be number {most}; --weaker_privacy allows it"
            )
        epsilon = self._noise.epsilon(most)
        if epsilon > self._target:
            raise PlanError(
                f"privacy: expected an epsilon of at most {self._target:g}, after "
                f"{counted(most, 'sum')} with one client it would be {epsilon:.6g}; opened so "
                f"far: {self.opened}"
            )
        return max(epsilon, self.epsilon)

    def open(self, session: bytes, clients: Iterable[bytes]) -> None:
        """See `ServerAccount`.

        Raises:
            PlanError: See `check`; or the clients are too few. The sum must not be opened.
        """
        if session.hex() in self._sessions:
            return
        named = sorted({client.hex() for client in clients})
        if len(named) < self._noise.fewest_clients:
            raise PlanError(
                f"privacy: expected the noise of at least {self._noise.fewest_clients} clients in "
                f"a sum, found {len(named)}"
            )
        self.check(map(bytes.fromhex, named))
        line = {"session": session.hex(), "clients": named}
        self._file.append(line)
        self._count(line)

    def release(self, number: int, clients: Iterable[bytes]) -> None:
        """Has nothing to do: the opened sum counts."""

    def _count(self, line: dict[str, Any]) -> None:
        try:
            session, clients = line["session"], list(line["clients"])
        except KeyError as e:
            raise PlanError(f"{self._file.path}: expected {e} in each line, found none") from e
        if session not in self._sessions:
            self._sessions.add(session)
            self._sums.update(clients)


class ReleasedRounds:
    """The account of a server that adds the noise: of the rounds that it has released.

    Args:
        path: File of the account; the caller has it locked.
        noise: Noise of the plan.
        target: Maximum epsilon; None for no limit.
        is_drawn: Whether cohorts are drawn as the plan says, and are secret. Epsilon of the others
            counts the rounds of each client, as if everyone knew them.
    """

    def __init__(
        self, path: Path, noise: ServerNoise, target: Optional[float] = None, is_drawn: bool = True
    ) -> None:
        self._file, self._noise, self._is_drawn = Lines(path), noise, is_drawn
        self._target = math.inf if target is None else target
        self._rounds: dict[str, set[int]] = {}
        self._last, self._all_drawn = 0, True
        for line in self._file.lines:
            self._count(line)

    @property
    def delta(self) -> float:
        """See `ServerAccount`."""
        return self._noise.delta

    @property
    def epsilon(self) -> float:
        """See `ServerAccount`."""
        return self._epsilon(self._rounds, self._last, self._all_drawn)

    @property
    def text(self) -> str:
        """See `ServerAccount`."""
        cohorts = "cohorts taken as known"
        if self._all_drawn:
            cohorts = (
                f"cohorts drawn as the plan says, which claims {self._noise.claimed:.4g} after "
                f"{counted(self._noise.rounds, 'round')}"
            )
        return (
            f"{counted(self._last, 'round')} released, epsilon at most {self.epsilon:.4g} at delta "
            f"{self.delta:.3g} of each client, {cohorts}"
        )

    def rounds_of(self, client: bytes) -> frozenset[int]:
        """Returns the numbers of the released rounds of a client."""
        return frozenset(self._rounds.get(client.hex(), ()))

    def check(self, clients: Iterable[bytes], number: int) -> float:
        """See `ServerAccount`."""
        after = dict(self._rounds)
        for client in clients:
            after[client.hex()] = {*after.get(client.hex(), ()), number}
        epsilon = self._epsilon(after, max(number, self._last), self._all_drawn and self._is_drawn)
        if epsilon > self._target:
            raise PlanError(
                f"privacy: expected an epsilon of at most {self._target:g}, after "
                f"{counted(number, 'round')} it would be {epsilon:.6g}"
            )
        return epsilon

    def open(self, session: bytes, clients: Iterable[bytes]) -> None:
        """Has nothing to do: nothing of a sum leaves the server before it has added noise."""

    def release(self, number: int, clients: Iterable[bytes]) -> None:
        """See `ServerAccount`."""
        names = sorted({client.hex() for client in clients})
        line = {"round": number, "clients": names, "drawn": self._is_drawn}
        self._file.append(line)
        self._count(line)

    def _epsilon(self, rounds: Mapping[str, set[int]], last: int, drawn: bool) -> float:
        if drawn and not self._noise.is_tree:
            return self._noise.sampled_epsilon(last)
        patterns = {frozenset(numbers) for numbers in rounds.values()}
        return max((self._noise.known_epsilon(p, last) for p in patterns), default=0.0)

    def _count(self, line: dict[str, Any]) -> None:
        try:
            number, clients, drawn = int(line["round"]), list(line["clients"]), line["drawn"]
        except (KeyError, TypeError, ValueError) as e:
            raise PlanError(f"{self._file.path}: expected rounds, cannot read one ({e!r})") from e
        self._last = max(self._last, number)
        self._all_drawn &= drawn is True
        for client in clients:
            self._rounds.setdefault(str(client), set()).add(number)


class NodeAccount:
    """The sums that may have a node's values, each with its own plan's noise.

    Args:
        path: File of the account, for all plans of the node.
        noise: Noise of the plan.
        demands: Limits of the node's operator.
    """

    def __init__(self, path: Path, noise: NodeNoise, demands: PrivacyRequirements) -> None:
        self._file, self._noise, self._demands = Lines(path), noise, demands
        self._sessions: dict[str, SkellamSum] = {}
        for number, line in enumerate(self._file.lines, 1):
            try:
                self._sessions[str(line["session"])] = SkellamSum.from_json(line)
            except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
                raise PlanError(
                    f"{path}, line {number}: expected a sum and its noise, cannot read it ({e!r})"
                ) from e

    @property
    def sums(self) -> int:
        """Number of sums."""
        return len(self._sessions)

    def epsilon(self, delta: float) -> float:
        """Returns epsilon of all sums together."""
        return composed_epsilon(collections.Counter(self._sessions.values()), delta)

    def charge(self, session: bytes) -> None:
        """Takes a sum into account, before the node's values leave it; each session once.

        Raises:
            PlanError: The operator's limit is reached: the node takes no part.
        """
        if session.hex() in self._sessions:
            return
        noise = self._noise.in_sum
        self._demands.check_sums(collections.Counter([*self._sessions.values(), noise]))
        # The multiplier and delta are for human readers; the other numbers determine epsilon.
        about = {"noise_multiplier": self._noise.noise_multiplier, "delta": self._noise.delta}
        self._file.append({"session": session.hex(), **noise.to_json(), **about})
        self._sessions[session.hex()] = noise
