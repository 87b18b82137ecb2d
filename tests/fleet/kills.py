"""Kills of a demo's processes: which one, in which round and during which exchange."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Optional

from plan_runner.errors import PlanError

# Beside the names of nodes: the ServerApp, and Flower's process that carries messages.
SERVER, SUPERLINK = "server", "superlink"
NODE, OFTEN = "node", "often"
KILLS = (NODE, SERVER, SUPERLINK, OFTEN)
# Of `OFTEN`: one of so many nodes in each round, and the server in one of so many rounds.
_NODES, _ROUNDS = 5, 10
# A node that was killed is spared in so many rounds: it must have the time to come back.
_SPARED_ROUNDS = 2
# With so many nodes enough are left when one is killed while another one is away.
_FEWEST_NODES = {NODE: 4, OFTEN: 5}
# What dies, by the round and the exchange after which it does.
Schedule = dict[tuple[int, str], list[str]]


def check_nodes(kill: Optional[str], nodes: int) -> None:
    """Checks that enough nodes are left for a sum."""
    fewest = _FEWEST_NODES.get(kill or "", 0)
    if nodes < fewest:
        raise PlanError(f"--kill={kill}: expected at least {fewest} --nodes, found {nodes}")


def schedule(
    kill: Optional[str], names: Sequence[str], rounds: int, stages: Sequence[str], seed: int = 0
) -> Schedule:
    """Returns what is killed.

    One kind of `KILLS` dies once, in the second round. `OFTEN` kills a fifth of the nodes in each
    round and the server in every tenth, from the fifth on, each during an exchange by chance.

    Args:
        names: Of the nodes.
        rounds: How many are played.
        stages: A round's exchanges in their order.
        seed: Of the chance.
    """
    if kill is None:
        return {}
    if kill != OFTEN:
        return {(min(2, rounds), stages[0]): [names[-1] if kill == NODE else kill]}
    found: Schedule = {}
    chance = random.Random(seed)
    killed: list[list[str]] = []
    for number in range(1, rounds + 1):
        spared = [name for names in killed[-_SPARED_ROUNDS:] for name in names]
        there = [name for name in names if name not in spared]
        killed.append(chance.sample(there, max(1, len(names) // _NODES)))
        server = [SERVER] if number % _ROUNDS == _ROUNDS // 2 else []
        for name in (*killed[-1], *server):
            found.setdefault((number, chance.choice(stages)), []).append(name)
    return found
