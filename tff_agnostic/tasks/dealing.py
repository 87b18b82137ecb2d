"""Divides a task's pooled examples among clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tff_agnostic.base.options import Options
from tff_agnostic.data.clients import InMemoryClients


def deal(
    options: Options,
    field: str,
    ids: str,
    examples: Mapping[str, np.ndarray],
    partition: Callable[[int], Sequence[np.ndarray]],
) -> InMemoryClients:
    """Divides all examples among clients, and returns the clients.

    Args:
        field: Name of the option with the number of clients.
        ids: Format of the clients' ids, such as "train_{:03d}".
        examples: Columns of the examples, including "y".
        partition: Maps the number of clients to the row indices of each client.
    """
    num_clients, num_examples = getattr(options, field), len(examples["y"])
    if not 1 <= num_clients <= num_examples:
        raise options.error(field, f"1 to {num_examples}, the number of examples")
    return InMemoryClients(
        {
            ids.format(k): {name: column[rows] for name, column in examples.items()}
            for k, rows in enumerate(partition(num_clients))
        }
    )
