"""The examples of all clients in one place, dealt anew in each pass: no federated training.

What a network learns of all data, where clients' drift and unequal clients play no part, is what
federated rows of a table are compared with. Each round has one client, which has as many examples
as the clients of a federated round have on average; its local steps are minibatch SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import Draw
from tff_agnostic.models.model import Examples

# Keeps the deals apart from other draws that use the run's seed.
_STREAM = 17


def dealt(num_examples: int, size: int, round_num: int, seed: int) -> np.ndarray:
    """Returns the rows of a round, int [size].

    Rounds take what follows in a stream of passes. Each pass has every row once, in an order of its
    own that depends on the seed and on the number of the pass.

    Args:
        num_examples: N, at least 1.
        size: Rows of a round, at least 1.
        round_num: t, from 1.
        seed: Of the run.
    """
    places = np.arange((round_num - 1) * size, round_num * size)
    found = np.empty(size, np.int64)
    for number in np.unique(places // num_examples):
        order = np.random.default_rng([seed, _STREAM, number]).permutation(num_examples)
        is_of_pass = places // num_examples == number
        found[is_of_pass] = order[places[is_of_pass] % num_examples]
    return found


class PooledExamples:
    """The examples of all clients of another dataset, as one client for each round.

    Args:
        clients: The other dataset; all of it is read and held in memory.
        clients_per_round: Of a federated round, which has their examples on average.
        rounds: How many there are.
        seed: Of the run.
    """

    def __init__(
        self, clients: ClientDataset, clients_per_round: int, rounds: int, seed: int
    ) -> None:
        everyone = [clients.read(client_id) for client_id in clients.client_ids]
        self._examples = _joined(everyone)
        self._num_examples = len(self._examples["domain_id"])
        self._size = max(1, round(self._num_examples * clients_per_round / len(everyone)))
        self._rounds = rounds
        self._seed = seed

    @property
    def client_ids(self) -> Sequence[str]:
        """The rounds, in their order."""
        return [f"round_{t:08d}" for t in range(1, self._rounds + 1)]

    def read(self, client_id: str) -> Examples:
        """Returns the examples of a round."""
        round_num = int(client_id.rpartition("_")[2])
        return _taken(self._examples, dealt(self._num_examples, self._size, round_num, self._seed))

    def draw(self) -> Draw:
        """Returns whom each round trains on: everybody's examples of that round."""
        ids = self.client_ids
        return lambda round_num: [ids[round_num - 1]]


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = parts[0]
    return {
        name: _joined([part[name] for part in parts])
        if isinstance(first[name], Mapping)
        else np.concatenate([part[name] for part in parts])
        for name in first
    }


def _taken(columns: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
    return {
        name: _taken(column, rows) if isinstance(column, Mapping) else column[rows]
        for name, column in columns.items()
    }
