"""What the clients of shards submit, summed; what they keep, where each of them finds it.

Shards are cut anew in every exchange, as its work may be of another size: what clients keep is
therefore held in the order of the cohort, with a leading axis of clients.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.aggregated import Submission
from tff_agnostic.models.functional import Examples
from tff_agnostic.runtimes.lanes import sum_in_order
from tff_agnostic.runtimes.shards import Shard


@dataclasses.dataclass(frozen=True)
class ShardFunction:
    """The clients of a shard: calls of one traced function, and a sum of what they return.

    Attributes:
        traced: Returns the function of (what is broadcast, inputs); it is traced at the first use.
        inputs: Returns the NumPy arrays of each call, from the clients of a shard, what they have
            kept, with a leading axis of clients, and their places in the cohort.
        add: Adds two sums.
    """

    traced: Callable[[], Any]
    inputs: Callable[[Sequence[Examples], Any, Shard], Iterator[Any]]
    add: Callable[[Any, Any], Any]

    def __call__(
        self, broadcast: Any, clients: Sequence[Examples], kept: Any = (), shard: Shard = ()
    ) -> Submission:
        """Returns the sum of what the clients of a shard submit, and what they keep."""
        function = self.traced()
        calls = (
            function(broadcast, tf.nest.map_structure(tf.convert_to_tensor, inputs))
            for inputs in self.inputs(clients, kept, shard)
        )
        return summed_in_order(calls, self.add)


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
