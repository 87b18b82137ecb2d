"""Which nodes a round asks: the ways to draw a cohort, by name."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from plan_runner.errors import PlanError

# Of cohorts by chance, until one is large enough.
_MOST_DRAWS = 10_000


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
