"""Which clients take part in which round."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from plan_runner.clients.client import Client
from plan_runner.errors import PlanError, reason

_NOBODY = "-"


def drawn_cohorts(
    clients: Mapping[str, Client], rounds: int, clients_per_round: Optional[int], seed: int
) -> list[list[Client]]:
    """Returns the clients of every round, in the order of their names: all, or so many by chance.

    Raises:
        PlanError: If there are fewer.
    """
    names = sorted(clients)
    if clients_per_round is None:
        return [[clients[name] for name in names]] * rounds
    if clients_per_round > len(names):
        raise PlanError(
            f"--clients_per_round: expected at most {len(names)}, the number of clients, "
            f"found {clients_per_round}"
        )
    generator = random.Random(seed)
    return [
        [clients[name] for name in sorted(generator.sample(names, clients_per_round))]
        for _ in range(rounds)
    ]


def written_cohorts(path: Path, clients: Mapping[str, Client]) -> list[list[Client]]:
    """Reads cohorts from a file: a line per round, of names with commas between them, or "-".

    A round of "-" is one without clients.

    Raises:
        PlanError: If it cannot be read, or a line has no clients, unknown ones or one twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise PlanError(f"{path}: expected a text file, cannot read it ({reason(e)})") from e
    if not lines:
        raise PlanError(f"{path}: expected a line per round, found none")
    return [_cohort(line, clients, f"{path}, line {n}") for n, line in enumerate(lines, 1)]


def _cohort(line: str, clients: Mapping[str, Client], where: str) -> list[Client]:
    if line.strip() == _NOBODY:
        return []
    names: Sequence[str] = [name.strip() for name in line.split(",")] if line.strip() else []
    if not names:
        raise PlanError(f"{where}: expected names of clients, found none")
    for name in names:
        if name not in clients:
            raise PlanError(f"{where}: expected names of clients, found {name!r}")
        if names.count(name) > 1:
            raise PlanError(f"{where}: expected every client once, found {name!r} again")
    return [clients[name] for name in names]
