"""Softmax regression in NumPy and float64, with a gradient written by hand.

References see a model only as a `Model`, so that a test can use a loss whose rounds can be
computed by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple

import numpy as np

Weights = list[np.ndarray]

# {"x": features [n, d] float32, "y": classes [n] int32, "domain_id": domains [n] int32}. No
# algorithm of this folder knows domains.
Client = Mapping[str, np.ndarray]


class Model(NamedTuple):
    """A loss and its gradient.

    Attributes:
        losses: (w, x, y) -> loss [n] of each example.
        summed_gradient: (w, x, y) -> gradient in w of the sum of these losses, shapes as in w.
    """

    losses: Callable[[Weights, np.ndarray, np.ndarray], np.ndarray]
    summed_gradient: Callable[[Weights, np.ndarray, np.ndarray], Weights]


def losses(w: Weights, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy [n] of each example; w is [kernel [d, k], bias [k]]."""
    return -_log_probabilities(w, x)[np.arange(len(y)), y]


def summed_gradient(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Gradient in [kernel, bias] of the sum over examples of their cross-entropies."""
    error = np.exp(_log_probabilities(w, x))
    error[np.arange(len(y)), y] -= 1.0
    return [x.T @ error, error.sum(axis=0)]


SOFTMAX = Model(losses, summed_gradient)


def mean_loss(model: Model, w: Weights, client: Client) -> float:
    """F_k(w): the mean loss over all examples of the client; NaN if it has none."""
    x, y = examples(client)
    if not len(y):
        return float("nan")
    # Callers see values that are not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        return float(model.losses(w, x, y).mean())


def with_finite_loss(model: Model, w: Weights, clients: Sequence[Client]) -> list[Client]:
    """The participating clients: those with examples and a finite F_k(w)."""
    return [client for client in clients if np.isfinite(mean_loss(model, w, client))]


def examples(client: Client) -> tuple[np.ndarray, np.ndarray]:
    """The client's features as float64, and its classes."""
    return np.asarray(client["x"], np.float64), np.asarray(client["y"])


def size(client: Client) -> int:
    """n_k."""
    return len(client["y"])


def all_finite(w: Weights) -> bool:
    """Whether every number of every array is finite."""
    return all(bool(np.isfinite(w_m).all()) for w_m in w)


def _log_probabilities(w: Weights, x: np.ndarray) -> np.ndarray:
    kernel, bias = w
    scores = x @ kernel + bias
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
