"""The split of a client's examples by which the tests of kept-out losses go."""

import numpy as np

from tff_agnostic.computations.clients import group_of_one
from tff_agnostic.computations.domain_losses import ExampleSplit

SHARE = 0.4
# The seed of `tests.algorithms.cases`.
SPLIT = ExampleSplit(SHARE, seed=7)


def split_of(client: dict[str, np.ndarray], split: ExampleSplit = SPLIT) -> list[list[int]]:
    """Places that are kept out, and that are trained on, of one client by itself."""
    parts = split(group_of_one(client))
    return [np.asarray(part.order)[: int(part.num_examples)].tolist() for part in parts]
