"""Softmax regression in NumPy and float64, with a hand-written gradient.

References accept any `Model`, so that tests can use a loss whose rounds are computable by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple

import numpy as np

Weights = list[np.ndarray]

# Columns of a client: "x", features float32 [n, d]; "y", classes int32 [n]; "domain_id", int32 [n].
Client = Mapping[str, np.ndarray]


class Model(NamedTuple):
    """A loss and its gradient.

    Attributes:
        losses: Called with (w, x, y); returns each example's loss, [n].
        summed_gradient: Called with (w, x, y); returns the summed losses' gradient, shapes as w.
    """

    losses: Callable[[Weights, np.ndarray, np.ndarray], np.ndarray]
    summed_gradient: Callable[[Weights, np.ndarray, np.ndarray], Weights]


def losses(w: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns each example's cross-entropy, [n]; w is [kernel [d, k], bias [k]]."""
    return -_log_probabilities(w, x)[np.arange(len(y)), y]


def summed_gradient(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Returns the gradient of the summed cross-entropies in [kernel, bias]."""
    error = np.exp(_log_probabilities(w, x))
    error[np.arange(len(y)), y] -= 1.0
    return [x.T @ error, error.sum(axis=0)]


SOFTMAX = Model(losses, summed_gradient)


def mean_loss(model: Model, w: Weights, client: Client) -> float:
    """Returns F_k(w), the client's mean loss over its examples; NaN without examples."""
    x, y = examples(client)
    if not len(y):
        return float("nan")
    # Callers check for non-finite values.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(model.losses(w, x, y).mean())


def with_finite_loss(model: Model, w: Weights, clients: Sequence[Client]) -> list[Client]:
    """Returns the participating clients, which have examples and a finite F_k(w)."""
    return [client for client in clients if np.isfinite(mean_loss(model, w, client))]


def examples(client: Client) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client's features as float64, and its classes."""
    return np.asarray(client["x"], np.float64), np.asarray(client["y"])


def size(client: Client) -> int:
    """Returns n_k, the client's number of examples."""
    return len(client["y"])


def all_finite(w: Weights) -> bool:
    return all(bool(np.isfinite(w_m).all()) for w_m in w)


def _log_probabilities(w: Weights, x: np.ndarray) -> np.ndarray:
    kernel, bias = w
    scores = x @ kernel + bias
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
