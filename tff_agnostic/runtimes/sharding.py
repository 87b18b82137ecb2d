"""How a cohort is cut into shards for lanes and workers, summed in order, and put back in order.

The cut is a function of the cohort alone, never of the number of devices or workers, and shards are
summed in their order. Any number of devices or workers therefore gives the same bits.

Shards are cut anew in every step, whose work may be of another size. What clients remember is
therefore held in the order of the cohort, with a leading axis of clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tff_agnostic.computations.algorithm import ClientResult
from tff_agnostic.later import tf
from tff_agnostic.runtimes.devices import sum_in_order

# Enough for some balance between 8 workers; each costs a model's worth of memory while it waits.
MAX_STREAMED_SHARDS = 32
# Rows of padding that cost less than another group of clients does.
_FREE_PADDING = 2048
_MAX_PADDING_SHARE = 0.25

Shard = tuple[int, ...]


def streamed_shards(num_clients: int) -> list[Shard]:
    """Cuts a cohort whose clients run one after another: neighbours stay together."""
    parts = np.array_split(np.arange(num_clients), min(num_clients, MAX_STREAMED_SHARDS) or 1)
    return [tuple(part.tolist()) for part in parts if len(part) > 0]


def vectorised_shards(sizes: Sequence[int], max_clients: int) -> list[Shard]:
    """Cuts a cohort whose clients run in step, by size, so that padding stays small.

    Args:
        sizes: Number of examples of each client.
        max_clients: The most clients of a shard.

    Returns:
        As few shards as there have to be, or some more: in each, padding is at most a quarter of
        the rows, or about 2,000 rows.
    """
    if not sizes:
        return []
    largest_first = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    num_shards = -(-len(sizes) // max_clients)
    wanted = -(-len(sizes) // num_shards)
    shards: list[list[int]] = []
    rows = 0
    for k in largest_first:
        if shards and len(shards[-1]) < wanted:
            padded = sizes[shards[-1][0]] * (len(shards[-1]) + 1)
            padding = padded - rows - sizes[k]
            if padding <= max(_FREE_PADDING, _MAX_PADDING_SHARE * padded):
                shards[-1].append(k)
                rows += sizes[k]
                continue
        shards.append([k])
        rows = sizes[k]
    return [tuple(shard) for shard in shards]


def summed_in_order(parts: Iterable[ClientResult]) -> ClientResult:
    """Returns the sum from left to right, and what clients remember in the order of the parts.

    Args:
        parts: At least one; the state of each has a leading axis of clients.
    """
    states = []

    def outputs() -> Iterator[Any]:
        for part in parts:
            states.append(part.state)
            yield part.output

    total = sum_in_order(outputs(), _add)
    return ClientResult(
        total, tf.nest.map_structure(lambda *columns: np.concatenate(columns), *states)
    )


def _add(a: Any, b: Any) -> Any:
    # The operation itself: a call of a traced function costs several times as much for the sums of
    # a small model, and there is one for each client.
    return tf.nest.map_structure(lambda x, y: tf.raw_ops.AddV2(x=x, y=y), a, b)


def in_cohort_order(state: Any, shards: Sequence[Shard]) -> Any:
    """Returns what the clients of all shards remember, in the order of the cohort."""
    positions = np.argsort([k for shard in shards for k in shard])
    return tf.nest.map_structure(lambda column: column[positions], state)


def of_client(state: Any, k: int) -> Any:
    """Returns what one of several clients remembers."""
    return tf.nest.map_structure(lambda column: column[k], state)


def of_shard(state: Any, shard: Shard) -> Any:
    """Returns what the clients of a shard remember, of what those of the cohort remember."""
    return tf.nest.map_structure(lambda column: column[list(shard)], state)


"""Positions of clients in the cohort."""
