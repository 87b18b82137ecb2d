"""The split of a client's examples by which the tests of kept-out losses go."""

import numpy as np

from tests.computations.harness import single
from tff_agnostic.computations.domain_losses import Holdout

SHARE = 0.4
# The seed of `tests.algorithms.cases`.
SPLIT = Holdout(SHARE, seed=7)


def split_of(client: dict[str, np.ndarray], holdout: Holdout = SPLIT) -> list[list[int]]:
    """Places that are kept out, and that are trained on, of one client by itself."""
    parts = holdout.split(single(client))
    return [np.asarray(part.order)[: int(part.num_examples)].tolist() for part in parts]
