"""Which clients take part in a round."""

from collections.abc import Sequence
from typing import Optional

import numpy as np

from tff_agnostic.data.clients import ClientDataset, client_domain_counts
from tff_agnostic.errors import UserError

# Keeps the draws apart from those of tasks, which use the run's seed too.
_STREAM = 7


def sample_cohort(
    client_ids: Sequence[str],
    clients_per_round: int,
    seed: int,
    round_num: int,
    strata: Optional[np.ndarray] = None,
) -> list[str]:
    """Returns C_t, drawn without replacement; every client is equally likely.

    The draw is a function of its arguments, so a resumed run sees the cohorts it would have seen.

    Args:
        client_ids: The clients, sorted.
        clients_per_round: c.
        seed: Seed of the run.
        round_num: t, from 1.
        strata: The stratum of each client, int [clients], for a stratified draw: each stratum gets
            as many places as its share of the clients, rounded up or down by chance. None for a
            uniform draw, as in line 5 of Algorithm 1 of Ro et al. 2021.

    Raises:
        UserError: If there are fewer clients than asked for.
    """
    check_cohort_size(len(client_ids), clients_per_round)
    rng = np.random.default_rng([seed, _STREAM, round_num])
    if strata is None:
        chosen = rng.choice(len(client_ids), size=clients_per_round, replace=False)
    else:
        chosen = _stratified(strata, clients_per_round, rng)
    return [client_ids[i] for i in chosen]


def domain_strata(clients: ClientDataset, num_domains: int) -> np.ndarray:
    """Returns the domain that most of a client's examples belong to, int [clients]."""
    return np.argmax(client_domain_counts(clients, num_domains), axis=1)


def check_cohort_size(num_clients: int, clients_per_round: int) -> None:
    """Raises a `UserError` unless a round of that many clients can be drawn."""
    if not 1 <= clients_per_round <= num_clients:
        raise UserError(
            f"--clients_per_round: expected 1 to {num_clients}, the number of training clients, "
            f"found {clients_per_round}"
        )


def _stratified(strata: np.ndarray, num_places: int, rng: np.random.Generator) -> np.ndarray:
    names, sizes = np.unique(strata, return_counts=True)
    chosen = [
        rng.choice(np.flatnonzero(strata == name), size=count, replace=False)
        for name, count in zip(names, _places(sizes, num_places, rng))
    ]
    return rng.permutation(np.concatenate(chosen))


def _places(sizes: np.ndarray, num_places: int, rng: np.random.Generator) -> np.ndarray:
    # In integers: a share that is whole must not lose a place to rounding.
    whole, rest = np.divmod(sizes * num_places, sizes.sum())
    left = num_places - whole.sum()
    if left:
        # Systematic sampling: one more place, with a chance of exactly what the whole ones lack.
        edges = np.cumsum(rest) / sizes.sum()
        hits = np.searchsorted(edges, rng.uniform() + np.arange(left), side="right")
        np.add.at(whole, np.minimum(hits, len(sizes) - 1), 1)
    return whole
