"""Splitting pooled examples into clients."""

import numpy as np

from tff_agnostic.errors import UserError


def dirichlet_partition(
    domain_id: np.ndarray, num_clients: int, concentration: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the rows of each client, such that clients have skewed mixtures of domains.

    Every domain's examples are dealt to the clients in proportions drawn from a symmetric Dirichlet
    distribution (Hsu et al. 2019). A client left without any example takes one from the largest.

    Args:
        domain_id: Domain of each example, int [n].
        num_clients: Number of clients.
        concentration: Dirichlet parameter: small is skewed, large is even.
        rng: Source of randomness.

    Raises:
        UserError: If there are more clients than examples.
    """
    if num_clients > len(domain_id):
        raise UserError(
            f"clients: expected at most one for each of the {len(domain_id)} examples, found "
            f"{num_clients}"
        )
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for domain in np.unique(domain_id):
        rows = rng.permutation(np.flatnonzero(domain_id == domain))
        shares = rng.dirichlet([concentration] * num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for part, dealt in zip(parts, np.split(rows, cuts)):
            part.append(dealt)
    clients = [np.sort(np.concatenate(part)) for part in parts]
    for i, rows in enumerate(clients):
        if len(rows) == 0:
            largest = max(range(num_clients), key=lambda k: len(clients[k]))
            clients[i], clients[largest] = clients[largest][-1:], clients[largest][:-1]
    return clients


def even_partition(
    num_examples: int, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the rows of each client when examples are dealt at random, in equal numbers."""
    return [np.sort(rows) for rows in np.array_split(rng.permutation(num_examples), num_clients)]
