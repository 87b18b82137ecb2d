"""How a cohort is cut into shards for lanes and workers, summed in order, and put back in order.

The cut is a function of the cohort alone, never of how many devices or workers there are, and
shards are summed in their order. So any number of them gives the same bits.

What the clients of shards submit, summed; what they keep, where each of them finds it.

Shards are cut anew in every exchange, as its work may be of another size: what clients keep is
therefore held in the order of the cohort, with a leading axis of clients.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.round import Submission
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


def summed_in_order(parts: Iterable[Submission], add: Callable[[Any, Any], Any]) -> Submission:
    """Returns the sum from left to right, and what clients keep in the order of the parts.

    Args:
        parts: At least one; what is kept has a leading axis of clients in each.
        add: Adds two sums.
    """
    all_kept = []

    def submitted() -> Iterator[Any]:
        for part in parts:
            all_kept.append(part.kept)
            yield part.submitted

    total = sum_in_order(submitted(), add)
    kept = tf.nest.map_structure(lambda *columns: np.concatenate(columns), *all_kept)
    return Submission(total, kept)


def in_cohort_order(kept: Any, shards: Sequence[Shard]) -> Any:
    """Returns what the clients of all shards keep, in the order of the cohort."""
    positions = np.argsort([k for shard in shards for k in shard])
    return tf.nest.map_structure(lambda column: column[positions], kept)


def of_client(kept: Any, k: int) -> Any:
    """Returns what one of several clients has kept."""
    return tf.nest.map_structure(lambda column: column[k], kept)


def of_shard(kept: Any, shard: Shard) -> Any:
    """Returns what the clients of a shard have kept, of what those of the cohort have."""
    return tf.nest.map_structure(lambda column: column[list(shard)], kept)


"""Positions of clients in the cohort."""
