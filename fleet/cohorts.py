"""Selects each round's nodes with the sampling scheme that the plan's epsilon assumes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from pathlib import Path

from fleet.members import Members
from fleet.node_noise.server_noise import (
    FIXED_SIZE,
    POISSON,
    SPACED,
    STRATIFIED,
    Draw,
    ServerNoise,
)
from fleet.player import About
from fleet.secure_aggregation.sum_plan import Identities
from fleet.settings import ServerSettings
from plan_runner.errors import PlanError, counted

_MAX_NAMES = 5
# The privacy guarantee requires unpredictable cohorts.
_SECRET = random.SystemRandom()


class Cohorts:
    """Samples the nodes of a plan's rounds.

    Attributes:
        planned: Sampling scheme that the plan's epsilon assumes; None if the server adds no noise,
            or if the fleet does not use this scheme.
        draws_secretly: Whether `planned` samples at random and keeps the sample secret.
        min_clients: Minimum number of clients in a round.

    Args:
        export: Path of the export, for error messages.
        noise: Noise that the server adds; None if it adds no noise.
        weaker_privacy: Whether the fleet may sample in another way than planned.
        report: Called with one-line messages for the user.

    Raises:
        PlanError: The fleet cannot sample as planned, or the roster or the plan allows fewer than
            `min_clients` clients.
    """

    def __init__(
        self,
        export: Path,
        about: About,
        noise: ServerNoise | None,
        settings: ServerSettings,
        identities: Identities,
        weaker_privacy: bool,
        report: Callable[[str], None],
    ) -> None:
        self._kind, self._settings, self._identities = about.kind, settings, identities
        self._report = report
        self._resting: dict[bytes, int] = {}
        self._was_complete = False
        self._absent: list[bytes] = []
        num_nodes, self._size = len(identities.names), settings.cohort_size
        self.planned: Draw | None = None
        if noise is not None:
            obstacles = _obstacles(noise, settings, num_nodes, bool(about.secure))
            if obstacles and not weaker_privacy:
                raise PlanError(f"{export}: {obstacles[0]}; --weaker_privacy allows it")
            for words in obstacles:
                report(f"weaker privacy than the plan's: {words}")
            if not obstacles:
                self.planned = noise.draw
                if noise.draw.scheme == SPACED and not self._size:
                    self._size = int(noise.draw.per_round)
        scheme = "" if self.planned is None else self.planned.scheme
        self.draws_secretly = scheme in (POISSON, FIXED_SIZE)
        self.min_clients = max(settings.min_clients, about.min_clients)
        if self.draws_secretly and not about.secure:
            # The server must release every round, even if it samples few nodes.
            self.min_clients = about.min_clients
        self._max_clients = min(num_nodes, about.max_clients or num_nodes)
        if self.min_clients > self._max_clients:
            raise PlanError(
                f"min_clients: expected at most {self._max_clients}, the maximum that the roster "
                f"and the plan allow, found {self.min_clients}"
            )

    def planned_draw(self) -> list[bytes]:
        """Samples a round's clients secretly, as the plan's epsilon assumes.

        The population is the whole roster, including unreachable nodes. A sampled client that does
        not answer is not replaced.
        """
        assert self.planned is not None and self.draws_secretly
        population = sorted(self._identities.names)
        if self.planned.scheme == FIXED_SIZE:
            return _SECRET.sample(population, int(self.planned.per_round))
        rate = min(1.0, self.planned.per_round / len(population))
        return [identity for identity in population if _SECRET.random() < rate]

    def drawn(self, number: int, pool: Collection[bytes], members: Members) -> list[bytes]:
        """Waits for enough nodes, and selects the round's nodes, sorted by name.

        Args:
            pool: Nodes that may take part in the round.
        """
        minimum, timeout = self.min_clients, self._settings.timeouts.nodes
        everyone = set(self._identities.names)
        wanted = len(everyone) if self.draws_secretly else self._size or minimum

        def enough(count: int, among: Collection[bytes]) -> Callable[[], bool]:
            return lambda: len([i for i in members.reachable() if i in among]) >= count

        # Wait only once for all wanted nodes, because some may never return.
        if not self._was_complete and wanted > minimum:
            members.greet(enough(wanted, everyone), timeout)
        self._was_complete = True
        members.greet(enough(minimum, pool), timeout)
        connected = members.reachable()
        absent = sorted(everyone - set(connected), key=self._identities.name)
        names = f", without {self._names(absent)}" if absent else ""
        present = [identity for identity in connected if identity in pool]
        if len(present) < minimum:
            may = "" if len(pool) == len(everyone) else " that may take part"
            raise PlanError(
                f"{self._kind} {number}: expected at least {counted(minimum, 'node')}{may} "
                f"within {timeout:g} s, found {len(present)}{names}"
            )
        if absent != self._absent:
            self._report(
                f"round {number}: {len(connected)} of {len(everyone)} nodes are there{names}"
            )
        self._absent = absent
        rested = [i for i in present if self._resting.get(i, 0) < number]
        drawn = rested if len(rested) >= minimum else present
        if not self.draws_secretly:
            limit = min(self._size or self._max_clients, self._max_clients, len(drawn))
            drawn = _SECRET.sample(drawn, limit)
        return sorted(drawn, key=self._identities.name)

    def rest(self, identity: bytes, number: int) -> None:
        """Excludes a node that failed in a round from the next `rest_rounds` rounds."""
        self._resting[identity] = number + self._settings.rest_rounds

    def _names(self, identities: list[bytes]) -> str:
        more = len(identities) - _MAX_NAMES
        listed = ", ".join(map(self._identities.name, identities[:_MAX_NAMES]))
        return f"{listed} and {more} more" if more > 0 else listed


def _obstacles(
    noise: ServerNoise, settings: ServerSettings, nodes: int, is_secure: bool
) -> list[str]:
    """Returns the reasons why a fleet cannot sample cohorts as a plan's epsilon assumes.

    Args:
        nodes: Number of nodes in the roster.
        is_secure: Whether the plan uses secure aggregation.
    """
    draw = noise.draw
    obstacles = []
    if draw.scheme == STRATIFIED:
        obstacles.append("no strata of nodes")
    if draw.scheme in (POISSON, FIXED_SIZE):
        if settings.cohort_size is not None:
            obstacles.append(f"cohort_size = {settings.cohort_size} in server.toml")
        if nodes < draw.clients:
            obstacles.append(f"{counted(nodes, 'node')} in the roster")
        minimum = settings.min_clients if draw.scheme == FIXED_SIZE else math.inf
        if is_secure and draw.per_round < minimum:
            obstacles.append("secure sums, which need at least min_clients clients")
    if draw.scheme == SPACED:
        size = settings.cohort_size or int(draw.per_round)
        limit = draw.max_participations
        if nodes // size < draw.min_separation or (
            limit is not None and nodes * limit < noise.rounds * size
        ):
            obstacles.append(f"{counted(nodes, 'node')} in the roster for rounds of {size}")
    return [f"expected the plan's cohorts ({draw.text}), found {words}" for words in obstacles]
