"""Tilted-ERM over clients (Li et al., "Tilted Empirical Risk Minimization", 2021), float64.

The objective is (1/t) log sum_k p_k exp(t F_k(w)) with p_k = n_k / n, or equal p_k. Its gradient is
the mean of the clients' gradients with weights p_k exp(t F_k) / sum_j p_j exp(t F_j). With t = 0,
the objective is the mean of the F_k.
"""

from collections.abc import Sequence

import numpy as np

from tests.algorithms.references.local_sgd import LocalSgd, average, train
from tests.algorithms.references.softmax import (
    Client,
    Model,
    Weights,
    all_finite,
    mean_loss,
    size,
    with_finite_loss,
)


def tilted_weights(F: Sequence[float], p: Sequence[float], t: float) -> np.ndarray:
    """Returns p_k exp(t F_k) / sum_j p_j exp(t F_j), for losses and t of any size."""
    exponents = t * np.asarray(F, np.float64) + np.log(np.asarray(p, np.float64))
    unnormalised = np.exp(exponents - exponents.max())
    return unnormalised / unnormalised.sum()


def tilted_loss(F: Sequence[float], p: Sequence[float], t: float) -> float:
    """Returns (1/t) log sum_k p_k exp(t F_k); the mean of the F_k for t = 0."""
    losses, shares = np.asarray(F, np.float64), np.asarray(p, np.float64) / np.sum(p)
    if t == 0:
        return float(shares @ losses)
    top = (t * losses).max()
    return float((np.log(shares @ np.exp(t * losses - top)) + top) / t)


def term_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    t: float,
    sgd: LocalSgd,
    weighting: str = "examples",
) -> Weights:
    """Returns w^{t+1} = sum_k c_k w_k with tilted weights c_k; F_k is the loss at w^t.

    The sums omit clients without examples and clients with a non-finite loss or w_k. Without
    clients, the result is w^t.
    """
    if weighting not in ("examples", "equal"):
        raise ValueError(f"weighting is 'examples' or 'equal', not {weighting!r}")
    trained = [
        (client, train(model, w_t, client, sgd)) for client in with_finite_loss(model, w_t, clients)
    ]
    kept = [(client, w_k) for client, w_k in trained if all_finite(w_k)]
    if not kept:
        return list(w_t)
    F = [mean_loss(model, w_t, client) for client, _ in kept]
    p = [size(client) if weighting == "examples" else 1 for client, _ in kept]
    weights = tilted_weights(F, p, t)
    return average(w_t, ((c_k, w_k) for c_k, (_, w_k) in zip(weights, kept)))
