"""The expected fraction of rounds with each domain, from its clients and the sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

import numpy as np

# (which clients have examples of each domain, bool [clients, p]; the domain of most examples of
# each client, int [clients]; c) -> probabilities [p].
Presence = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def expected_presence(counts: np.ndarray, sampling: str, clients_per_round: int) -> np.ndarray:
    """Returns the probability that a round has a client with examples of a domain, [p].

    It is exact for uniform and for independent draws. For turns and stratified draws it is exact on
    average over the order of the clients, if a domain's clients are in one stratum; several strata
    are treated as independent.

    Args:
        counts: Examples of each training client and domain, int [clients, p].
        sampling: A name in `data.sampling.COHORT_SAMPLINGS`.
        clients_per_round: c.
    """
    return PRESENCE[sampling](counts > 0, np.argmax(counts, axis=1), clients_per_round)


def clients_for_presence(num_holders: int, num_clients: int, presence: float) -> int:
    """Returns the minimum clients per uniform round to have a domain in that fraction of rounds.

    Args:
        num_holders: Clients with examples of the domain, at least 1.
        num_clients: N.
        presence: Fraction of rounds, in (0, 1).
    """
    low, high = 1, num_clients
    # Bisect, as the presence grows with the number of clients.
    while low < high:
        middle = (low + high) // 2
        if 1.0 - _absent(num_holders, num_clients, middle) >= presence:
            high = middle
        else:
            low = middle + 1
    return low


def _absent(num_holders: int, num_clients: int, drawn: int) -> float:
    """Returns the probability that clients drawn without replacement include no holder."""
    left = np.arange(num_clients - drawn, num_clients - drawn - num_holders, -1)
    if left.size and left[-1] <= 0:
        return 0.0
    remaining = np.arange(num_clients, num_clients - num_holders, -1)
    return float(np.prod(left / remaining))


def _uniform(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    del strata
    absent = [_absent(int(n), len(holds), clients_per_round) for n in holds.sum(axis=0)]
    return 1.0 - np.array(absent)


def _poisson(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    del strata
    return 1.0 - (1.0 - clients_per_round / len(holds)) ** holds.sum(axis=0)


def _turns(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    # As in `sampling.turns`, every cohort has at least c clients.
    cohorts = len(holds) // clients_per_round
    small, larger = divmod(len(holds), cohorts)
    presence = (cohorts - larger) * _uniform(holds, strata, small)
    if larger:
        presence += larger * _uniform(holds, strata, small + 1)
    return presence / cohorts


def _stratified(holds: np.ndarray, strata: np.ndarray, clients_per_round: int) -> np.ndarray:
    absent = np.ones([holds.shape[1]])
    for name in np.unique(strata):
        members = holds[strata == name]
        # The stratum's share of the places, rounded up or down at random.
        whole, rest = divmod(len(members) * clients_per_round, len(holds))
        up = rest / len(holds)
        for i, n in enumerate(members.sum(axis=0)):
            # Without a rest there is no further place, and perhaps no further client.
            more = _absent(int(n), len(members), whole + 1) if rest else 0.0
            absent[i] *= (1.0 - up) * _absent(int(n), len(members), whole) + up * more
    return 1.0 - absent


PRESENCE: Mapping[str, Presence] = {
    "uniform": _uniform,
    "stratified": _stratified,
    "poisson": _poisson,
    "turns": _turns,
}
