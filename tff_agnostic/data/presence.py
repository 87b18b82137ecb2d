"""The expected fraction of rounds with clients of a domain, by kind of cohort sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

import numpy as np

# Function of three arguments that returns probabilities [p]. The arguments are whether each client
# has examples of each domain, bool [clients, p]; the domain with most of each client's examples,
# int [clients]; and c.
Presence = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def expected_presence(counts: np.ndarray, sampling: str, clients_per_round: int) -> np.ndarray:
    """Returns for each domain the probability that a round has examples of the domain, [p].

    The result is exact for uniform and Poisson sampling. For cyclic sampling ("turns"), it is the
    mean over all orders of the clients. For stratified sampling, strata are treated as independent,
    so that the result is exact if a domain's clients are in one stratum.

    Args:
        counts: Examples of each training client and domain, int [clients, p].
        sampling: A name in `data.sampling.COHORT_SAMPLINGS`.
        clients_per_round: Number of clients per round, c.
    """
    return PRESENCE[sampling](counts > 0, np.argmax(counts, axis=1), clients_per_round)


def clients_for_presence(num_holders: int, num_clients: int, presence: float) -> int:
    """Returns the smallest size of uniform cohorts with which a domain is present often enough.

    Args:
        num_holders: Number of clients with examples of the domain, at least 1.
        num_clients: Number of clients, N.
        presence: Fraction of rounds with examples of the domain, in (0, 1).
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
    """Returns the probability that a sample of `drawn` clients includes no holder."""
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
        # The stratum's number of clients in a cohort is rounded up or down at random.
        whole, rest = divmod(len(members) * clients_per_round, len(holds))
        up = rest / len(holds)
        for i, n in enumerate(members.sum(axis=0)):
            # Without a remainder, nothing is rounded, and the stratum may have no further client.
            more = _absent(int(n), len(members), whole + 1) if rest else 0.0
            absent[i] *= (1.0 - up) * _absent(int(n), len(members), whole) + up * more
    return 1.0 - absent


PRESENCE: Mapping[str, Presence] = {
    "uniform": _uniform,
    "stratified": _stratified,
    "poisson": _poisson,
    "turns": _turns,
}
