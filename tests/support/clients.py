"""Small clients and cohorts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_agnostic.computations.clients import (
    Clients,
    client_arrays,
    stacked_client_arrays,
    vectorised_clients,
)
from tff_agnostic.models.model import Examples


def make_client(x: Any, domain_id: Any, y: Any = None) -> dict[str, np.ndarray]:
    """Returns a client's examples as float32 and int32 arrays; labels are 0 by default."""
    return {
        "x": np.asarray(x, np.float32),
        "y": np.zeros([len(x)], np.int32) if y is None else np.asarray(y, np.int32),
        "domain_id": np.asarray(domain_id, np.int32),
    }


def single(client: Examples, seed: Any = (), state: Any = ()) -> Clients:
    """Returns `Clients` of one client, whose seed is an int64 scalar."""
    return dataclasses.replace(Clients.from_arrays(client_arrays(client, state)), seed=seed)


def vectorised(clients: Sequence[Examples], seed: Any = ()) -> Clients:
    """Returns vectorised `Clients` of G clients, whose seeds are int64 [G]."""
    return dataclasses.replace(
        Clients.from_arrays(stacked_client_arrays(clients), vectorised_clients), seed=seed
    )


def random_client(
    rng: np.random.Generator,
    size: int,
    domains: Sequence[int],
    num_features: int = 4,
    num_classes: int = 3,
) -> dict[str, np.ndarray]:
    """Returns a client with `size` random examples of the given domains."""
    x = rng.normal(size=[size, num_features])
    return make_client(x, rng.choice(domains, size), rng.integers(num_classes, size=size))


NUM_DOMAINS = 3


def cohort(seed: int = 0, sizes: tuple[int, ...] = (9, 4, 1, 13)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_client(rng, n, range(NUM_DOMAINS)) for n in sizes]


def cohorts(num: int) -> list[list[dict[str, np.ndarray]]]:
    return [cohort(seed) for seed in range(num)]


def empty_client() -> dict[str, np.ndarray]:
    return make_client(np.zeros([0, 4]), [])


def spoiled_client(value: float) -> dict[str, np.ndarray]:
    """Returns a client with one input replaced by `value`, which is NaN or infinite."""
    client = random_client(np.random.default_rng(5), 6, range(NUM_DOMAINS))
    client["x"][3, 1] = value
    return client
