"""Privacy accounts of noised sums: append-only files, written before a sum is disclosed.

If nodes add the noise, the server's account counts each client's sums, and epsilon is the maximum
over clients. A sum counts even if its round did not complete, because the server has seen it. The
account assumes the noise of the minimum number of clients that the manifest allows.

If the server adds the noise, its account lists each client's rounds, and whether their cohorts
were sampled as the plan's epsilon assumes.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Optional

from fleet.node_noise.divergences import SkellamSum
from fleet.node_noise.noise import NodeNoise, PrivacyRequirements
from fleet.node_noise.server_noise import ServerNoise
from fleet.secure_aggregation.sessions import sync_folder
from plan_runner.errors import PlanError, counted

_OWNER_ONLY = 0o600
# Exceptions that a line with an unexpected structure can raise.
_MALFORMED = (ArithmeticError, KeyError, RecursionError, TypeError, ValueError)


class Lines:
    """An append-only file of JSON objects, one per line.

    An incomplete last line is ignored: the process that wrote it ended too early to act on it.

    Args:
        path: The file, created with the first line.
        expected: Description of a line, for error messages.
        count: Called with each existing or new line; raises an error to reject the line.
    """

    def __init__(
        self,
        path: Path,
        expected: str = "a JSON object",
        count: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        self.path, self._count = path, count
        self.lines: list[dict[str, Any]] = []
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as e:
            raise self._error(e) from e
        complete = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                self.lines.append({**json.loads(line)})
                count(self.lines[-1])
            except _MALFORMED as e:
                raise PlanError(
                    f"{path}, line {number}: expected {expected}, cannot read it ({e!r:.100})"
                ) from e
        self._size = len(complete)

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line, and returns once the line is on the disk."""
        content = json.dumps(line, sort_keys=True).encode() + b"\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
            with open(file, "wb") as opened:
                opened.truncate(self._size)
                opened.seek(self._size)
                opened.write(content)
                opened.flush()
                os.fsync(file)
            sync_folder(self.path.parent)
        except OSError as e:
            # After a failure, such as a full disk, no byte of the line may stay.
            with contextlib.suppress(OSError):
                os.truncate(self.path, self._size)
            raise self._error(e) from e
        self._size += len(content)
        self.lines.append(line)
        self._count(line)

    def _error(self, error: OSError) -> PlanError:
        return PlanError(f"{self.path}: cannot read or write ({error.strerror})")


class UnmaskedSums:
    """Account of the sums that a server has unmasked, for plans whose nodes add the noise.

    Args:
        path: File of the account, which the caller has locked.
        target: Maximum epsilon of any client; None for no limit.
        weaker: Whether a client may be in more sums than the manifest's account covers.
    """

    def __init__(
        self, path: Path, noise: NodeNoise, target: Optional[float] = None, weaker: bool = False
    ) -> None:
        self._noise, self._target, self._weaker = noise, target, weaker
        self.delta = noise.delta
        self._sums: collections.Counter[str] = collections.Counter()
        self._sessions: set[str] = set()
        self._file = Lines(path, "a sum", self._count)

    @property
    def number(self) -> int:
        """Number of unmasked sums."""
        return len(self._sessions)

    @property
    def epsilon(self) -> float:
        """Epsilon of the client with the most sums."""
        return self._noise.epsilon(max(self._sums.values(), default=0))

    @property
    def text(self) -> str:
        """One-line summary of the spent privacy."""
        return (
            f"{counted(self.number, 'sum')} unmasked, epsilon {self.epsilon:.4g} at delta "
            f"{self.delta:.3g} for the node in the most sums"
        )

    def spent(self, clients: Iterable[bytes]) -> list[int]:
        """Returns each client's number of unmasked sums."""
        return [self._sums[client.hex()] for client in clients]

    def check(self, clients: Iterable[bytes], number: int = 0) -> float:
        """Returns the epsilon that the account would reach with another sum of these clients.

        Raises:
            PlanError: The sum would exceed a limit.
        """
        del number
        sums, claimed = max(self.spent(clients), default=0) + 1, len(self._noise.claimed)
        if sums > claimed and not self._weaker:
            raise PlanError(
                f"privacy: expected at most {counted(claimed, 'sum')} with one client, as in the "
                f"manifest's account, this would be number {sums}; --weaker_privacy allows it"
            )
        epsilon = self._noise.epsilon(sums)
        _check_target(self._target, epsilon, f"{counted(sums, 'sum')} with one client")
        return max(epsilon, self.epsilon)

    def charge(self, session: bytes, clients: Iterable[bytes]) -> None:
        """Adds a secure sum to the account, before the server asks nodes to unmask it.

        A session that is already in the account is ignored.

        Args:
            clients: Identities of the clients whose values are in the sum.

        Raises:
            PlanError: The sum has too few clients, or would exceed a limit. The server must not
                unmask it.
        """
        if session.hex() in self._sessions:
            return
        names = sorted({client.hex() for client in clients})
        if len(names) < self._noise.min_clients:
            raise PlanError(
                f"privacy: expected the noise of at least {self._noise.min_clients} clients in a "
                f"sum, found {len(names)}"
            )
        self.check(map(bytes.fromhex, names))
        self._file.append({"session": session.hex(), "clients": names})

    def _count(self, line: dict[str, Any]) -> None:
        session, clients = line["session"], list(line["clients"])
        if session not in self._sessions:
            self._sessions.add(session)
            self._sums.update(clients)


class ReleasedRounds:
    """Account of the rounds that a server has released, for plans whose server adds the noise.

    Args:
        path: File of the account, which the caller has locked.
        target: Maximum epsilon of any client; None for no limit.
        is_drawn: Whether cohorts are sampled secretly, as planned. Otherwise, epsilon assumes that
            attackers know each client's rounds.
    """

    def __init__(
        self, path: Path, noise: ServerNoise, target: Optional[float] = None, is_drawn: bool = True
    ) -> None:
        self._noise, self._target, self._is_drawn = noise, target, is_drawn
        self.delta = noise.delta
        self._rounds: dict[str, set[int]] = {}
        self._last, self._all_drawn = 0, True
        self._file = Lines(path, "a round", self._count)

    @property
    def epsilon(self) -> float:
        """Epsilon of any client after the released rounds."""
        return self._epsilon(self._rounds, self._last, self._all_drawn)

    @property
    def text(self) -> str:
        """One-line summary of the spent privacy."""
        cohorts = "assuming known cohorts"
        if self._all_drawn:
            cohorts = (
                f"cohorts sampled as planned; the plan claims {self._noise.claimed:.4g} after "
                f"{counted(self._noise.rounds, 'round')}"
            )
        return (
            f"{counted(self._last, 'round')} released, epsilon at most {self.epsilon:.4g} at delta "
            f"{self.delta:.3g} of each client, {cohorts}"
        )

    def client_rounds(self, client: bytes) -> frozenset[int]:
        """Returns the numbers of the released rounds in which a client took part."""
        return frozenset(self._rounds.get(client.hex(), ()))

    def check(self, clients: Iterable[bytes], number: int) -> float:
        """Returns the epsilon that the account would reach with another round of these clients.

        Raises:
            PlanError: The round would exceed the target.
        """
        after = dict(self._rounds)
        for client in clients:
            after[client.hex()] = {*after.get(client.hex(), ()), number}
        epsilon = self._epsilon(after, max(number, self._last), self._all_drawn and self._is_drawn)
        _check_target(self._target, epsilon, counted(number, "round"))
        return epsilon

    def release(self, number: int, clients: Iterable[bytes]) -> None:
        """Adds a round to the account, before the server computes the round's noised result.

        If the server computes the round again, the account gets another entry.

        Args:
            number: Number of the round.
            clients: Identities of the clients whose values are in the round's sum.
        """
        names = sorted({client.hex() for client in clients})
        self._file.append({"round": number, "clients": names, "drawn": self._is_drawn})

    def _epsilon(self, rounds: Mapping[str, set[int]], last: int, drawn: bool) -> float:
        if drawn and not self._noise.is_tree:
            return self._noise.sampled_epsilon(last)
        patterns = {frozenset(numbers) for numbers in rounds.values()}
        return max((self._noise.known_epsilon(p, last) for p in patterns), default=0.0)

    def _count(self, line: dict[str, Any]) -> None:
        number, clients = int(line["round"]), list(line["clients"])
        self._last = max(self._last, number)
        self._all_drawn &= line["drawn"] is True
        for client in clients:
            self._rounds.setdefault(str(client), set()).add(number)


def _check_target(target: Optional[float], epsilon: float, after: str) -> None:
    if target is not None and epsilon > target:
        raise PlanError(
            f"privacy: expected an epsilon of at most {target:g}, after {after} it would be "
            f"{epsilon:.6g}"
        )


class NodeAccount:
    """Account of the sums that may contain a node's values, over all of the node's plans.

    Args:
        path: File of the account.
        noise: Noise of the current plan.
        limits: Privacy requirements of the node's operator.
    """

    def __init__(self, path: Path, noise: NodeNoise, limits: PrivacyRequirements) -> None:
        self._noise, self._limits = noise, limits
        self._sessions: dict[str, SkellamSum] = {}
        self._file = Lines(path, "a sum and its noise", self._count)

    def _count(self, line: dict[str, Any]) -> None:
        groups = tuple((int(norm), float(mu), int(size)) for norm, mu, size in line["groups"])
        coin = Fraction(*map(int, line["takes_part"]))
        self._sessions[str(line["session"])] = SkellamSum(groups, coin)

    @property
    def sums(self) -> collections.Counter[SkellamSum]:
        """Number of sums for each distinct noise."""
        return collections.Counter(self._sessions.values())

    def charge(self, session: bytes) -> None:
        """Charges the account for a private sum before the node sends its values, once per session.

        Raises:
            PlanError: The sum would exceed the operator's limits.
        """
        if session.hex() in self._sessions:
            return
        noise = self._noise.in_sum
        self._limits.check_sums(self.sums + collections.Counter([noise]))
        self._file.append(
            {
                "session": session.hex(),
                "groups": noise.groups,
                "takes_part": noise.takes_part.as_integer_ratio(),
                # The following fields are only for human readers, as the fields above determine
                # epsilon.
                "noise_multiplier": self._noise.noise_multiplier,
                "delta": self._noise.delta,
            }
        )
