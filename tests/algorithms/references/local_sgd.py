"""Local SGD, and federated averaging with it, in NumPy and float64."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Callable, Optional

import numpy as np

from tests.algorithms.references.softmax import (
    Client,
    Model,
    Weights,
    all_finite,
    examples,
    size,
    with_finite_loss,
)


@dataclasses.dataclass(frozen=True)
class LocalSgd:
    """Settings of a client's training.

    Attributes:
        eta: Learning rate.
        epochs: Number of passes over the client's examples, which are not shuffled.
        batch_size: Maximum size of a batch; None for one batch of all examples.
        divisor: Divisor of a batch's summed gradient: "client" is n_k, "batch" the batch's size.
    """

    eta: float
    epochs: int = 1
    batch_size: Optional[int] = None
    divisor: str = "batch"

    def __post_init__(self) -> None:
        if self.divisor not in ("client", "batch"):
            raise ValueError(f"divisor is 'client' or 'batch', not {self.divisor!r}")


def train(
    model: Model,
    w_t: Weights,
    client: Client,
    sgd: LocalSgd,
    extra_gradient: Optional[Callable[[Weights], Weights]] = None,
) -> Weights:
    """Returns w_k, the weights after local SGD from w^t; without examples, w_k is w^t.

    Each step adds `extra_gradient(w)` to the divided gradient.
    """
    x, y = examples(client)
    n_k = len(y)
    w = [np.asarray(w_m, np.float64) for w_m in w_t]
    batch_size = sgd.batch_size or max(n_k, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(sgd.epochs):
            for start in range(0, n_k, batch_size):
                x_b, y_b = x[start : start + batch_size], y[start : start + batch_size]
                divisor = n_k if sgd.divisor == "client" else len(y_b)
                g = [g_m / divisor for g_m in model.summed_gradient(w, x_b, y_b)]
                if extra_gradient is not None:
                    g = [g_m + e_m for g_m, e_m in zip(g, extra_gradient(w))]
                w = [w_m - sgd.eta * g_m for w_m, g_m in zip(w, g)]
    return w


def average(w_t: Weights, trained: Iterable[tuple[float, Weights]]) -> Weights:
    """Returns w^t - sum_k c_k (w^t - w_k) / sum_k c_k over pairs (c_k, w_k).

    Both sums omit pairs with a non-finite w_k; without pairs, the result is w^t.
    """
    kept = [(c_k, w_k) for c_k, w_k in trained if c_k > 0 and all_finite(w_k)]
    if not kept:
        return list(w_t)
    c = sum(c_k for c_k, _ in kept)
    return [w_m - sum(c_k * (w_m - w_k[m]) for c_k, w_k in kept) / c for m, w_m in enumerate(w_t)]


def fed_avg_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    sgd: LocalSgd,
    weighting: str = "examples",
) -> Weights:
    """Returns w^{t+1} of FedAvg, which averages clients by n_k ("examples") or equally ("equal").

    The average omits clients without examples and clients with a non-finite loss at w^t or
    non-finite w_k.
    """
    if weighting not in ("examples", "equal"):
        raise ValueError(f"weighting is 'examples' or 'equal', not {weighting!r}")
    return average(
        w_t,
        (
            (size(client) if weighting == "examples" else 1, train(model, w_t, client, sgd))
            for client in with_finite_loss(model, w_t, clients)
        ),
    )
