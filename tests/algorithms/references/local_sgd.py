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
        eta: The step.
        epochs: E, passes over the client's examples in their order, never shuffled.
        batch_size: B. The last batch of a pass may be smaller; None is one batch of all.
        divisor: Divisor of a batch's summed gradient: n_k ("client"), or the number of examples of
            the batch ("batch").
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
    """w_k: the weights after local SGD from w^t; w^t itself for a client without examples.

    `extra_gradient` of the current weights is added to each step's gradient after the division.
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
    """w^t - sum_k c_k (w^t - w_k) / sum_k c_k over pairs (c_k, w_k).

    A w_k that is not finite is skipped with its c_k; without any pair, the result is w^t.
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
    """One round of FedAvg, clients averaged by n_k ("examples") or equally ("equal").

    A client without examples, or whose loss at w^t or w_k is not finite, is dropped: it counts
    neither above nor below the line.
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
