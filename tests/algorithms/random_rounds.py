"""Twelve random cohorts and initial weights, for comparing algorithms with their references."""

from typing import Any

import numpy as np

from tests.support.clients import empty_client, random_client, spoiled_client
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights

_ROUNDS = 12


def _cohorts() -> list[list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(21)
    cohorts = []
    for k in range(_ROUNDS):
        sizes = rng.integers(1, 15, size=rng.integers(2, 7))
        cohort = [random_client(rng, size, range(3)) for size in sizes]
        # Scale inputs by client, so that the clients' losses differ.
        for number, client in enumerate(cohort):
            client["x"] *= np.float32(0.5 + 0.4 * number)
        if k % 4 == 1:
            cohort.insert(1, empty_client())
        if k % 5 == 2:
            cohort.append(spoiled_client(np.nan))
        cohorts.append(cohort)
    return cohorts


COHORTS = _cohorts()


# Initial weights; not zeros, since all clients would then have the same loss.
W_0 = ModelWeights(
    [
        np.random.default_rng(4).normal(size=v.shape, scale=0.3).astype(np.float32)
        for v in logistic_regression(4, 3).initial_weights.trainable
    ],
    [],
)


def at_start(training: Any, algorithm: Any) -> Any:
    """Returns the initial state with the weights `W_0`."""
    state = training.initialize()
    return state._replace(algorithm=algorithm.with_weights(state.algorithm, W_0))
