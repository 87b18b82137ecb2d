"""How a cohort is cut into shards: what lanes and workers take, and what sums are made of.

The cut is a function of the cohort alone, never of how many devices or workers there are, and
shards are summed in their order. So any number of them gives the same bits.
"""

from collections.abc import Sequence

import numpy as np

# Enough for some balance between 8 workers; each costs a model's worth of memory while it waits.
MAX_STREAMED_SHARDS = 32
# Rows of padding that cost less than another group of clients does.
_FREE_PADDING = 2048
_MAX_PADDING_SHARE = 0.25

Shard = tuple[int, ...]
"""Positions of clients in the cohort."""


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
